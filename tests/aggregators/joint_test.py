"""`joint`: parts of a value with their own mechanisms, in one mean, state and event."""

import collections

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants

_LIMITS = strategies.Participation(6, min_separation=2)
_runtime = running.local_runtime


def _parts(body=0.0, head=0.0, clients_per_round=4, seeds=(None, None)):
  shared = {'participation': _LIMITS, 'clients_per_round': clients_per_round}
  return {
    'body': aggregators.banded(
      clip_norm=1.0, noise_multiplier=body, seed=seeds[0], **shared
    ),
    'head': aggregators.laplace(
      clip_norm=0.5, noise_multiplier=head, seed=seeds[1], **shared
    ),
  }


def test_joint_mean_without_noise_equals_mean_of_each_part():
  value_type = tff.to_type(
    collections.OrderedDict(
      a=(np.float32, [2]), b=(np.float32, [3]), c=[(np.float64, [2])]
    )
  )
  rng = np.random.default_rng(5)
  values = [
    collections.OrderedDict(
      a=rng.normal(size=2).astype(np.float32),
      b=rng.normal(size=3).astype(np.float32) * 0.1,
      c=[rng.normal(size=2)],
    )
    for _ in range(4)
  ]
  process = aggregators.joint(_parts(), ['body', 'head', 'body']).create(value_type)
  output = process.next(process.initialize(), values)
  parts = {
    'body': [(value['a'], value['c'][0]) for value in values],
    'head': [(value['b'],) for value in values],
  }
  types = {
    'body': tff.to_type(((np.float32, [2]), (np.float64, [2]))),
    'head': tff.to_type(((np.float32, [3]),)),
  }
  separate = {}
  for name, factory in _parts().items():
    part_process = factory.create(types[name])
    separate[name] = part_process.next(part_process.initialize(), parts[name]).result
  np.testing.assert_array_equal(output.result['a'], separate['body'][0])
  np.testing.assert_array_equal(output.result['c'][0], separate['body'][1])
  np.testing.assert_array_equal(output.result['b'], separate['head'][0])
  assert np.abs(output.result['b']).sum() <= 0.5


def test_joint_spent_event_composes_events_of_parts():
  parts = _parts(3.0, 2.0)
  process = aggregators.joint(parts, ['body', 'head']).create(
    tff.to_type([(np.float32, [2])] * 2)
  )
  state = process.initialize()
  with pytest.raises(ValueError, match='from initialize'):
    aggregators.extract_dp_event(state)
  values = [[np.float32([1, 0])] * 2] * 4
  round_events = []
  for _ in range(6):
    state = process.next(state, values).state
    spent = aggregators.extract_dp_event(tf.nest.map_structure(np.asarray, state))
    round_events.append(spent.last_round_only)
  relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  counts = dict(accountants.components(spent.all_rounds_so_far, relation))
  assert counts[dp_accounting.LaplaceDpEvent(2.0)] == 3
  (gaussian,) = (e for e in counts if isinstance(e, dp_accounting.GaussianDpEvent))
  expected = parts['body'].effective_noise_multiplier
  assert gaussian.noise_multiplier == pytest.approx(expected, rel=1e-12)
  composed = accountants.epsilon(dp_accounting.ComposedDpEvent(round_events), 1e-5)
  total = accountants.epsilon(spent.all_rounds_so_far, 1e-5)
  assert composed == pytest.approx(total, rel=1e-6)
  with pytest.raises(Exception, match='built for 6 rounds'):
    process.next(state, values)


@pytest.mark.parametrize(
  ('parts', 'part_of', 'error', 'message'),
  [
    ({'a': 1}, ['a'], TypeError, "the part 'a' must be a factory"),
    (_parts(), 'body', TypeError, 'part_of must be a sequence of names'),
    (_parts(), ['body', 'tail'], ValueError, "each of the parts.*'tail'"),
    (_parts(), ['body'], ValueError, "each of the parts, .'body', 'head'."),
    (
      {**_parts(), 'head': _parts(clients_per_round=5)['head']},
      ['body', 'head'],
      ValueError,
      'same clients_per_round',
    ),
    (
      _parts(1.0, 1.0, seeds=(noise.Seed(1), noise.Seed(1))),
      ['body', 'head'],
      ValueError,
      'have the noise of seed 1',
    ),
    (
      {
        'a': aggregators.tree(
          _LIMITS,
          clip_norm=1.0,
          noise_multiplier=1.0,
          clients_per_round=2,
          cumulative=True,
        )
      },
      ['a'],
      ValueError,
      'make it without a workload',
    ),
  ],
)
def test_joint_refuses_invalid_parts(parts, part_of, error, message):
  with pytest.raises(error, match=message):
    aggregators.joint(parts, part_of)


def test_joint_refuses_value_with_other_number_of_tensors():
  factory = aggregators.joint(_parts(), ['body', 'head'])
  with pytest.raises(ValueError, match='has 2 names, and a value 3 tensors'):
    factory.create(tff.to_type([np.float32] * 3))

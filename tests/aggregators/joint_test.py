"""Parts of a value with mechanisms of their own: one mean, one state, one event."""

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
  return {
    'body': aggregators.banded(
      _LIMITS,
      clip_norm=1.0,
      noise_multiplier=body,
      clients_per_round=clients_per_round,
      seed=seeds[0],
    ),
    'head': aggregators.laplace(
      _LIMITS,
      clip_norm=0.5,
      noise_multiplier=head,
      clients_per_round=clients_per_round,
      seed=seeds[1],
    ),
  }


def test_without_noise_it_is_the_mean_of_each_part():
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
  alone = {}
  for name, factory in _parts().items():
    own = factory.create(types[name])
    alone[name] = own.next(own.initialize(), parts[name]).result
  np.testing.assert_array_equal(output.result['a'], alone['body'][0])
  np.testing.assert_array_equal(output.result['c'][0], alone['body'][1])
  np.testing.assert_array_equal(output.result['b'], alone['head'][0])
  assert np.abs(output.result['b']).sum() <= 0.5


def test_what_was_spent_is_the_composition_of_the_parts():
  parts = _parts(3.0, 2.0)
  process = aggregators.joint(parts, ['body', 'head']).create(
    tff.to_type([(np.float32, [2])] * 2)
  )
  state = process.initialize()
  with pytest.raises(ValueError, match='from initialize'):
    aggregators.extract_dp_event(state)
  values = [[np.float32([1, 0])] * 2] * 4
  singles = []
  for _ in range(6):
    state = process.next(state, values).state
    spent = aggregators.extract_dp_event(tf.nest.map_structure(np.asarray, state))
    singles.append(spent.last_round_only)
  relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  together = dict(accountants.components(spent.all_rounds_so_far, relation))
  assert together[dp_accounting.LaplaceDpEvent(2.0)] == 3
  (gaussian,) = (e for e in together if isinstance(e, dp_accounting.GaussianDpEvent))
  expected = parts['body'].effective_noise_multiplier
  assert gaussian.noise_multiplier == pytest.approx(expected, rel=1e-12)
  composed = accountants.epsilon(dp_accounting.ComposedDpEvent(singles), 1e-5)
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
def test_parts_that_do_not_go_together_are_refused(parts, part_of, error, message):
  with pytest.raises(error, match=message):
    aggregators.joint(parts, part_of)


def test_a_value_with_other_tensors_is_refused():
  factory = aggregators.joint(_parts(), ['body', 'head'])
  with pytest.raises(ValueError, match='has 2 names, and a value 3 tensors'):
    factory.create(tff.to_type([np.float32] * 3))

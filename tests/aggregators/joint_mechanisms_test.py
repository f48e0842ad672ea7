"""`from_joint_mechanism`: the factory has the noise and events that were planned."""

import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events

_LIMITS = strategies.Participation(6, min_separation=2)
_SIZE = 20_000
_runtime = running.local_runtime


def _mechanism():
  make = accounting.Mechanism
  return accounting.JointMechanism(
    (
      accounting.JointPart('zebra', '0', make('tree', _LIMITS, 3.0), 0.3),
      accounting.JointPart('middle', '1', make('gaussian', _LIMITS, 2.0), 0.1),
      accounting.JointPart('ant', '*', make('laplace', _LIMITS, 8.0), 0.5),
    )
  )


def _factory(mechanism, seed=None):
  part_of = mechanism.part_of(['0', '1', '2'])
  return aggregators.from_joint_mechanism(
    mechanism, part_of, clients_per_round=4, seed=seed
  )


def _process(mechanism, seed=None, size=2):
  value_type = tff.to_type([(np.float32, [size])] * 3)
  return _factory(mechanism, seed).create(value_type)


def _first_round(process, size=2):
  zeros = [np.zeros(size, np.float32)] * 3
  return process.next(process.initialize(), [zeros] * 4).result


def test_each_part_has_noise_of_its_mechanism():
  process = _process(_mechanism(), noise.Seed(1), _SIZE)
  zebra, middle, ant = _first_round(process, _SIZE)
  # Noise of the mean of four clients; a tree's first row of noise is one node.
  row = _mechanism().parts[0].mechanism.strategy.noise_row_norms()[0]
  for released, scale in ((zebra, 0.3 * 3 * row / 4), (middle, 0.1 * 2 / 4)):
    assert scipy.stats.kstest(released, 'norm', args=(0, scale)).pvalue > 1e-8
  assert scipy.stats.kstest(ant, 'laplace', args=(0, 0.5 * 8 / 4)).pvalue > 1e-8
  for first, second in ((zebra, middle), (zebra, ant), (middle, ant)):
    assert abs(np.corrcoef(first, second)[0, 1]) < 7 / math.sqrt(_SIZE)


def test_joint_states_have_spent_the_planned_events():
  mechanism = _mechanism()
  process = _process(mechanism)
  state = process.initialize()
  zeros = [np.zeros(2, np.float32)] * 3
  for planned in mechanism.round_events:
    state = process.next(state, [zeros] * 4).state
    spent = aggregators.extract_dp_event(tf.nest.map_structure(np.asarray, state))
    assert _figures(spent.last_round_only) == pytest.approx(_figures(planned))
  assert _figures(spent.all_rounds_so_far) == pytest.approx(_figures(mechanism.event))


def _figures(event):
  """Noise multipliers and counts of an event, by path."""
  return dict(_flat(events.to_json(event)))


def _flat(value, path=''):
  pairs = value.items() if isinstance(value, dict) else enumerate(value)
  for key, each in pairs:
    if isinstance(each, (dict, list)):
      yield from _flat(each, f'{path}.{key}')
    elif isinstance(each, (int, float)):
      yield f'{path}.{key}', each
    else:
      yield f'{path}.{key} {each}', 0


def test_from_joint_mechanism_refuses_invalid_arguments():
  mechanism = _mechanism()
  with pytest.raises(TypeError, match='from_mechanism takes that of all weights'):
    aggregators.from_joint_mechanism(
      mechanism.parts[0].mechanism, ['zebra'], clients_per_round=4
    )
  with pytest.raises(TypeError, match='from_joint_mechanism an accounting.JointM'):
    aggregators.from_mechanism(mechanism, clip_norm=1.0, clients_per_round=4)
  with pytest.raises(ValueError, match="each of the parts.*'other'"):
    aggregators.from_joint_mechanism(mechanism, ['other'], clients_per_round=4)
  with pytest.raises(ValueError, match="each of the parts, .'ant'"):
    aggregators.from_joint_mechanism(
      mechanism, ['zebra', 'middle'], clients_per_round=4
    )


def test_parts_use_separate_noise_streams_of_a_seed():
  first = _factory(_mechanism(), noise.Seed(3)).query.noise_identities
  assert first == tuple(f'seed 3, stream {stream}' for stream in (2, 1, 0))
  from_int = [_factory(_mechanism(), 31).query.noise_identities for _ in range(2)]
  assert len({*from_int[0], *from_int[1]}) == 6  # Each uses new streams.
  assert _factory(_mechanism()).query.noise_identities == ()

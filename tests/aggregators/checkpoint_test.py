"""A state that is saved and loaded, by TFF or pickle, continues with the same bits."""

import asyncio
import pickle

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import strategies

PARTICIPATION = strategies.Participation(16, 4)
NUMBERS = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'clients_per_round': 3}
VALUES = [np.ones(5, np.float32)] * 3
_runtime = running.local_runtime


def _via_state_manager(state, initial, folder):
  manager = tff.program.FileProgramStateManager(folder)
  asyncio.run(manager.save(state, 2))
  return asyncio.run(manager.load(2, initial))


def _via_pickle(state, initial, folder):
  del initial
  path = folder / 'state'
  path.write_bytes(pickle.dumps(state))
  return pickle.loads(path.read_bytes())


def _adaptive():
  return aggregators.adaptive(
    strategy=strategies.BandedToeplitz.square_root(16, 4),
    participation=PARTICIPATION,
    initial_clip_norm=1.0,
    noise_multiplier=1.0,
    clients_per_round=3,
    clipped_count_stddev=2.0,
    storage='state',
  )


def _tree():
  return aggregators.tree(PARTICIPATION, storage='state', **NUMBERS)


@pytest.mark.parametrize(
  'build, reload', [(_tree, _via_state_manager), (_adaptive, _via_pickle)]
)
def test_reloaded_state_gives_the_same_next_round(build, reload, tmp_path):
  process = build().create(tff.TensorType(np.float32, [5]))
  state = process.initialize()
  for _ in range(2):
    state = process.next(state, VALUES).state
  reloaded = reload(state, process.initialize(), tmp_path)
  assert repr(reloaded.query.noise) == repr(state.query.noise)
  expected, actual = process.next(state, VALUES), process.next(reloaded, VALUES)
  np.testing.assert_array_equal(actual.result, expected.result)
  assert aggregators.extract_dp_event(actual.state) == aggregators.extract_dp_event(
    expected.state
  )

"""Learning rates of clients follow from the round, however clients are trained."""

import json

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators.learning.optimizers import client_schedule
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.sampling import draws

_ROUNDS = 4
_RATES = [0.4, 0.2, 0.1, 0.05]
_sgd = tff.learning.optimizers.build_sgdm
# Batches of two have to be padded.
_CLIENTS = training_runs.clients(sizes=(2, 3, 4, 5))


def _halving(round_num):
  return 0.4 * 0.5**round_num


def _train(run_dir, **changes):
  arguments = {
    'clients': _CLIENTS,
    'mechanism': None,
    'num_rounds': _ROUNDS,
    'clip_norm': None,
    'noise_seed': None,
    'server_optimizer': _sgd(1.0),
    'learning_rate_fn': _halving,
    **changes,
  }
  return training_runs.train(run_dir, **arguments)


def _weights(result):
  return np.concatenate([each.ravel() for each in result.weights.trainable])


@pytest.fixture(scope='module')
def packed(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'packed'
  return run_dir, _train(run_dir, test_metrics=training_runs.killing(0))


def _by_hand(cohorts):
  """The same rounds in NumPy: two examples a batch, in the order of `local_order`."""
  clients = learning.Clients.of(_CLIENTS)
  keys = draws.keys_of_ids(clients.draw_ids, 7)
  kernel = np.zeros([2, 1])
  for number, cohort in enumerate(cohorts):
    updates = []
    of_round = learning.local_order.keys(7, number, keys[cohort])
    for client, key in zip(cohort, of_round):
      x, y = clients.examples(int(client))
      own = kernel.copy()
      order = learning.local_order.permutation(key, len(x))
      for first in range(0, len(x), 2):
        chosen = order[first : first + 2]
        gradient = 2 * x[chosen].T @ (x[chosen] @ own - y[chosen]) / len(chosen)
        own -= _RATES[number] * gradient
      updates.append(kernel - own)
    kernel -= np.mean(updates, axis=0)
  return kernel.ravel()


def test_rounds_are_those_of_optimizers_with_their_rates(packed):
  run_dir, result = packed
  rows = metrics_file.read(str(run_dir / 'metrics.csv'))
  assert [float(row['client_learning_rate']) for row in rows] == _RATES
  schedule = sampling.RandomEligible(
    learning.training.strategies.Participation(_ROUNDS), 12, 3, 7
  ).for_clients(learning.Clients.of(_CLIENTS).draw_ids)
  cohorts = [schedule.cohort(number) for number in range(_ROUNDS)]
  np.testing.assert_allclose(_weights(result), _by_hand(cohorts), rtol=1e-5)
  config = json.loads((run_dir / 'config.json').read_text())
  told = config['training']['client_learning_rates']
  assert (told['first'], told['last']) == (0.4, 0.05)


def test_it_is_the_same_training_one_by_one(packed, tmp_path):
  alone = _train(
    tmp_path / 'run', client_optimizer=_sgd, packed_simulation=False, test_data=None
  )
  np.testing.assert_allclose(_weights(alone), _weights(packed[1]), rtol=1e-5)
  assert alone.metrics['client_learning_rate'] == 0.05


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_the_rates_of_its_rounds(packed, tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.killing(3), checkpoint_seconds=0.0)
  with pytest.raises(ValueError, match=r'local\.learning_rate_fn\.first: .*\.last: '):
    _train(run_dir, learning_rate_fn=lambda round_num: 0.3 * 0.6**round_num)
  with pytest.raises(ValueError, match='local.learning_rate_fn'):
    _train(run_dir, learning_rate_fn=None)
  _train(run_dir, test_metrics=training_runs.killing(0))
  assert training_runs.lasting(run_dir) == training_runs.lasting(packed[0])


@pytest.mark.parametrize(
  'learning_rate_fn, error, said',
  [
    (lambda number: None, TypeError, r'rate_fn\(0\) must be a number, got None'),
    (lambda number: 0.1 - number, ValueError, r'_fn\(1\) must be .*; got -0.9'),
  ],
)
def test_what_is_no_rate_is_refused_by_name(learning_rate_fn, error, said):
  with pytest.raises(error, match=said):
    client_schedule.ClientSchedule(learning_rate_fn, _sgd, _ROUNDS)


def test_an_optimizer_with_a_rate_of_its_own_is_refused():
  with pytest.raises(TypeError, match='local.optimizer must be a function of the'):
    client_schedule.check_optimizer_fn('local.optimizer', _sgd(0.1))


def test_a_function_that_makes_no_optimizer_is_refused(tmp_path):
  with pytest.raises(TypeError, match='local.optimizer must be a tff.learning.optim'):
    _train(tmp_path / 'run', client_optimizer=lambda rate: rate)

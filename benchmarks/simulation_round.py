"""Measures simulated clients per second, packed and unpacked.

    python -m benchmarks.simulation_round [--cohorts=100,1000,10000] [--rounds=40]

Trains logistic regression (64 features, 10 classes) on clients with 10 random examples
each, in two batches, on all cores:

* packed, as in `learning.train`, with everything that a run does except evaluation: the
  ledger on disk, metrics, events, checkpoints. The time of a round is that between two
  lines of the ledger; with the default mechanism of `experiments.simulate`, and without
  privacy;
* one TFF client for each client, for the first of the cohorts: our process with the
  mechanism, TFF's own with its Gaussian mechanism, and without privacy, with both of
  TFF's loop implementations. The time is proportional to the cohort.

Then a multilayer perceptron of 996,151 parameters, packed: 20 clients a round with 20
examples each, in one batch. If pfl-research on PyTorch is installed (see `_pfl`), it
runs this model and the first of the cohorts as well, and our rates are printed as
multiples of its rates.

Rates are those of the median round. The last line is the ratio of packed to the best of
TFF's own, with privacy, for the first of the cohorts.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import datetime
import statistics
import tempfile
import time
from typing import Any, Optional

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(
    __doc__ or '', cohorts='100,1000,10000', rounds=40, unpacked_rounds=6
  )

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import _perceptron
from benchmarks import _pfl
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger

_UNTIMED = 5
_PFL_ROUNDS = 20
_MIN_SEPARATION = 10
_OPTIMIZER = tff.learning.optimizers.build_sgdm(0.1)
_LOOPS = tff.learning.LoopImplementation


class _Task:
  """A perceptron, and clients with random examples."""

  def __init__(
    self, layers: tuple[int, ...], num_clients: int, num_examples: int, batch_size: int
  ):
    self.layers, self.batch_size = layers, batch_size
    self.ids = range(num_clients)
    rng = np.random.default_rng(0)
    self._x = rng.normal(size=[num_examples, layers[0]]).astype(np.float32)
    self._y = rng.integers(layers[-1], size=num_examples)

  def examples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same examples for each client, in another order and scale."""
    return np.roll(self._x, number, axis=0) * np.float32(1 + number % 7), self._y


def _mechanism(num_rounds: int) -> accounting.Mechanism:
  participation = strategies.Participation(num_rounds, _MIN_SEPARATION)
  return accounting.Mechanism('banded', participation, noise_multiplier=1.0)


def _packed(
  task: _Task, data: Any, cohort: int, rounds: int, *, with_privacy: bool
) -> float:
  """Returns clients per second of a training, evaluation left out."""
  rounds += _UNTIMED
  with tempfile.TemporaryDirectory() as scratch:
    with open(os.devnull, 'w') as devnull, contextlib.redirect_stderr(devnull):
      learning.train(
        _perceptron.model(task.layers),
        data,
        _mechanism(rounds) if with_privacy else None,
        os.path.join(scratch, 'run'),
        delta=1e-6,
        clip_norm=1.0 if with_privacy else None,
        clients_per_round=cohort,
        num_rounds=rounds,
        seed=1,
        local=learning.ClientTraining(task.batch_size, optimizer=_OPTIMIZER),
        run=learning.RunOptions(noise_seed=1 if with_privacy else None),
      )
    entries = ledger.read(os.path.join(scratch, 'run', 'ledger.jsonl')).entries
  times = [datetime.datetime.fromisoformat(entry.time) for entry in entries[_UNTIMED:]]
  seconds = [(b - a).total_seconds() for a, b in zip(times, times[1:])]
  return cohort / statistics.median(seconds)


def _unpacked(task: _Task, cohort: int, rounds: int) -> float:
  """Prints cases with one TFF client for each; returns the best rate of TFF's own."""
  rng = np.random.default_rng(2)
  clients = [task.examples(number) for number in rng.choice(len(task.ids), cohort)]
  data = [
    tf.data.Dataset.from_tensor_slices(each).batch(task.batch_size) for each in clients
  ]
  ours = aggregators.from_mechanism(
    _mechanism(100), clip_norm=1.0, clients_per_round=cohort, seed=1
  )
  plain = tff.aggregators.UnweightedMeanFactory()
  theirs = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=1.0, clients_per_round=cohort, clip=1.0
  )
  best = 0.0
  for name, aggregator in (
    ('our mechanism', ours),
    ("TFF's Gaussian", theirs),
    ('no privacy', plain),
  ):
    for loop in (_LOOPS.DATASET_ITERATOR, _LOOPS.DATASET_REDUCE):
      process = learning.build_dp_fed_avg(
        _perceptron.model(task.layers),
        aggregator,
        client_optimizer_fn=_OPTIMIZER,
        loop_implementation=loop,
      )
      rate = cohort / _seconds_of_a_round(process, data, rounds)
      _print_rate(f'unpacked, {cohort} a round, {name}, {loop.name.lower()}', rate)
      if aggregator is theirs:
        best = max(best, rate)
  return best


def _seconds_of_a_round(process: Any, data: Any, rounds: int) -> float:
  seconds = []
  with learning.runtime.local_runtime():
    state = process.initialize()
    for _ in range(1 + rounds):
      start = time.perf_counter()
      state = process.next(state, data).state
      seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[1:])


def _pfl_research(
  task: _Task, cohort: int, rounds: int, name: str, ours: tuple[float, float]
) -> None:
  """Prints pfl-research's rates, and our rates as multiples of them."""
  rates = []
  for with_privacy in (True, False):
    seconds = _pfl.seconds_of_a_round(
      task.layers,
      task.examples,
      cohort,
      task.batch_size,
      rounds,
      with_privacy=with_privacy,
    )
    if seconds is None:
      print(_pfl.HOW_TO_MAKE, flush=True)
      return
    rates.append(cohort / seconds)
  _print_rate(f'pfl-research on PyTorch, {name}{cohort} a round', *rates)
  private, plain = (our / theirs for our, theirs in zip(ours, rates))
  print(
    f'  ours to pfl-research: {private:.2f} with DP, {plain:.2f} without', flush=True
  )


def _print_rate(name: str, rate: float, plain: Optional[float] = None) -> None:
  text = f'{name:60} {rate:9.0f} clients/s'
  if plain is not None:
    text += f'   without privacy {plain:9.0f}: DP adds {plain / rate - 1:.0%}'
  print(text, flush=True)


def _with_and_without(
  task: _Task, data: Any, cohort: int, rounds: int, name: str
) -> tuple[float, float]:
  """Prints and returns the rates with and without privacy."""
  private, plain = (
    _packed(task, data, cohort, rounds, with_privacy=with_privacy)
    for with_privacy in (True, False)
  )
  _print_rate(f'packed, {name}{cohort} a round', private, plain)
  return private, plain


def main() -> None:
  # As in `experiments.simulate`: packs use the other processors.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  cohorts = [int(each) for each in _FLAGS.cohorts.split(',')]
  small = _Task((64, 10), max(2000, _MIN_SEPARATION * max(cohorts)), 10, 5)
  large = _Task((784, 796, 450, 27), 200, 20, 20)
  with tempfile.TemporaryDirectory() as scratch:
    data = learning.packed.lay_out(
      learning.Clients.of(small), os.path.join(scratch, 'small')
    )
    packed = [
      _with_and_without(small, data, cohort, _FLAGS.rounds, '') for cohort in cohorts
    ]
    _pfl_research(small, cohorts[0], _PFL_ROUNDS, '', packed[0])
    data = learning.packed.lay_out(
      learning.Clients.of(large), os.path.join(scratch, 'large')
    )
    name = '996,151 parameters, '
    rates = _with_and_without(large, data, 20, _FLAGS.rounds, name)
    _pfl_research(large, 20, _PFL_ROUNDS, name, rates)
    best = _unpacked(small, cohorts[0], _FLAGS.unpacked_rounds)
  print(f"packed to the best of TFF's own: {packed[0][0] / best:.1f}")


if __name__ == '__main__':
  main()

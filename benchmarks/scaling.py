"""Rounds on several workers of this machine, against the same rounds in one process.

    python -m benchmarks.scaling [--cohorts=100,1000,10000,100000] [--rounds=8]

Trains perceptrons (64 features, 10 classes) of about 10^3 to 10^6 parameters on clients
with 20 random examples each, in one batch, with 64-banded noise, in packs: in this
process's own runtime with all its threads, and on 1, 2 and as many workers as there are
processors, each a process of this machine. A line for each case has

* clients a second and seconds of the median round, and the efficiency: clients a second
  over those of the single process for the same model and cohort;
* megabytes sent to workers and received from them in a round;
* the largest resident memory until then, in megabytes, of this program with its runtime
  and, apart from them, of the worker that had most.

Cohorts whose clients times parameters are above --largest are left out. The round of
one client gives the overhead of a round.

Then the cost of a round is fitted to these cases, by non-negative least squares of
relative errors: what a round costs, what each pack does and each parameter of its sum,
what telling each worker each parameter costs, and what training takes, by clients and
by clients times parameters, shared by the workers or the processors, if these are
fewer. It is extrapolated, and marked so, to 100 workers with a processor each and a
cohort of 10^6; what is sent goes through memory here and not through a network, which
has to carry the megabytes that are printed with it.

The last lines are the ratios for two workers with the largest model, and the rates of
the largest cohort.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(
    __doc__ or '',
    cohorts='1,100,1000,10000,100000',
    parameters='1000,10000,100000,1000000',
    largest=2 * 10**8,
    rounds=8,
  )

import numpy as np
import scipy.optimize
import tensorflow_federated as tff

from benchmarks import _perceptron
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import cutting
from tff_dp_aggregators.learning.packed import spread

_FEATURES, _CLASSES, _EXAMPLES = 64, 10, 20
_UNTIMED = 2
_FAR_WORKERS, _FAR_COHORT = 100, 10**6
_TERMS = ('round', 'pack', 'pack x 10^6', 'worker x 10^6', 'client', 'client x 10^6')


class _Clients:
  """Clients with random examples."""

  def __init__(self, number: int):
    self._number = number
    rng = np.random.default_rng(0)
    self._x = rng.normal(size=[_EXAMPLES, _FEATURES]).astype(np.float32)
    self._y = rng.integers(_CLASSES, size=_EXAMPLES)

  def __len__(self) -> int:
    return self._number

  def examples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of a client: the same as the others', in another order and scale."""
    return np.roll(self._x, number, axis=0) * np.float32(1 + number % 7), self._y


class _Case(NamedTuple):
  """What was timed: `workers` is 0 for the single process."""

  parameters: int
  cohort: int
  workers: int
  packs: int
  seconds: float

  def terms(self, processors: int) -> list[float]:
    """What the cost has, each times a coefficient."""
    millions = self.parameters / 1e6
    share = self.cohort / min(max(1, self.workers), processors)
    return [
      1.0,
      self.packs,
      self.packs * millions,
      self.workers * millions,
      share,
      share * millions,
    ]


def _layers(parameters: int) -> tuple[int, ...]:
  """A perceptron of about so many parameters."""
  units = (parameters - _CLASSES) // (_FEATURES + 1 + _CLASSES)
  return (_FEATURES, units, _CLASSES)


@contextlib.contextmanager
def _simulation(
  layers: tuple[int, ...], data: packed.PackedData, workers: int
) -> Iterator[packed.PackedFedAvg]:
  made = (
    packed.LocalTraining(
      _perceptron.model(layers),
      tff.learning.optimizers.build_sgdm(0.1),
      batch_size=_EXAMPLES,
    ),
    aggregators.banded(
      strategies.Participation(1000, min_separation=64),
      clip_norm=1.0,
      noise_multiplier=1.0,
      clients_per_round=1000,
      seed=noise.Seed(1),
    ),
    data,
  )
  optimizer = tff.learning.optimizers.build_sgdm(1.0)
  with learning.runtime.local_runtime():
    if not workers:
      yield packed.PackedFedAvg(*made, server_optimizer=optimizer)
      return
    simulation = spread.SpreadFedAvg(
      *made,
      learning.Workers(f'local:{workers}'),
      server_optimizer=optimizer,
      say=lambda line: None,
    )
    with contextlib.closing(simulation):
      yield simulation


def _time(
  simulation: packed.PackedFedAvg, num_clients: int, cohort: int, rounds: int
) -> float:
  """Seconds of the median round."""
  rng, seconds = np.random.default_rng(3), []
  state = simulation.initialize()
  for this_round in range(_UNTIMED + rounds):
    clients = rng.choice(num_clients, cohort, replace=False)
    keys = local_order.keys(1, this_round, clients)
    begun = time.perf_counter()
    state, _ = simulation.next(state, clients, keys)
    seconds.append(time.perf_counter() - begun)
  return statistics.median(seconds[_UNTIMED:])


def _memory() -> tuple[int, int]:
  """Largest resident megabytes: of this program and its runtime, and of a worker."""
  children: dict[int, list[int]] = {}
  peaks = {}
  for path in pathlib.Path('/proc').glob('[0-9]*/status'):
    with contextlib.suppress(OSError):
      fields = dict(
        line.split(':\t', 1) for line in path.read_text().splitlines() if ':\t' in line
      )
      peaks[int(fields['Pid'])] = int(fields.get('VmHWM', '0').split()[0]) // 1024
      children.setdefault(int(fields['PPid']), []).append(int(fields['Pid']))
  own = os.getpid()
  # A worker is a program that has a process of TFF's; the runtime is one itself.
  near = [own] + [each for each in children.get(own, []) if each not in children]
  far = [
    peaks[grandchild]
    for child in children.get(own, [])
    for grandchild in children.get(child, [])
  ]
  return sum(peaks[each] for each in near), max(far, default=0)


def _say(case: _Case, alone: float, sent: Optional[tuple[float, float]]) -> None:
  where = f'{case.workers} workers' if case.workers else 'single process'
  text = (
    f'{case.parameters:8d} parameters  {case.cohort:7d} clients  {where:14}'
    f' {case.packs:4d} packs  {case.cohort / case.seconds:9.0f} clients/s'
    f'  {case.seconds:8.4f} s'
  )
  near, far = _memory()
  if sent is not None:
    text += (
      f'  efficiency {alone / case.seconds:4.2f}'
      f'  sent {sent[0]:8.3f} MB  received {sent[1]:8.3f} MB'
    )
  print(f'{text}  memory {near} + {far} MB', flush=True)


def _cases(
  parameters: int, cohorts: list[int], rounds: int, data: packed.PackedData
) -> list[_Case]:
  """Times and prints all cases of a model."""
  layers = _layers(parameters)
  weights = _perceptron.model(layers).initial_weights[0]
  size = sum(int(np.size(each)) for each in weights)
  found: list[_Case] = []
  alone: dict[int, float] = {}
  for workers in sorted({0, 1, 2, os.cpu_count() or 1}):
    with _simulation(layers, data, workers) as simulation:
      for cohort in cohorts:
        traffic = getattr(simulation, 'traffic', None)
        before = (0, 0) if traffic is None else (traffic.sent, traffic.received)
        seconds = _time(simulation, len(data), cohort, rounds)
        sizes = np.full(cohort, _EXAMPLES)
        packs = cutting.num_packs(sizes, 1, side_by_side=simulation.one_by_one is None)
        case = _Case(size, cohort, workers, packs, seconds)
        alone.setdefault(cohort, seconds)
        sent = None
        if traffic is not None:
          per_round = 1e6 * (_UNTIMED + rounds)
          sent = (
            (traffic.sent - before[0]) / per_round,
            (traffic.received - before[1]) / per_round,
          )
        _say(case, alone[cohort], sent)
        found.append(case)
  return found


def _fit(cases: list[_Case]) -> np.ndarray:
  """Seconds of each of the terms of the cost; prints them and how well they fit."""
  processors = os.cpu_count() or 1
  spread_cases = [case for case in cases if case.workers]
  terms = np.array([case.terms(processors) for case in spread_cases])
  seconds = np.array([case.seconds for case in spread_cases])
  cost, _ = scipy.optimize.nnls(terms / seconds[:, np.newaxis], np.ones(len(seconds)))
  print('cost of a round on workers, fitted, in seconds for each')
  for name, each in zip(_TERMS, cost):
    print(f'  {name:14} {each:.3g}')
  errors = np.abs(terms @ cost / seconds - 1)
  print(f'  relative error: median {np.median(errors):.2f}, largest {errors.max():.2f}')
  return cost


def _extrapolate(cost: np.ndarray, parameters: list[int]) -> None:
  """Prints what the cost comes to where nothing was measured."""
  sizes = np.full(_FAR_COHORT, _EXAMPLES)
  for size in parameters:
    packs = cutting.num_packs(sizes, 1, side_by_side=True)
    case = _Case(size, _FAR_COHORT, _FAR_WORKERS, packs, np.nan)
    terms = np.array(case.terms(_FAR_WORKERS)) * cost
    sent = (_FAR_WORKERS * 4 + packs * 8) * size / 1e9
    print(
      f'extrapolated: {size:8d} parameters, {_FAR_COHORT} clients, {_FAR_WORKERS} '
      f'workers: {terms.sum():8.2f} s a round, of which training {terms[4:].sum():.2f} '
      f's; {_FAR_COHORT / terms.sum():.0f} clients/s; some {sent:.2f} GB on the network'
    )


def main() -> None:
  """Prints a line for each case."""
  cohorts = sorted(int(each) for each in _FLAGS.cohorts.split(','))
  cases: list[_Case] = []
  with tempfile.TemporaryDirectory() as scratch:
    data = packed.lay_out(_Clients(max(cohorts)), os.path.join(scratch, 'data'))
    sizes = sorted(int(each) for each in _FLAGS.parameters.split(','))
    for parameters in sizes:
      chosen = [each for each in cohorts if each * parameters <= _FLAGS.largest]
      cases += _cases(parameters, chosen, _FLAGS.rounds, data)
  _extrapolate(_fit(cases), sizes)
  _conclude(cases)


def _conclude(cases: list[_Case]) -> None:
  largest = max(case.parameters for case in cases)
  by_key: dict[Any, float] = {
    (case.parameters, case.cohort, case.workers): case.seconds for case in cases
  }
  for case in cases:
    if case.parameters == largest and case.workers == 2 and case.cohort > 1:
      ratio = by_key[largest, case.cohort, 0] / case.seconds
      print(
        f'two workers to one process with all threads, {largest} parameters, '
        f'{case.cohort} clients: {ratio:.2f}'
      )
  cohort = max(case.cohort for case in cases)
  for case in cases:
    if case.cohort == cohort:
      where = f'{case.workers} workers' if case.workers else 'single process'
      print(
        f'{case.parameters} parameters, {cohort} clients a round, {where}: '
        f'{cohort / case.seconds:.0f} clients/s'
      )


if __name__ == '__main__':
  main()

"""Rounds on several workers of this machine, against the same rounds in one process.

    python -m benchmarks.scaling [--cohorts=100,1000,10000,100000] [--rounds=8]

Trains perceptrons (64 features, 10 classes) of about 10^3 to 10^6 parameters on clients
with 20 random examples each, in one batch, with 64-banded noise, in packs: in this
process's own runtime with all its threads, and on 1, 2 and as many workers as there are
processors, each a process of this machine. A line for each case has

* clients a second and seconds of the median round, and the efficiency: clients a second
  over those of the single process for the same model and cohort;
* megabytes sent to workers and received from them in a round;
* the largest memory of its rounds, in megabytes, of this program with its runtime and,
  apart from them, of the worker that had most: what is resident, but for the files of
  the clients' examples.

Cohorts whose clients times parameters are above --largest are left out. The round of
one client gives the overhead of a round.

Then the cost of a round is fitted to these cases, by non-negative least squares of
relative errors: what a round costs, what each pack does and each parameter of its sum,
what telling each worker each parameter costs, and what training takes, by clients and
by clients times parameters, shared by the workers or the processors, if these are
fewer. It is extrapolated, and marked so, to 100 workers with a processor each and a
cohort of 10^6; what is sent goes through memory here and not through a network, which
has to carry the megabytes that are printed with it.

At last come clients as small as those of the digits, with 6 images of 64 numbers and a
logistic regression (650 parameters), in --small_cohorts of one population, with the
bytes a client by which memory grows from cohorts of 10^4, whose packs train as many at
once as any, to the largest; and the ratios for two workers with the largest model, and
the rates of the largest cohort.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import pathlib
import statistics
import tempfile
import threading
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
    small_cohorts='1000,10000,100000,300000',
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
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import cutting
from tff_dp_aggregators.learning.packed import spread

_FEATURES, _CLASSES, _EXAMPLES, _FEW_EXAMPLES = 64, 10, 20, 6
_SAMPLE_SECONDS = 0.02
_UNTIMED = 2
_FULL_PACKS = 10**4
_FAR_WORKERS, _FAR_COHORT = 100, 10**6
_TERMS = ('round', 'pack', 'pack x 10^6', 'worker x 10^6', 'client', 'client x 10^6')


class _Clients:
  """Clients with random examples."""

  def __init__(self, number: int, examples: int):
    self._number = number
    rng = np.random.default_rng(0)
    self._x = rng.normal(size=[examples, _FEATURES]).astype(np.float32)
    self._y = rng.integers(_CLASSES, size=examples)

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
  memory: tuple[int, int] = (0, 0)

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
  layers: tuple[int, ...], data: packed.PackedData, workers: int, examples: int
) -> Iterator[packed.PackedFedAvg]:
  made = (
    packed.LocalTraining(
      _perceptron.model(layers),
      tff.learning.optimizers.build_sgdm(0.1),
      batch_size=examples,
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


def _status(pid: int) -> dict[str, str]:
  with contextlib.suppress(OSError):
    lines = pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
    return dict(line.split(':\t', 1) for line in lines if ':\t' in line)
  return {}


def _children(pid: int) -> list[int]:
  with contextlib.suppress(OSError):
    tasks = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
    return [int(each) for task in tasks for each in task.read_text().split()]
  return []


def _memory() -> tuple[int, int]:
  """Bytes now, but for files: of this program with its runtime, and of a worker."""

  def anonymous(pid: int) -> int:
    status = _status(pid)
    kilobytes = (status.get(name, '0').split()[0] for name in ('RssAnon', 'RssShmem'))
    return sum(map(int, kilobytes)) * 1024

  # A worker is a program that has a process of TFF's; the runtime is one itself.
  children = {each: _children(each) for each in _children(os.getpid())}
  near = [os.getpid(), *(each for each in children if not children[each])]
  far = [each for grandchildren in children.values() for each in grandchildren]
  return sum(map(anonymous, near)), max(map(anonymous, far), default=0)


class _Peak:
  """The largest memory while something is run."""

  def __enter__(self) -> '_Peak':
    self.memory = (0, 0)
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._over.wait(_SAMPLE_SECONDS):
      now = _memory()
      self.memory = (max(self.memory[0], now[0]), max(self.memory[1], now[1]))


def _say(case: _Case, alone: float, sent: Optional[tuple[float, float]]) -> None:
  where = f'{case.workers} workers' if case.workers else 'single process'
  text = (
    f'{case.parameters:8d} parameters  {case.cohort:7d} clients  {where:14}'
    f' {case.packs:4d} packs  {case.cohort / case.seconds:9.0f} clients/s'
    f'  {case.seconds:8.4f} s'
  )
  near, far = (round(each / 1e6) for each in case.memory)
  if sent is not None:
    text += (
      f'  efficiency {alone / case.seconds:4.2f}'
      f'  sent {sent[0]:8.3f} MB  received {sent[1]:8.3f} MB'
    )
  print(f'{text}  memory {near} + {far} MB', flush=True)


def _cases(
  layers: tuple[int, ...],
  cohorts: list[int],
  rounds: int,
  data: packed.PackedData,
  examples: int,
) -> list[_Case]:
  """Times and prints all cases of a model."""
  weights = _perceptron.model(layers).initial_weights[0]
  size = sum(int(np.size(each)) for each in weights)
  found: list[_Case] = []
  alone: dict[int, float] = {}
  for workers in sorted({0, 1, 2, machine.usable_processors()}):
    with _simulation(layers, data, workers, examples) as simulation:
      for cohort in cohorts:
        traffic = getattr(simulation, 'traffic', None)
        before = (0, 0) if traffic is None else (traffic.sent, traffic.received)
        with _Peak() as peak:
          seconds = _time(simulation, len(data), cohort, rounds)
        sizes = np.full(cohort, examples)
        packs = cutting.num_packs(sizes, 1, side_by_side=simulation.one_by_one is None)
        case = _Case(size, cohort, workers, packs, seconds, peak.memory)
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


def _say_growth(cases: list[_Case]) -> None:
  """Prints by how much memory grows with the cohort."""
  for workers in sorted({case.workers for case in cases}):
    some = [case for case in cases if case.workers == workers]
    some = [case for case in some if case.cohort >= _FULL_PACKS]
    if len(some) < 2:
      continue
    first, last = some[0], some[-1]
    near, far = (
      (after - before) / (last.cohort - first.cohort)
      for before, after in zip(first.memory, last.memory)
    )
    where = f'{workers} workers' if workers else 'single process'
    print(
      f'memory from {first.cohort} to {last.cohort} clients a round, {where}: '
      f'{near:.0f} + {far:.0f} bytes a client'
    )


def _fit(cases: list[_Case]) -> np.ndarray:
  """Seconds of each of the terms of the cost; prints them and how well they fit."""
  processors = machine.usable_processors()
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
    clients = _Clients(max(cohorts), _EXAMPLES)
    data = packed.lay_out(clients, os.path.join(scratch, 'data'))
    sizes = sorted(int(each) for each in _FLAGS.parameters.split(','))
    for parameters in sizes:
      chosen = [each for each in cohorts if each * parameters <= _FLAGS.largest]
      cases += _cases(_layers(parameters), chosen, _FLAGS.rounds, data, _EXAMPLES)
    _extrapolate(_fit(cases), sizes)
    small = sorted(int(each) for each in _FLAGS.small_cohorts.split(','))
    clients = _Clients(max(small), _FEW_EXAMPLES)
    data = packed.lay_out(clients, os.path.join(scratch, 'small'))
    layers = (_FEATURES, _CLASSES)
    print(f'logistic regression, {_FEW_EXAMPLES} examples a client:')
    _say_growth(_cases(layers, small, _FLAGS.rounds, data, _FEW_EXAMPLES))
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

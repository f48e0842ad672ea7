"""Rounds on workers that are struck by faults, each compared with what it has to be."""

import collections
import contextlib
import dataclasses
import faulthandler
import hashlib
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from benchmarks.faults import kinds as kinds_lib
from benchmarks.faults import sites as sites_lib
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import spread
from tff_dp_aggregators.learning.remote import crew
from tff_dp_aggregators.learning.remote import member

# As users may set them: a worker's heartbeat, and when it kills what hangs.
TIMEOUT_SECONDS, STALL_SECONDS = 2.0, 4.0
PATIENCE_SECONDS = 45.0
# A round may wait for as long as no worker is sound (`_LONGEST_DARK_SECONDS`), until
# each is found lost, and is tried again (`member`'s pauses); on a machine that has more
# to do than this.
HANG_SECONDS = 60.0
_LONGEST_DARK_SECONDS = 9.0
_DARK_CHANCE = 0.04
# After which a fault that nobody noticed is over.
_SETTLE_SECONDS = 2 * TIMEOUT_SECONDS
_BACK_SECONDS = 90.0
_TICK_SECONDS = 0.05
_MOST_LOST_ROUNDS = 3
# Rounds of the training, which begins anew after them.
_NUM_ROUNDS, _NUM_CLIENTS, _COHORT, _NUM_PACKS = 24, 96, 48, 8
_FEATURES, _CLASSES, _EXAMPLES = 64, 10, 24
_SEED = 7


class Pauses(NamedTuple):
  """What is shortened for a campaign, so that workers are struck more often.

  Attributes:
    after_garbage: Until a worker that answered garbage is tried again.
    shortest_pack_limit: How long a pack may take at least, before its worker is given
      up.
  """

  after_garbage: float = 5.0
  shortest_pack_limit: float = 15.0


@contextlib.contextmanager
def shortened(pauses: Pauses) -> Iterator[None]:
  """Has workers tried again sooner, while inside."""
  before = member._LONG_PAUSE, crew._SHORTEST_LIMIT_SECONDS
  member._LONG_PAUSE = pauses.after_garbage
  crew._SHORTEST_LIMIT_SECONDS = pauses.shortest_pack_limit
  try:
    yield
  finally:
    member._LONG_PAUSE, crew._SHORTEST_LIMIT_SECONDS = before


class _Clients:
  """Clients of some examples each."""

  def __len__(self) -> int:
    return _NUM_CLIENTS

  def examples(self, number: int) -> Any:
    rng = np.random.default_rng([_SEED, number])
    size = 1 + (5 * number) % _EXAMPLES
    x = rng.normal(size=[size, _FEATURES]).astype(np.float32)
    return collections.OrderedDict(
      x=x, y=rng.integers(_CLASSES, size=size).astype(np.int32)
    )


def _model() -> tff.learning.models.FunctionalModel:
  @tf.function
  def predict(weights: Any, x: Any, training: bool) -> Any:
    (kernel, bias), _ = weights
    return x @ kernel + bias

  @tf.function
  def loss(output: Any, label: Any, sample_weight: Any = None) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
    if sample_weight is not None:
      losses *= sample_weight
    return tf.reduce_mean(losses)

  rng = np.random.default_rng(_SEED)
  kernel = rng.normal(size=[_FEATURES, _CLASSES]).astype(np.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((kernel, np.zeros(_CLASSES, np.float32)), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, _FEATURES], tf.float32), y=tf.TensorSpec([None], tf.int32)
    ),
  )


class Training:
  """A small training, with and without workers."""

  def __init__(self, folder: str):
    self._data = packed.lay_out(_Clients(), os.path.join(folder, 'data'))
    optimizers = tff.learning.optimizers
    self._local = packed.LocalTraining(
      _model(), optimizers.build_sgdm(0.3, momentum=0.5), batch_size=4, local_epochs=2
    )
    self._arguments: dict[str, Any] = {
      'server_optimizer': optimizers.build_sgdm(0.7, momentum=0.9),
      'num_packs': _NUM_PACKS,
    }

  @property
  def _made(self) -> Any:
    # A factory that is used twice makes other noise the second time.
    aggregator = aggregators.banded(
      strategies.Participation(_NUM_ROUNDS, min_separation=2),
      noise_multiplier=0.3,
      clip_norm=0.4,
      clients_per_round=_COHORT,
      generator='philox',
      seed=noise.Seed(_SEED),
    )
    return self._local, aggregator, self._data

  def here(self) -> packed.PackedFedAvg:
    """In this process."""
    return packed.PackedFedAvg(*self._made, **self._arguments)

  def on_workers(
    self, workers: learning.Workers, say: Callable[[str], None]
  ) -> spread.SpreadFedAvg:
    """On workers."""
    return spread.SpreadFedAvg(*self._made, workers, say=say, **self._arguments)

  def round(
    self, simulation: packed.PackedFedAvg, state: packed.HeldState, number: int
  ) -> tuple[packed.HeldState, bytes]:
    """Runs a round: the state after it, and a fingerprint of all that it came to."""
    clients = (np.arange(_COHORT) * 2 + number) % _NUM_CLIENTS
    keys = local_order.keys(_SEED, number, clients)
    after, metrics = simulation.next(state, clients, keys)
    found = hashlib.sha256()
    for leaf in tf.nest.flatten((simulation.release(after), metrics)):
      array = np.asarray(leaf)
      found.update(repr((array.dtype.str, array.shape)).encode() + array.tobytes())
    return after, found.digest()


@dataclasses.dataclass
class Fault:
  """A fault, and what was noticed of it; times of `time.monotonic`.

  Attributes:
    kind: Of which kind.
    site: At which worker.
    begun: When it began.
    ends: When it is to end.
    end: Ends it; `None` once it has ended.
    lost: When its worker was said to be lost; `None` if it was not.
    why: What was said then.
  """

  kind: kinds_lib.Kind
  site: sites_lib.Site
  begun: float
  ends: float
  end: Optional[Callable[[], None]]
  lost: Optional[float] = None
  why: str = ''


class Footprint(NamedTuple):
  """What this process has of what may grow: megabytes, threads, open files."""

  megabytes: float
  threads: int
  files: int

  @classmethod
  def now(cls) -> 'Footprint':
    """As it is."""
    process = psutil.Process()
    return cls(
      process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()
    )


@dataclasses.dataclass
class Outcome:
  """What a campaign came to.

  Attributes:
    faults: All that were made.
    rounds: How many were run.
    hangs: Rounds that did not end in time.
    errors: Of rounds that were lost, each with its traceback.
    different: Rounds that came to other bits.
    longest: The longest round in seconds.
    given_again: Rounds of which packs were given to a second worker.
    notes: Of what happened to workers, for a ledger.
    unnoted: Losses of workers in use that the notes have not.
    not_back: Workers that were not taken into use again in the end.
    left_over: Threads that were left when the training had let go of its workers.
    footprints: Of this process, after the first rounds and after the last.
    has_network: Whether a worker was on a network of its own.
  """

  faults: list[Fault] = dataclasses.field(default_factory=list)
  rounds: int = 0
  hangs: int = 0
  errors: list[str] = dataclasses.field(default_factory=list)
  different: int = 0
  longest: float = 0.0
  given_again: int = 0
  notes: list[str] = dataclasses.field(default_factory=list)
  unnoted: int = 0
  not_back: list[str] = dataclasses.field(default_factory=list)
  left_over: list[str] = dataclasses.field(default_factory=list)
  footprints: list[Footprint] = dataclasses.field(default_factory=list)
  has_network: bool = False

  @property
  def is_good(self) -> bool:
    """Whether nothing went wrong."""
    return not (
      self.hangs
      or self.errors
      or self.different
      or self.unnoted
      or self.not_back
      or self.left_over
    )


class _Watched:
  """What the training says of its workers, and which of them it has in use."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self.in_use: dict[str, float] = {}
    self.lost_in_use = 0
    self._lost: list[tuple[float, str, str]] = []

  def say(self, line: str) -> None:
    """Takes a line of the training."""
    words = line.split(' ', 4)
    if words[0] != 'worker' or words[2] != 'is':
      return
    now, name = time.monotonic(), words[1]
    with self._lock:
      if words[3] == 'there,':
        self.in_use[name] = now
      elif words[3] == 'lost:':
        self.lost_in_use += self.in_use.pop(name, None) is not None
        self._lost.append((now, name, words[4]))

  def lost(self) -> list[tuple[float, str, str]]:
    """When who was lost and why, since this was asked before."""
    with self._lock:
      lost, self._lost = self._lost, []
    return lost


class _Rounds:
  """Runs rounds in a thread of its own, until told to stop."""

  def __init__(
    self,
    training: Training,
    workers: learning.Workers,
    outcome: Outcome,
    rest_seconds: float,
  ):
    self._training, self._workers, self._outcome = training, workers, outcome
    self._rest_seconds = rest_seconds
    self.watched = _Watched()
    self.begun: Optional[float] = None
    self.over, self.ended = threading.Event(), threading.Event()
    self.expected: list[bytes] = []
    self._crashed: Optional[BaseException] = None
    threading.Thread(target=self._run, daemon=True, name='rounds').start()

  def check(self) -> None:
    """Raises what ended the rounds, if that was not a fault's doing."""
    if self._crashed is not None:
      raise self._crashed

  def _run(self) -> None:
    try:
      with learning.runtime.local_runtime():
        here = self._training.here()
        state = here.initialize()
        for number in range(_NUM_ROUNDS):
          state, digest = self._training.round(here, state, number)
          self.expected.append(digest)
        # Threads of TFF and gRPC that stay are there by now.
        before = {each.ident for each in threading.enumerate()}
        while not self.over.is_set():
          self._run_until_lost()
          if len(self._outcome.errors) >= _MOST_LOST_ROUNDS:
            break
        self._outcome.left_over = _left_over(before)
    except BaseException as e:
      self._crashed = e
    finally:
      self.ended.set()

  def _run_until_lost(self) -> None:
    simulation = self._training.on_workers(self._workers, self.watched.say)
    with contextlib.closing(simulation), self._noted(simulation):
      number, state = 0, simulation.initialize()
      given_again = 0
      while not self.over.is_set():
        begun = self.begun = time.monotonic()
        try:
          state, digest = self._training.round(simulation, state, number)
        except Exception:
          self._outcome.errors.append(traceback.format_exc())
          return
        finally:
          self.begun = None
          self._outcome.longest = max(self._outcome.longest, time.monotonic() - begun)
          self._outcome.rounds += 1
        number += 1
        is_other = digest != self.expected[number - 1]
        self._outcome.different += is_other
        self._outcome.given_again += simulation.given_again > given_again
        given_again = simulation.given_again
        if is_other or number == _NUM_ROUNDS:
          number, state = 0, simulation.initialize()
          self._outcome.notes += simulation.notes()
        self.over.wait(self._rest_seconds)

  @contextlib.contextmanager
  def _noted(self, simulation: spread.SpreadFedAvg) -> Iterator[None]:
    try:
      yield
    finally:
      self._outcome.notes += simulation.notes()


def _left_over(before: set[Optional[int]]) -> list[str]:
  """Names of threads that came and did not end within some seconds."""
  deadline = time.monotonic() + 10.0
  while True:
    found = [each.name for each in threading.enumerate() if each.ident not in before]
    if not found or time.monotonic() > deadline:
      return found
    time.sleep(_TICK_SECONDS)


class Campaign:
  """Faults at random moments, at random workers."""

  def __init__(
    self,
    *,
    faults: int,
    seed: int,
    workers: int,
    pause_seconds: float = 0.5,
    rest_seconds: float = 0.0,
    say: Callable[[str], None],
    one_of_each: bool = False,
  ):
    """Prepares it.

    Args:
      faults: How many, at least.
      seed: Of what is random.
      workers: How many workers, two at least.
      pause_seconds: Between faults, in the mean.
      rest_seconds: Between rounds, in which this process does nothing.
      say: Is given a line now and then.
      one_of_each: Whether kinds come in turn, instead of at random.

    Raises:
      ValueError: If there are fewer than two workers, or no fault.
    """
    if workers < 2:
      raise ValueError(f'workers={workers}: give two, so that one is sound, or more.')
    if faults < 1:
      raise ValueError(f'faults={faults}: give one or more.')
    self._num_faults, self._num_workers = faults, workers
    self._pause_seconds, self._say = pause_seconds, say
    self._rest_seconds = rest_seconds
    self._rng = random.Random(seed)
    self._kinds = kinds_lib.all_kinds(
      _other_answer(), Pauses().shortest_pack_limit + TIMEOUT_SECONDS
    )
    self._turns = list(self._kinds) if one_of_each else []
    self._active: dict[str, Fault] = {}
    self._outcome = Outcome()

  def run(self) -> Outcome:
    """Runs it."""
    outcome = self._outcome
    with contextlib.ExitStack() as stack:
      stack.enter_context(shortened(Pauses()))
      folder = stack.enter_context(tempfile.TemporaryDirectory())
      network = stack.enter_context(sites_lib.network())
      outcome.has_network = network is not None
      if network is None:
        self._turns = [each for each in self._turns if not each.needs_network]
      sites = stack.enter_context(
        sites_lib.running(self._num_workers, folder, STALL_SECONDS, network)
      )
      for site in sites[1:]:
        site.start()
      rounds = _Rounds(
        Training(folder),
        learning.Workers(
          ','.join(site.address for site in sites),
          trusted_network=network is not None,
          timeout_seconds=TIMEOUT_SECONDS,
          patience_seconds=PATIENCE_SECONDS,
        ),
        outcome,
        self._rest_seconds,
      )
      self._strike(sites, rounds)
    return outcome

  def _strike(self, sites: list[sites_lib.Site], rounds: _Rounds) -> None:
    outcome = self._outcome
    self._wait(rounds, lambda: outcome.rounds >= 5, seconds=180.0)
    outcome.footprints.append(Footprint.now())
    sites[0].start()  # One that comes later than the others.
    next_time = time.monotonic()
    told = 0
    while self._goes_on(rounds) and len(outcome.faults) < self._num_faults:
      self._end_what_is_due(rounds)
      if time.monotonic() > next_time:
        self._inject(sites, rounds)
        next_time += self._rng.expovariate(1 / self._pause_seconds)
        next_time = max(next_time, time.monotonic())
      if len(outcome.faults) >= told + 20:
        told = len(outcome.faults)
        self._say(f'{told} faults, {outcome.rounds} rounds')
      time.sleep(_TICK_SECONDS)
    self._wait(rounds, lambda: not self._active, seconds=_BACK_SECONDS)
    self._wait(
      rounds,
      lambda: len(rounds.watched.in_use) == len(sites),
      seconds=_BACK_SECONDS,
    )
    if not rounds.ended.is_set():
      in_use = rounds.watched.in_use
      outcome.not_back = [each.address for each in sites if each.address not in in_use]
    self._wait(rounds, _after(outcome.rounds + 5, outcome), seconds=HANG_SECONDS)
    outcome.footprints.append(Footprint.now())
    lost_in_use = rounds.watched.lost_in_use
    rounds.over.set()
    if not outcome.hangs and not rounds.ended.wait(2 * HANG_SECONDS):
      self._hang(rounds)
    rounds.check()
    noted = sum(' is lost: ' in note for note in outcome.notes)
    outcome.unnoted = max(0, lost_in_use - noted)

  def _wait(
    self, rounds: _Rounds, condition: Callable[[], bool], seconds: float
  ) -> None:
    deadline = time.monotonic() + seconds
    while self._goes_on(rounds) and not condition() and time.monotonic() < deadline:
      self._end_what_is_due(rounds)
      time.sleep(_TICK_SECONDS)

  def _goes_on(self, rounds: _Rounds) -> bool:
    """Whether rounds go on; looks for one that hangs."""
    rounds.check()
    begun = rounds.begun
    if begun is not None and time.monotonic() - begun > HANG_SECONDS:
      self._hang(rounds)
    return not self._outcome.hangs and not rounds.ended.is_set()

  def _hang(self, rounds: _Rounds) -> None:
    if not self._outcome.hangs:
      self._outcome.hangs += 1
      faulthandler.dump_traceback(sys.__stderr__, all_threads=True)

  def _end_what_is_due(self, rounds: _Rounds) -> None:
    now = time.monotonic()
    for when, name, why in rounds.watched.lost():
      fault = self._active.get(name)
      if fault is not None and fault.lost is None and when >= fault.begun:
        fault.lost, fault.why = when, why
    for name, fault in list(self._active.items()):
      if fault.end is not None and now >= fault.ends:
        fault.end()
        fault.end, fault.ends = None, now
      if fault.end is not None:
        continue
      joined = rounds.watched.in_use.get(name)
      if joined is None or fault.lost is None and now < fault.ends + _SETTLE_SECONDS:
        continue
      if fault.lost is None or joined > fault.lost:
        del self._active[name]

  def _inject(self, sites: list[sites_lib.Site], rounds: _Rounds) -> None:
    sound = [
      site
      for site in sites
      if site.address in rounds.watched.in_use and site.address not in self._active
    ]
    one_fails = any(fault.kind.fails for fault in self._active.values())
    if not one_fails and sound and self._rng.random() < _DARK_CHANCE:
      for site in sound:  # Nobody is left for a while.
        self._begin(site, self._is_short)
    elif len(sound) > 1:
      site = self._rng.choice(sound)
      self._begin(site, lambda kind: not (kind.fails and one_fails))

  def _is_short(self, kind: kinds_lib.Kind) -> bool:
    return not kind.fails and kind.seconds[1] <= _LONGEST_DARK_SECONDS

  def _begin(
    self, site: sites_lib.Site, may_be: Callable[[kinds_lib.Kind], bool]
  ) -> None:
    def fits(kind: kinds_lib.Kind) -> bool:
      return may_be(kind) and (site.network is not None or not kind.needs_network)

    fitting = [kind for kind in self._turns if fits(kind)][:1]
    if not fitting:
      fitting = [kind for kind in self._kinds if fits(kind)]
    (kind,) = self._rng.choices(fitting, [each.weight for each in fitting])
    begun = time.monotonic()
    try:
      end = kind.begin(site, self._rng)
    except (kinds_lib.NotPossible, psutil.NoSuchProcess):
      return
    if kind in self._turns:
      self._turns.remove(kind)
    fault = Fault(kind, site, begun, begun + self._rng.uniform(*kind.seconds), end)
    self._active[site.address] = fault
    self._outcome.faults.append(fault)


def _after(rounds: int, outcome: Outcome) -> Callable[[], bool]:
  return lambda: outcome.rounds >= rounds


def _other_answer() -> bytes:
  """An answer that is well-formed, and of another type than a pack's."""
  value, _ = tff.framework.serialize_value(
    np.float32([1, 2]), tff.TensorType(np.float32, [2])
  )
  return executor_pb2.ComputeResponse(value=value).SerializeToString()


def table(outcome: Outcome) -> list[str]:
  """Lines that say what became of each kind, and of all together."""
  lines = [f'{"kind":28} faults noticed   s until it was, at most']
  by_kind: dict[str, list[Fault]] = {}
  for fault in outcome.faults:
    by_kind.setdefault(fault.kind.name, []).append(fault)
  for name, faults in sorted(by_kind.items()):
    seconds = [each.lost - each.begun for each in faults if each.lost is not None]
    longest = f'{max(seconds):10.1f}' if seconds else f'{"-":>10}'
    lines.append(f'{name:28} {len(faults):6} {len(seconds):7} {longest}')
  if not outcome.has_network:
    lines.append('no link was set down: network namespaces are for root alone')
  (begin, end) = outcome.footprints[0], outcome.footprints[-1]
  lines += [
    f'this process: {begin.megabytes:.0f} MB, {begin.threads} threads and '
    f'{begin.files} open files after the first rounds, {end.megabytes:.0f} MB, '
    f'{end.threads} and {end.files} after the last',
    f'the longest round took {outcome.longest:.1f} s; in {outcome.given_again} rounds '
    f'packs were given to a second worker; {len(outcome.notes)} notes for the ledger',
    f'losses without a note: {outcome.unnoted}, workers not back: '
    f'{len(outcome.not_back)}, threads left over: {len(outcome.left_over)}',
    f'rounds: {outcome.rounds}, faults: {len(outcome.faults)}, hangs: {outcome.hangs}, '
    f'lost rounds: {len(outcome.errors)}, different results: {outcome.different}',
  ]
  return lines

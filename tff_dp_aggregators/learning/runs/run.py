"""The rounds of a training, and what they leave in a run directory.

How a run that was stopped goes on, at whatever moment that was:

1. `config.json` is there before anything else, and a checkpoint before the first round:
   the key of the noise is in it, so no noise is drawn that is not kept.
2. Attempts at a round that are aborted have their lines in the ledger before the round
   is run. The round's own line is there, and on disk, before anything is made of its
   result. Its metrics come after that, and now and then a checkpoint, which names the
   ledger's head.
3. Who goes on takes the last checkpoint. Rounds after it that have a line are run
   again, on the same clients with the same noise; each has to come to the very result
   that its line has the checksum of. If one does not, the run ends with an error, and
   nothing of that result is told. So there are no two results with the same noise.
   Aborted attempts that have a line are compared with it as well.
4. `metrics.csv` is cut to the rounds of the checkpoint, and written on. Before that,
   `standing` refuses if something knows of a round that the ledger has no line of.
"""

import contextlib
import dataclasses
import functools
import io
import math
import os
import platform
import shutil
import sys
import time
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noise_to_signal
from tff_dp_aggregators.accounting import spent_by_round
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import population
from tff_dp_aggregators.learning import schedules
from tff_dp_aggregators.learning import sources
from tff_dp_aggregators.learning.runs import attempts as attempts_lib
from tff_dp_aggregators.learning.runs import checkpoints as checkpoints_lib
from tff_dp_aggregators.learning.runs import described
from tff_dp_aggregators.learning.runs import engines
from tff_dp_aggregators.learning.runs import evaluation as evaluation_lib
from tff_dp_aggregators.learning.runs import events as events_lib
from tff_dp_aggregators.learning.runs import larger_cohort as larger_cohort_lib
from tff_dp_aggregators.learning.runs import machine
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import original
from tff_dp_aggregators.learning.runs import progress as progress_lib
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import standing as standing_lib
from tff_dp_aggregators.learning.schedules import checking

_REMOVED = '.removed'
# What is exact and of clients: for whoever runs the training, not to be released.
NOT_PRIVATE = 'not_private_'
# With sampling, their number tells something of who was drawn.
_CLIENTS = f'{NOT_PRIVATE}clients'


@dataclasses.dataclass(frozen=True)
class Plan:
  """Everything that decides what a run comes to.

  Attributes:
    training: What each client does, with the model.
    server_optimizer: Applies the mean of updates.
    clients: Who has which examples.
    mechanism: Strategy, participation and noise; `None` for no privacy.
    schedule: Who takes part when.
    clip_norm: L2 bound of one client's update, the first one if it adapts; `None`
      without mechanism.
    delta: At which epsilon is told.
    target_epsilon: What the mechanism was calibrated to, if it was.
    seed: Of the order of clients' examples.
    noise_seed: Of the noise; `None` for secret noise.
    evaluate_every: Rounds between two evaluations.
    packed: Whether clients are packed.
    flags: What else the configuration is to tell.
    simulated_cohort_scale: By which factor the cohort is larger that the noise is for;
      above 1 there is no guarantee.
    not_covered: Sentences: what else was computed from clients' data without noise.
    tuning: Among how many runs this one was chosen; `None` if that is not known.
    data_facts: What it is to tell of the data; not private.
  """

  training: packed.LocalTraining
  server_optimizer: tff.learning.optimizers.Optimizer
  clients: population.Population
  mechanism: Optional[accounting.Mechanism]
  schedule: schedules.Schedule
  clip_norm: Optional[float]
  delta: float
  target_epsilon: Optional[float]
  seed: int
  noise_seed: Optional[int]
  evaluate_every: int
  packed: bool
  flags: dict[str, Any]
  simulated_cohort_scale: float = 1.0
  not_covered: tuple[str, ...] = ()
  tuning: Optional[inputs_lib.Tuning] = None

  @functools.cached_property
  def larger_cohort(self) -> Optional[larger_cohort_lib.LargerCohort]:
    """The cohort that the noise is for, if it is not that of the run."""
    if self.mechanism is None or self.simulated_cohort_scale == 1:
      return None
    facts = inputs_lib.SimulatedCohort(
      self.simulated_cohort_scale,
      self.schedule.clients_per_round,
      self.schedule.num_clients,
    )
    return larger_cohort_lib.LargerCohort(facts, self.mechanism)

  @functools.cached_property
  def added_noise(self) -> Optional[accounting.Mechanism]:
    """The mechanism as it is run, which is `mechanism` unless a cohort is simulated."""
    if self.larger_cohort is None:
      return self.mechanism
    return self.larger_cohort.mechanism_of_run

  @property
  def guaranteed(self) -> Optional[accounting.Mechanism]:
    """The mechanism whose guarantee holds; `None` if there is none."""
    return self.mechanism if self.larger_cohort is None else None

  @functools.cached_property
  def simulated_spending(self) -> Optional[larger_cohort_lib.SpentByLarger]:
    """What the simulated cohort would have spent by round, if one is simulated."""
    if self.larger_cohort is None:
      return None
    return larger_cohort_lib.SpentByLarger(self.larger_cohort.mechanism, self.delta)

  data_facts: Optional[dict[str, Any]] = None

  @property
  def num_rounds(self) -> int:
    """Rounds in all."""
    return self.schedule.num_rounds

  @functools.cached_property
  def sampled_events(self) -> Optional[tuple[dp_accounting.DpEvent, ...]]:
    """Events by round if privacy rests on sampling, which no state knows of."""
    if self.guaranteed is None or not self.guaranteed.is_sampled:
      return None
    return self.guaranteed.round_events

  @functools.cached_property
  def noise_to_signal(self) -> Optional[np.ndarray]:
    """How loud the noise of each round is: see `accounting.noise_to_signal`.

    Of public numbers only, and so no secret of anybody. `None` without a mechanism.
    """
    if self.added_noise is None:
      return None
    return noise_to_signal.by_round(
      self.added_noise, self.model_size, self.schedule.clients_per_round
    )

  @property
  def model_size(self) -> int:
    """Number of trainable parameters, each of which gets noise."""
    trainable, _ = self.training.model.initial_weights
    return sum(int(np.size(weight)) for weight in tf.nest.flatten(trainable))

  @functools.cached_property
  def composed_spending(self) -> Optional[spent_by_round.SpentByRound]:
    """What is spent by round if rounds compose: the ledger has no epsilon then."""
    if self.guaranteed is None or self.guaranteed.is_one_gaussian:
      return None
    return spent_by_round.SpentByRound(self.guaranteed, self.delta)

  @property
  def generator(self) -> str:
    """What draws the noise: a cipher if it is secret."""
    return 'chacha20' if self.noise_seed is None else 'philox'

  def aggregator(self) -> Optional[aggregators.DPMeanFactory]:
    """The private mean; `None` without a mechanism."""
    if self.added_noise is None:
      return None
    assert self.clip_norm is not None
    return aggregators.from_mechanism(
      self.added_noise,
      clip_norm=self.clip_norm,
      clients_per_round=self.schedule.clients_per_round,
      # By name, so that the noise does not depend on what ran before in this process.
      seed=None if self.noise_seed is None else noise.Seed(self.noise_seed),
      generator=self.generator,
      schedule=self.schedule,
    )

  def engine(self, data_directory: str) -> engines.Engine[Any]:
    """What computes the rounds.

    Args:
      data_directory: Where examples are laid out, for packed simulation.
    """
    aggregator = self.aggregator()
    if self.packed:
      simulation = packed.PackedFedAvg(
        self.training,
        aggregator,
        self.clients.laid_out(data_directory),
        server_optimizer=self.server_optimizer,
      )
      return engines.PackedEngine(simulation, self.seed)
    process = fed_avg.build_dp_fed_avg(
      self.training.model,
      aggregator or tff.aggregators.UnweightedMeanFactory(),
      client_optimizer_fn=self.training.optimizer,
      server_optimizer_fn=self.server_optimizer,
    )
    source = sources.ClientSource(
      self.clients.clients,
      self.schedule,
      batch_size=self.training.batch_size,
      local_epochs=self.training.local_epochs,
      seed=self.seed,
      input_spec=self.training.model.input_spec,
    )
    return engines.ProcessEngine(process, source)

  def config(self) -> dict[str, Any]:
    """All of it, JSON-ready."""
    model = self.training.model
    return {
      'program': 'tff_dp_aggregators.learning.train',
      'flags': self.flags,
      'data_facts': self._data_facts(),
      'training': {
        'model': described.model(model),
        'clients': self.clients.checksum,
        'schedule': self.schedule.to_json(),
        'batch_size': self.training.batch_size,
        'local_epochs': self.training.local_epochs,
        'client_optimizer': described.optimizer(self.training.optimizer, model),
        'server_optimizer': described.optimizer(self.server_optimizer, model),
        'evaluate_every': self.evaluate_every,
        'seed': self.seed,
        'simulation': 'packed' if self.packed else 'one TFF client for each client',
        'simulated_cohort_scale': self.simulated_cohort_scale,
      },
      'privacy': self._privacy() if self.larger_cohort is None else None,
      'simulated_cohort': self._simulated_cohort(),
      'not_covered': list(self.not_covered),
      'tuning': None if self.tuning is None else self.tuning.to_json(),
      'software': {
        **version.current().to_json(),
        'tensorflow': tf.__version__,
        'tensorflow-federated': tff.__version__,
        'python': platform.python_version(),
      },
      'machine': machine.current(),
    }

  def _data_facts(self) -> Optional[dict[str, Any]]:
    if self.data_facts is None:
      return None
    return run_directory.told_of_data(self.data_facts)

  def _privacy(self) -> Optional[dict[str, Any]]:
    if self.mechanism is None:
      return None
    noise_source = "a secret key from the kernel's entropy"
    if self.noise_seed is not None:
      noise_source = (
        'a given seed, so that the simulation can be repeated; the guarantee holds '
        'only towards those who do not know it'
      )
    return {
      'mechanism': self.mechanism.to_json(),
      'target_epsilon': self.target_epsilon,
      'delta': self.delta,
      'epsilon_by_round': (
        accountants.ACCOUNTANTS[accountants.EXACT].kind
        if self.mechanism.is_one_gaussian
        else spent_by_round.KIND
      ),
      'clip_norm': self.clip_norm,
      'clients_per_round': self.schedule.clients_per_round,
      'enforced_by': self.schedule.enforced_by,
      'cap_enforced_by': self.schedule.enforced_by,
      'noise_source': noise_source,
      'noise_generator': self.generator,
      'noise_seed': self.noise_seed,
    }

  def _simulated_cohort(self) -> Optional[dict[str, Any]]:
    if self.larger_cohort is None:
      return None
    planned = dict(
      self._privacy() or {},
      clients_per_round=self.larger_cohort.facts.simulated_clients_per_round,
    )
    return {**self.larger_cohort.to_json(), 'as_planned': planned}


class Run:
  """A plan being carried out in a directory."""

  def __init__(
    self,
    plan: Plan,
    directory: run_directory.RunDirectory,
    evaluation: Optional[evaluation_lib.Evaluation] = None,
    *,
    checkpoint_seconds: float = 30.0,
  ):
    """Begins the run, or takes it up.

    Args:
      plan: What is to be done.
      directory: Where.
      evaluation: Of the model; `None` for none.
      checkpoint_seconds: Least time between two checkpoints.

    Raises:
      ValueError: If the directory is that of a run with another plan, or a copy.
    """
    self.plan, self.directory = plan, directory
    self._evaluation = evaluation
    self._checkpoint_seconds = checkpoint_seconds
    self._checkpointed = time.monotonic()
    self._watch = checking.Watch(plan.schedule)
    if directory.config is not None:
      directory.forget_untrained(plan.config())
    laid_out = self._lay_out()
    if directory.begin(plan.config()) or not directory.has(run_directory.STRATEGY):
      if plan.mechanism is not None:
        strategy = plan.mechanism.strategy.to_npz()
        directory.write(run_directory.STRATEGY, strategy)
    original.check(directory)
    if laid_out:
      os.rename(laid_out, directory.file(run_directory.DATA))

  def _lay_out(self) -> Optional[str]:
    """Lays out the data of a new run, so that they are read once; where, if it did.

    Until the configuration is there, they have a name of which nothing stays.
    """
    clients, directory = self.plan.clients, self.directory
    if not self.plan.packed or clients.is_laid_out or directory.config is not None:
      return None
    path = directory.file(run_directory.NEW_DATA)
    clients.lay_out(path)
    return path

  def go(self, stop: interrupts.StopRequest) -> int:
    """Runs the rounds that are left, inside a runtime; returns how many there are.

    Files that are lost are found by `standing`, which is to be asked before.

    Args:
      stop: Asked after each round whether to end.

    Raises:
      ValueError: If a round that is run again comes to another result.
      OSError: If something cannot be written.
    """
    plan, directory = self.plan, self.directory
    engine = plan.engine(directory.file(run_directory.DATA))
    with contextlib.ExitStack() as stack:
      state, rounds, ledger, checkpoints = self._take_up(engine, stack)
      released = engine.release(state)
      metrics = metrics_file.MetricsFile(
        directory.file(run_directory.METRICS), self._columns(), rounds
      )
      self._say_where_it_is(rounds, ledger.rounds)
      if not rounds:
        self._remark_on_noise()
      events = events_lib.EventFile(directory.file(run_directory.EVENTS), rounds)
      stack.callback(events.close)
      progress = progress_lib.Progress(plan.num_rounds, rounds)
      stack.callback(progress.close)
      while rounds < plan.num_rounds and not stop.requested:
        begun = time.monotonic()
        state, released, row = self._round(engine, state, released, rounds, ledger)
        rounds += 1
        row['round_seconds'] = round(time.monotonic() - begun, 6)
        row['clients_per_second'] = round(row[_CLIENTS] / row['round_seconds'], 3)
        directory.check_in_place()
        metrics.append(row)
        events.append(row)
        progress.update(row)
        if self._is_due():
          events.flush()
          self._checkpoint(checkpoints, rounds, released, ledger)
      self._checkpoint(checkpoints, rounds, released, ledger)
    return rounds

  def _take_up(
    self, engine: engines.Engine[Any], stack: contextlib.ExitStack
  ) -> tuple[Any, int, ledger_lib.LedgerWriter, checkpoints_lib.Checkpoints]:
    """State, rounds completed, ledger and checkpoints to go on with."""
    directory = self.directory
    checkpoints = checkpoints_lib.Checkpoints(directory.file(run_directory.CHECKPOINTS))
    original.mark(directory)
    state = engine.initialize()
    initial = engine.release(state)
    latest = checkpoints.latest(initial)
    path = directory.file(run_directory.LEDGER)
    if latest is not None:
      state = engine.hold(latest.state)
    ledger = stack.enter_context(
      ledger_lib.LedgerWriter(
        path,
        self.plan.delta,
        resume=directory.has(run_directory.LEDGER),
        expected=latest.head if latest else None,
      )
    )
    if latest is not None and latest.rounds > ledger.rounds:
      raise ValueError(
        f'{path} has {ledger.rounds} rounds, but the checkpoint is of '
        f'{latest.rounds}: lines are missing. Put the ledger back, or begin another '
        'run.'
      )
    rounds = latest.rounds if latest else 0
    if latest is None:
      self._checkpoint(checkpoints, 0, initial, ledger)
    return state, rounds, ledger, checkpoints

  def _is_due(self) -> bool:
    return time.monotonic() - self._checkpointed >= self._checkpoint_seconds

  def _checkpoint(
    self,
    checkpoints: checkpoints_lib.Checkpoints,
    rounds: int,
    state: Any,
    ledger: ledger_lib.LedgerWriter,
  ) -> None:
    self.directory.check_in_place()
    if rounds:
      # On disk before the checkpoint, which goes on after its last row.
      new_files.sync(self.directory.file(run_directory.METRICS))
    checkpoints.save(checkpoints_lib.Checkpoint(rounds, state, ledger.head))
    self._checkpointed = time.monotonic()
    weights = state.global_model_weights
    self.directory.write(run_directory.MODEL, _npz(weights))

  def _round(
    self,
    engine: engines.Engine[Any],
    state: Any,
    before: Any,
    number: int,
    ledger: ledger_lib.LedgerWriter,
  ) -> tuple[Any, Any, dict[str, Any]]:
    """Runs a round: the state after it, that state released, and its metrics."""
    goal = self.plan.schedule.reporting_goal
    attempts = self._watch.attempts(number)
    attempts_lib.write_aborted(ledger, number, attempts, goal)
    counted = attempts[-1]
    this_round = engines.Round(number, counted.reporting)
    try:
      state, metrics = engine.next(state, this_round)
    except failures.ComputationError as e:
      raise e.in_round(number, counted.reporting, self.plan.clients.ids) from None
    clip_norm = self._clip_norm(before)
    released = engine.release(state)
    entry = self._account(ledger, number, counted, clip_norm, released, metrics)
    row: dict[str, Any] = {
      'round': number,
      'attempts': len(attempts),
      _CLIENTS: len(counted.reporting),
      'epsilon': self._epsilon(number + 1, entry),
      'effective_noise_multiplier': entry.effective_noise_multiplier,
    }
    if self.plan.simulated_spending is not None:
      row['simulated_epsilon'] = self.plan.simulated_spending.after(number + 1)
    if self.plan.noise_to_signal is not None:
      ratio = self.plan.noise_to_signal[number]
      # Rounded, as the last digits depend on the machine.
      row['noise_to_signal'] = float(f'{ratio:.6g}')
    is_last = number + 1 == self.plan.num_rounds
    if self._evaluation and (is_last or (number + 1) % self.plan.evaluate_every == 0):
      measured = self._evaluation.measure(released.global_model_weights)
      row.update({f'test_{name}': value for name, value in measured.items()})
    row.update(_not_private(metrics))
    return state, released, row

  def _account(
    self,
    ledger: ledger_lib.LedgerWriter,
    number: int,
    attempt: schedules.Attempt,
    clip_norm: Optional[float],
    state: Any,
    metrics: Any,
  ) -> ledger_lib.LedgerEntry:
    """Writes the round's line, or compares it with the one that is there."""
    mechanism, tag = self.plan.added_noise, None
    event: dp_accounting.DpEvent = dp_accounting.NonPrivateDpEvent()
    if self.plan.guaranteed is not None:
      sampled = self.plan.sampled_events
      if sampled is None:
        event = aggregators.extract_dp_event(state).last_round_only
      else:
        event = sampled[number]
    if mechanism is not None:
      measured = metrics['aggregator']['dp_query_metrics']
      tag = bytes(measured['noise_key_tag']).decode() or None  # Of secret keys only.
    line: dict[str, Any] = {
      'round': number,
      'event': event,
      'cohort_requested': len(attempt.requested),
      'cohort_reported': len(attempt.reporting),
      'clip_norm': clip_norm,
      'noise_multiplier': mechanism.noise_multiplier if mechanism else 0.0,
      'strategy_checksum': mechanism.strategy.checksum if mechanism else None,
      'result_checksum': ledger_lib.checksum_of(
        tf.nest.flatten(state.global_model_weights)
      ),
      'noise_generator': self.plan.generator if mechanism else None,
      'noise_key_tag': tag,
    }
    if number < ledger.rounds:
      try:
        return ledger.confirm(**line)
      except ValueError as e:
        config = self.plan.config()
        raise ValueError(
          f'{e} It was run again, and came to another result: data, code or machine '
          f'changed.{self.directory.surroundings_that_changed(config)}'
        ) from e
    return ledger.append(**line)

  def _epsilon(self, rounds: int, entry: ledger_lib.LedgerEntry) -> float:
    """Spent after so many rounds, of which the last has this line; or a bound on it."""
    if self.plan.composed_spending is not None:
      return self.plan.composed_spending.after(rounds)
    return math.inf if entry.epsilon is None else entry.epsilon

  def _clip_norm(self, state: Any) -> Optional[float]:
    """That of the round after a state."""
    mechanism = self.plan.mechanism
    if mechanism is None or mechanism.clipped_count_stddev is None:
      return self.plan.clip_norm
    return float(state.aggregator.query.clip_norm)

  def _say_where_it_is(self, rounds: int, released: int) -> None:
    """Says in a line what begins, or after which of its rounds it goes on."""
    plan, path = self.plan, self.directory.path
    if released:
      text = f'{path}: going on after round {rounds} of {plan.num_rounds}'
      if released > rounds:
        text += f'; {released - rounds} more were released and are run again'
    else:
      noise = 'no privacy'
      if plan.added_noise is not None:
        noise = f'noise multiplier {plan.added_noise.noise_multiplier:.4f}'
      text = (
        f'{path}: {plan.num_rounds} rounds of {plan.schedule.clients_per_round:g} of '
        f'{plan.schedule.num_clients} clients; {noise}'
      )
    if plan.larger_cohort is not None:
      text += f'; {plan.larger_cohort.in_words()}'
    progress_lib.say(f'{text}.', sys.stderr)

  def _remark_on_noise(self) -> None:
    """Says so, in a line, if the first round's noise is louder than what it hides."""
    plan = self.plan
    if plan.added_noise is None:
      return
    remark = noise_to_signal.remark(
      plan.added_noise, plan.model_size, plan.schedule.clients_per_round
    )
    if remark is not None:
      progress_lib.say(remark, sys.stderr)

  def _columns(self) -> list[str]:
    columns = ['round', 'attempts', _CLIENTS, 'epsilon', 'effective_noise_multiplier']
    if self.plan.larger_cohort is not None:
      columns.append('simulated_epsilon')
    if self.plan.noise_to_signal is not None:
      columns.append('noise_to_signal')
    if self._evaluation:
      columns += [f'test_{name}' for name in self._evaluation.names]
    model = self.plan.training.model
    with tf.Graph().as_default():
      finalized = model.finalize_metrics(model.initialize_metrics_state())
    columns += [f'{NOT_PRIVATE}train_{name}' for name in finalized]
    columns += [f'{NOT_PRIVATE}nonfinite_count']
    return [*columns, 'round_seconds', 'clients_per_second']

  def standing(self) -> standing_lib.Standing:
    """How far it is by now, by its files.

    Raises:
      ValueError: If files are lost, without which it can't be told.
    """
    return standing_lib.of(self.directory, self.plan.num_rounds)

  def finish(self) -> None:
    """Removes what a run needs to go on: checkpoints, with the key, and data.

    A run with all its rounds and no checkpoint is finished; so they go at once.
    """
    self.directory.check_in_place()
    shutil.rmtree(self.directory.file(run_directory.DATA), ignore_errors=True)
    checkpoints = self.directory.file(run_directory.CHECKPOINTS)
    removed = self.directory.file(_REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    os.rename(checkpoints, removed)
    shutil.rmtree(removed)


def _not_private(metrics: Any) -> dict[str, Any]:
  train = metrics['client_work']['train']
  row = {f'{NOT_PRIVATE}train_{name}': _number(train[name]) for name in train}
  count = metrics['aggregator'].get('nonfinite_count')
  return {**row, f'{NOT_PRIVATE}nonfinite_count': None if count is None else int(count)}


def _number(value: Any) -> Any:
  array = np.asarray(value)
  return array.item() if array.ndim == 0 else array.tolist()


def _npz(weights: tff.learning.models.ModelWeights) -> bytes:
  """Weights in NumPy's format, in the order of the model's."""
  arrays = {
    f'{kind}_{number}': np.asarray(each)
    for kind in ('trainable', 'non_trainable')
    for number, each in enumerate(tf.nest.flatten(getattr(weights, kind)))
  }
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  return buffer.getvalue()


def read_weights(path: str) -> tff.learning.models.ModelWeights:
  """The weights in `model.npz`.

  Args:
    path: Of the file.

  Returns:
    Weights whose parts are tuples of arrays, in the order of the model's.
  """
  with np.load(path) as arrays:

    def part(kind: str) -> tuple[np.ndarray, ...]:
      count = sum(name.startswith(f'{kind}_') for name in arrays.files)
      return tuple(arrays[f'{kind}_{number}'] for number in range(count))

    return tff.learning.models.ModelWeights(part('trainable'), part('non_trainable'))

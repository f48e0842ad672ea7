"""The rounds of a training, and what they leave in a run directory.

How a run that was stopped goes on, at whatever moment that was:

1. `config.json` is there before anything else, and a checkpoint, with the key of the
   noise, before the first round.
2. Aborted attempts at a round have their lines in the ledger before the round is run;
   the round's own line is on disk before anything is made of its result. Then come its
   metrics, and now and then a checkpoint, which names the ledger's head.
3. Who goes on takes the last checkpoint. Rounds after it that have a line are run
   again, on the same clients with the same noise, and have to come to the very result
   that the line has the checksum of; or the run ends with an error, and nothing of that
   result is told. So there are no two results with the same noise.
   Rounds with noise of clients, which is in no state, and those that other machines
   train, with other last digits perhaps, leave their result on disk before their line,
   and who goes on takes it from there (`checkpoints.Checkpoints`). Without it, the
   first end with an error, and the others are run again.
4. `metrics.csv` is cut to the rounds of the checkpoint, and written on. Before that,
   `records.find` refuses if something knows of a round that the ledger has no line of.
"""

import contextlib
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional, cast

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import noise_to_signal
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import cluster as cluster_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import options
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.runs import checkpoints as checkpoints_lib
from tff_dp_aggregators.learning.runs import evaluation as evaluation_lib
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import plan as plan_lib
from tff_dp_aggregators.learning.runs import progress as progress_lib
from tff_dp_aggregators.learning.runs import records
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.sampling import schedule as schedule_lib

_REMOVED = '.removed'
_MOST_OF_THE_TIME = 0.05  # For checkpoints.
_CLIENTS, NOT_PRIVATE = metrics_file.CLIENTS, metrics_file.NOT_PRIVATE
# Columns of the signal-to-noise ratio; the first two are what a process measures.
_SIGNAL, _NOISE = f'{NOT_PRIVATE}signal_norm', 'squared_noise_norm'
_RATIO = f'{NOT_PRIVATE}signal_to_noise'
_OF_SIGNAL = [_SIGNAL, _NOISE, _RATIO, f'{_RATIO}_so_far']


class Run:
  """A plan being carried out in a directory."""

  # Of `go`.
  _ledger: ledger_lib.LedgerWriter
  _checkpoints: checkpoints_lib.Checkpoints

  def __init__(
    self,
    plan: plan_lib.Plan,
    directory: run_directory.RunDirectory,
    evaluator: Optional[evaluation_lib.Evaluator] = None,
  ):
    """Begins the run, or takes it up."""
    self.plan, self.directory = plan, directory
    self._evaluator = evaluator
    self._cluster: Optional[cluster_lib.Cluster] = None
    self._checkpointed, self._checkpoint_took = time.monotonic(), 0.0
    self._keeps_results = plan.draws_anew  # Of rounds that cannot be run again.
    # All rounds so far; from exact sums of clients, and so not private.
    self._signal_to_noise = aggregators.SignalToNoise()
    self._measures_signal = plan.server.not_private_signal_to_noise
    self._canaries_file: Optional[metrics_file.MetricsFile] = None
    self._watch = schedule_lib.Watch(plan.schedule)
    if directory.config is not None:
      directory.forget_untrained(plan.config())
    laid_out = None
    if plan.packed and not plan.clients.is_laid_out and directory.config is None:
      # Data are read once. Until the configuration is there, they have a name of which
      # nothing stays.
      laid_out = directory.file(run_directory.NEW_DATA)
      plan.clients.lay_out(laid_out)
    is_new = directory.begin(plan.config(), plan.private_settings)
    if is_new or not directory.has(run_directory.STRATEGY):
      if plan.mechanism is not None:
        strategy = plan.mechanism.strategy.to_npz()
        directory.write(run_directory.STRATEGY, strategy)
    directory.check_is_original()
    if laid_out:
      os.rename(laid_out, directory.file(run_directory.DATA))

  def go(
    self,
    stop: interrupts.StopRequest,
    cluster: Optional[cluster_lib.Cluster] = None,
  ) -> int:
    """Runs the rounds that are left, once `records.find` was asked; gives how many."""
    plan, directory = self.plan, self.directory
    engine = plan.engine(directory.file(run_directory.DATA), cluster)
    self._cluster = cluster
    with contextlib.ExitStack() as stack:
      state, rounds = self._take_up(engine, stack)
      released = engine.release(state)
      metrics = metrics_file.MetricsFile(
        directory.file(run_directory.METRICS), self._columns(), rounds
      )
      if plan.canaries is not None:
        canaries = directory.file(run_directory.CANARIES)
        self._canaries_file = metrics_file.MetricsFile(
          canaries, plan.canaries.columns, rounds
        )
      if self._measures_signal:
        for before in metrics_file.read(directory.file(run_directory.METRICS)):
          self._add_signal([float(before[_SIGNAL]), float(before[_NOISE])])
      self._say_where_it_is(rounds)
      if not rounds and plan.added_noise is not None:
        remark = noise_to_signal.remark(
          plan.added_noise, plan.noised_size, plan.schedule.clients_per_round
        )
        if remark is not None:  # The first round's noise is larger than what it hides.
          progress_lib.say(remark, sys.stderr)
      events = metrics_file.EventFile(directory.file(run_directory.EVENTS), rounds)
      stack.callback(events.close)
      progress = progress_lib.Progress(plan.num_rounds, rounds)
      stack.callback(progress.close)
      while rounds < plan.num_rounds and not stop.requested:
        begun = time.monotonic()
        try:
          state, released, row = self._round(engine, state, released, rounds)
        except (
          cluster_lib.ClusterError,
          failures.RoundTimeoutError,
          runtime.WorkerError,
        ):
          # Nothing came of it. The rounds before it need not be run again.
          self._checkpoint(rounds, released)
          raise
        rounds += 1
        row['round_seconds'] = round(time.monotonic() - begun, 6)
        row['clients_per_second'] = round(row[_CLIENTS] / row['round_seconds'], 3)
        directory.check_in_place()
        metrics.append(row)
        events.append(row)
        progress.update(row)
        # Those of large states are not to take more than a part of the time.
        seconds = plan.options.checkpoint_seconds
        if seconds:
          seconds = max(seconds, self._checkpoint_took / _MOST_OF_THE_TIME)
        if time.monotonic() - self._checkpointed >= seconds:
          events.flush()
          self._checkpoint(rounds, released)
      self._checkpoint(rounds, released)
      if plan.canaries is not None and rounds:
        mechanism = cast(accounting.Mechanism, plan.mechanism)
        record = plan.canaries.record(metrics_file.read(canaries), mechanism)
        directory.write(run_directory.CANARY_SCORES, record.to_json())
    return rounds

  def _take_up(
    self, engine: plan_lib.Engine, stack: contextlib.ExitStack
  ) -> tuple[Any, int]:
    """Opens ledger and checkpoints; the state to go on with, and after which round."""
    directory = self.directory
    self._checkpoints = checkpoints_lib.Checkpoints(
      directory.file(run_directory.CHECKPOINTS)
    )
    directory.mark_as_original()
    state = engine.initialize()
    initial = engine.release(state)
    latest = self._checkpoints.latest(initial)
    self._keeps_results |= self._checkpoints.has_results
    self._ledger = stack.enter_context(
      ledger_lib.LedgerWriter(
        directory.file(run_directory.LEDGER),
        self.plan.delta,
        resume=directory.has(run_directory.LEDGER),
        expected=latest.head if latest else None,
      )
    )
    if latest is not None:
      return engine.hold(latest.state), latest.rounds
    self._checkpoint(0, initial)
    return state, 0

  def _checkpoint(self, rounds: int, state: Any) -> None:
    begun = time.monotonic()
    self.directory.check_in_place()
    if rounds:
      # On disk before the checkpoint, which goes on after its last row.
      new_files.sync(self.directory.file(run_directory.METRICS))
      if self._canaries_file is not None:
        new_files.sync(self.directory.file(run_directory.CANARIES))
    checkpoint = checkpoints_lib.Checkpoint(rounds, state, self._ledger.head)
    self._checkpoints.save(checkpoint)
    self._checkpointed = time.monotonic()
    arrays = {
      f'{kind}_{number}': np.asarray(each)
      for kind in ('trainable', 'non_trainable')
      for number, each in enumerate(
        tf.nest.flatten(getattr(state.global_model_weights, kind))
      )
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    self.directory.write(run_directory.MODEL, buffer.getvalue())
    self._checkpoint_took = time.monotonic() - begun

  def _round(
    self, engine: plan_lib.Engine, state: Any, before: Any, number: int
  ) -> tuple[Any, Any, dict[str, Any]]:
    """Runs a round: the state after it, that state released, and its metrics."""
    goal = self.plan.schedule.reporting_goal
    attempts = self._watch.attempts(number)
    records.write_aborted(self._ledger, number, attempts, goal)
    counted = attempts[-1]
    clip_norm, mechanism = self.plan.clip_norm, self.plan.mechanism
    if mechanism is not None and mechanism.clipped_count_stddev is not None:
      clip_norm = float(before.aggregator.query.clip_norm)  # It adapts.
    kept = self._kept(number, before)
    if kept is None:
      try:
        state, metrics = engine.next(state, number, counted.reporting)
      except failures.ComputationError as e:
        raise e.in_round(number, counted.reporting, self.plan.clients.ids) from None
      kept = checkpoints_lib.KeptRound(engine.release(state), _measured(metrics))
      # Workers of other machines may join in any round.
      if self._cluster and self._cluster.is_elsewhere:
        self._keeps_results = True
      # With a line, it is to be confirmed first: what is kept is what is released.
      if self._keeps_results and number >= self._ledger.rounds:
        self._checkpoints.save_result(number, kept)
    else:
      state = engine.hold(kept.state)
    released, measured = kept
    entry = self._account(number, counted, clip_norm, released, measured)
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    if self.plan.composed_spending is not None:
      epsilon = self.plan.composed_spending.after(number + 1)
    row: dict[str, Any] = {
      'round': number,
      'attempts': len(attempts),
      _CLIENTS: len(counted.reporting),
      'epsilon': epsilon,
      'effective_noise_multiplier': entry.effective_noise_multiplier,
    }
    row.update(self._planned(number))
    if self._canaries_file is not None:
      self._keep_projections(number, counted.reporting, measured['canaries'])
    is_last = number + 1 == self.plan.num_rounds
    if self._evaluator and (is_last or (number + 1) % self.plan.evaluate_every == 0):
      tested = self._evaluator.measure(released.global_model_weights)
      row.update({f'test_{name}': value for name, value in tested.items()})
    row.update(measured['row'])
    if self._measures_signal:
      row.update(self._add_signal(measured['signal_and_noise']))
    return state, released, row

  def _planned(self, number: int) -> dict[str, float]:
    """Columns of a round that follow from the plan."""
    plan, row = self.plan, {}
    if plan.simulated_spending is not None:
      row['simulated_epsilon'] = plan.simulated_spending(number + 1)
    # Rounded, as the last digits depend on the machine.
    if plan.noise_to_signal is not None:
      row['noise_to_signal'] = float(f'{plan.noise_to_signal[number]:.6g}')
    if (rates := plan.training.schedule) is not None:
      row['client_learning_rate'] = float(f'{rates.learning_rates[number]:.6g}')
    return row

  def _add_signal(self, measured: Sequence[float]) -> dict[str, float]:
    """Adds up a round's signal and noise; returns its columns."""
    this_round = aggregators.SignalToNoise(*measured)
    self._signal_to_noise += this_round
    values = (*measured, this_round.ratio, self._signal_to_noise.ratio)
    return dict(zip(_OF_SIGNAL, values))

  def _keep_projections(
    self, number: int, clients: np.ndarray, projections: Sequence[float]
  ) -> None:
    """Writes down what a round released along the directions of canaries."""
    plan = self.plan
    assert plan.canaries is not None and plan.clip_norm and self._canaries_file
    took_part = clients - (len(plan.clients) - plan.canaries.number)
    # Projections of the sum, in clip norms.
    scaled = np.array(projections) * plan.schedule.clients_per_round / plan.clip_norm
    row = plan.canaries.row(number, took_part[took_part >= 0], scaled)
    self._canaries_file.append(row)

  def _kept(self, number: int, before: Any) -> Optional[checkpoints_lib.KeptRound]:
    """What a round came to that was run before and cannot be run again."""
    if not self._keeps_results:
      return None
    kept = self._checkpoints.result(number, before)
    if kept is None and number < self._ledger.rounds and self.plan.draws_anew:
      raise ValueError(
        f'round {number} has a line in the ledger and was released, and what it came '
        f'to is no longer in {self.directory.file(run_directory.CHECKPOINTS)}. Its '
        'noise was drawn by clients, so it cannot be run again to the same result: '
        'that would be another release, which nothing counts. Put the directory back, '
        'or begin another run in another run_dir; what the ledger has is spent.'
      )
    return kept

  def _account(
    self,
    number: int,
    attempt: sampling.Attempt,
    clip_norm: Optional[float],
    state: Any,
    measured: dict[str, Any],
  ) -> ledger_lib.LedgerEntry:
    """Writes the round's line, or compares it with the one that is there."""
    mechanism = self.plan.added_noise
    event: dp_accounting.DpEvent = dp_accounting.NonPrivateDpEvent()
    noise: dict[str, Any] = {
      'clip_norm': clip_norm,
      'noise_multiplier': 0.0,
      'strategy_checksum': None,
      'noise_generator': None,
      'noise_key_tag': None,
    }
    if self.plan.sampled_events is not None:
      event = self.plan.sampled_events[number]
    elif self.plan.guaranteed is not None:
      event = aggregators.extract_dp_event(state).last_round_only
    if mechanism is not None:
      noise = {
        **mechanism.line(clip_norm),
        'noise_generator': self.plan.noise_generator,
        'noise_key_tag': self.plan.noise_seed_tag or measured['noise_key_tag'] or None,
      }
    # How many were drawn follows from who was, which is secret.
    is_told = not self.plan.is_sampled
    line: dict[str, Any] = {
      'round': number,
      'event': event,
      'cohort_requested': len(attempt.requested) if is_told else None,
      'cohort_reported': len(attempt.reporting) if is_told else None,
      **noise,
      'result_checksum': ledger_lib.checksum_of(
        tf.nest.flatten(state.global_model_weights)
      ),
      **self.plan.sources,
    }
    notes = list(self._cluster.notes()) if self._cluster else []
    if number < self._ledger.rounds:
      try:
        return self._ledger.confirm(**line)
      except ValueError as e:
        config = self.plan.config()
        raise ValueError(
          f'{e} It was run again, and came to another result: data, code or machine '
          f'changed.{self.directory.surroundings_that_changed(config)}'
        ) from e
    return self._ledger.append(**line, notes=notes or None)

  def _say_where_it_is(self, rounds: int) -> None:
    """Says in a line what begins, or after which of its rounds it goes on."""
    plan, path, released = self.plan, self.directory.path, self._ledger.rounds
    if released:
      text = f'{path}: going on after round {rounds} of {plan.num_rounds}'
      if released > rounds:
        text += f'; {released - rounds} more were released and are run again'
    else:
      noise = 'no privacy'
      if plan.added_noise is not None:
        noise = plan.added_noise.noise_in_words()
        noise += _whose(plan.added_noise)
      text = (
        f'{path}: {plan.num_rounds} rounds of {plan.schedule.clients_per_round:g} of '
        f'{plan.schedule.num_clients} clients; {noise}'
      )
    if plan.larger_cohort is not None:
      text += f'; {plan.both_cohorts}'
    if plan.options.packed_simulation == options.AUTO and not plan.packed:
      text += f'; clients are trained one by one: {plan.why_one_by_one}'
    progress_lib.say(f'{text}.', sys.stderr)
    for part, shapes in (plan.weights_of_parts or {}).items():
      size = sum(math.prod(shape) for shape in shapes.values())
      listed = ', '.join(f'{name} {shape}' for name, shape in shapes.items())
      progress_lib.say(f'part {part}: {size} parameters, in {listed}.', sys.stderr)

  def _columns(self) -> list[str]:
    columns = ['round', 'attempts', _CLIENTS, 'epsilon', 'effective_noise_multiplier']
    columns += self._planned(0)
    if self._evaluator:
      columns += [f'test_{name}' for name in self._evaluator.names]
    model = self.plan.training.model
    with tf.Graph().as_default():
      finalized = model.finalize_metrics(model.initialize_metrics_state())
    columns += [f'{NOT_PRIVATE}train_{name}' for name in finalized]
    columns += [f'{NOT_PRIVATE}nonfinite_count']
    if self._measures_signal:
      columns += _OF_SIGNAL
    return [*columns, 'round_seconds', 'clients_per_second']

  def finish(self) -> None:
    """Removes what a run needs to go on: data, and at once all checkpoints."""
    self.directory.check_in_place()
    shutil.rmtree(self.directory.file(run_directory.DATA), ignore_errors=True)
    checkpoints = self.directory.file(run_directory.CHECKPOINTS)
    removed = self.directory.file(_REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    os.rename(checkpoints, removed)
    shutil.rmtree(removed)


def _whose(mechanism: accounting.joint_mechanism.AnyMechanism) -> str:
  """Whose noise a noise multiplier is of, if it is not that of the server."""
  placement, on_top = mechanism.placement, mechanism.server_noise_multiplier
  if placement.is_simulation:
    return f' of each client, simulated by the server ({plan_lib.NO_GUARANTEE})'
  if placement.is_of_client:
    more = '' if on_top is None else f', and {on_top:.4f} of the noise of the server'
    return f" of each client's own noise{more}"
  return ' of the noise of all clients together' if placement.is_on_clients else ''


def _measured(metrics: Any) -> dict[str, Any]:
  """What is used of a process's metrics, JSON-ready."""
  train = metrics['client_work']['train']
  row = {
    f'{NOT_PRIVATE}train_{name}': np.asarray(train[name]).tolist() for name in train
  }
  count = metrics['aggregator'].get('nonfinite_count')
  row[f'{NOT_PRIVATE}nonfinite_count'] = None if count is None else int(count)
  of_query = metrics['aggregator'].get('dp_query_metrics', {})
  # What tells the keys of the noise from others, of all parts; '' of seeds.
  tags = [
    bytes(of_query[name]).decode()
    for name in sorted(of_query)
    if name.split('/')[-1] == 'noise_key_tag'
  ]
  projections = metrics['aggregator'].get(server_lib.CANARY_PROJECTIONS)
  return {
    'row': row,
    'canaries': None if projections is None else projections.tolist(),
    'noise_key_tag': ','.join(filter(None, tags)),
    # Norm of the signal and squared norm of the noise, if they were measured.
    'signal_and_noise': [
      float(of_query[name]) for name in (_SIGNAL, _NOISE) if name in of_query
    ],
  }


def read_weights(path: str) -> tff.learning.models.ModelWeights:
  """The weights in `model.npz`."""
  with np.load(path) as arrays:

    def part(kind: str) -> tuple[np.ndarray, ...]:
      count = sum(name.startswith(f'{kind}_') for name in arrays.files)
      return tuple(arrays[f'{kind}_{number}'] for number in range(count))

    return tff.learning.models.ModelWeights(part('trainable'), part('non_trainable'))

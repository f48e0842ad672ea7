"""Runs the rounds of a training and writes their results to a run directory.

A run can be stopped at any moment and resumed:

1. `config.json` is written before anything else, and a checkpoint, with the key of the
   noise, before the first round.
2. The lines of a round's aborted attempts are in the ledger before the round is run;
   the round's own line is on disk before its result is used for anything. Then its
   metrics are written, and now and then a checkpoint, which names the ledger's head.
3. A resumed run starts at the last checkpoint. Later rounds that have a line in the
   ledger are run again, on the same clients with the same noise, and must come to the
   checksum in that line. So no two results are released with the same noise.
   If clients draw the noise, no state has it; and if other machines train, the last
   digits may differ. Such a round has its checkpoint on disk before its line, and a
   resumed run completes it from there.
4. `metrics.csv` is cut to the rounds of the checkpoint and continued.
"""

import contextlib
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

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import noise_to_signal
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import cluster as cluster_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.runs import evaluation as evaluation_lib
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import plan as plan_lib
from tff_dp_aggregators.learning.runs import progress as progress_lib
from tff_dp_aggregators.learning.runs import records
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model
from tff_dp_aggregators.sampling import schedule as schedule_lib

_CLIENTS, NOT_PRIVATE = metrics_file.CLIENTS, metrics_file.NOT_PRIVATE
# Columns of the signal-to-noise ratio; the learning process measures the first two.
_SIGNAL, _NOISE = f'{NOT_PRIVATE}signal_norm', 'squared_noise_norm'
_RATIO = f'{NOT_PRIVATE}signal_to_noise'
_SIGNAL_COLUMNS = [_SIGNAL, _NOISE, _RATIO, f'{_RATIO}_so_far']


class Run:
  """Carries out a plan in a directory."""

  # Set by `go`.
  _ledger: ledger_lib.LedgerWriter
  _checkpoints: records.Checkpoints

  def __init__(
    self,
    plan: plan_lib.Plan,
    directory: run_directory.RunDirectory,
    evaluator: Optional[evaluation_lib.Evaluator] = None,
  ):
    self.plan, self.directory = plan, directory
    self._evaluator = evaluator
    self._cluster: Optional[cluster_lib.Cluster] = None
    self._checkpointed = time.monotonic()
    # Sum of all rounds so far; from exact sums of clients, and so not private.
    self._signal_to_noise = aggregators.SignalToNoise()
    self._measures_signal = plan.server.not_private_signal_to_noise
    self._canaries_file: Optional[metrics_file.MetricsFile] = None
    self._watch = schedule_lib.Watch(plan.schedule)
    new_data = None
    if plan.packed and not plan.clients.is_laid_out and directory.config is None:
      # Data are read once. Until the configuration is written, they have a temporary
      # name, and are removed by the next run here if this one stops.
      new_data = directory.file(run_directory.NEW_DATA)
      plan.clients.lay_out(new_data)
    directory.begin(plan.config(), plan.private_settings)
    if plan.mechanism is not None and not directory.has(run_directory.STRATEGY):
      directory.write(run_directory.STRATEGY, plan.mechanism.strategy.to_npz())
    directory.check_is_original()
    if new_data:
      os.rename(new_data, directory.file(run_directory.DATA))

  def go(
    self, stop: interrupts.StopRequest, cluster: Optional[cluster_lib.Cluster] = None
  ) -> None:
    """Runs the remaining rounds, after `records.find`."""
    plan, directory = self.plan, self.directory
    engine = plan.engine(directory.file(run_directory.DATA), cluster)
    self._cluster = cluster
    with contextlib.ExitStack() as stack:
      latest = self._resume(engine, stack)
      released, measured = latest.state, latest.measured
      state = engine.hold(released)
      # A round that may lack its line is completed first.
      rounds = latest.rounds - (measured is not None)
      path = directory.file(run_directory.METRICS)
      names = self._evaluator.names if self._evaluator else ()
      tested = [f'test_{name}' for name in names]
      metrics = metrics_file.MetricsFile(path, rounds, tested)
      if plan.canaries is not None:
        canaries = directory.file(run_directory.CANARIES)
        self._canaries_file = metrics_file.MetricsFile(canaries, rounds)
      if self._measures_signal:
        for before in metrics.rows:
          self._add_signal([float(before[_SIGNAL]), float(before[_NOISE])])
      self._announce(rounds)
      events = metrics_file.EventFile(directory.file(run_directory.EVENTS), rounds)
      stack.callback(events.close)
      progress = progress_lib.Progress(plan.schedule.num_rounds, rounds)
      stack.callback(progress.close)
      while measured is not None or (
        rounds < plan.schedule.num_rounds and not stop.requested
      ):
        begun = time.monotonic()
        attempts = self._watch.attempts(rounds)
        goal = plan.schedule.reporting_goal
        records.write_aborted(self._ledger, rounds, attempts, goal)
        if measured is None:
          try:
            state, released, measured = self._compute(
              engine, state, released, rounds, attempts[-1].reporting
            )
          except (
            cluster_lib.ClusterError,
            failures.RoundTimeoutError,
            runtime.WorkerError,
          ):
            # This round has no result; the rounds before it need not be run again.
            self._checkpoint(rounds, released)
            raise
        row = self._release(rounds, attempts, released, measured)
        measured = None
        rounds += 1
        row['round_seconds'] = round(time.monotonic() - begun, 6)
        row['clients_per_second'] = round(row[_CLIENTS] / row['round_seconds'], 3)
        directory.check_in_place()
        metrics.append(row)
        events.append(row)
        if self._keeps_rounds:  # No later run would write these events again.
          events.flush()
        progress.update(row)
        if time.monotonic() - self._checkpointed >= plan.options.checkpoint_seconds:
          events.flush()
          self._checkpoint(rounds, released)
      self._checkpoint(rounds, released)
      if plan.canaries is not None and rounds:
        mechanism = cast(accounting.Mechanism, plan.mechanism)
        record = plan.canaries.record(learning_curves.read(canaries), mechanism)
        directory.write(run_directory.CANARY_SCORES, record.to_json())

  def _resume(
    self, engine: plan_lib.Engine, stack: contextlib.ExitStack
  ) -> records.Checkpoint:
    directory = self.directory
    self._checkpoints = records.Checkpoints(directory.file(run_directory.CHECKPOINTS))
    directory.mark_as_original()
    initial = engine.release(engine.initialize())
    with run_directory.reading(directory.file(run_directory.CHECKPOINTS)):
      latest = self._checkpoints.latest(initial)
    path = directory.file(run_directory.LEDGER)
    with run_directory.reading(path):
      ledger = ledger_lib.LedgerWriter(
        path,
        self.plan.delta,
        resume=directory.has(run_directory.LEDGER),
        expected=latest.head if latest else None,
      )
    self._ledger = stack.enter_context(ledger)
    return latest or self._checkpoint(0, initial)

  def _checkpoint(self, rounds: int, state: Any) -> records.Checkpoint:
    checkpoint = self._save(rounds, state)
    weights = state.global_model_weights
    content = saved_model.numbered(
      trainable=weights.trainable, non_trainable=weights.non_trainable
    )
    self.directory.write(run_directory.MODEL, content)
    self._checkpointed = time.monotonic()
    return checkpoint

  def _save(
    self, rounds: int, state: Any, measured: Optional[dict[str, Any]] = None
  ) -> records.Checkpoint:
    """Writes a checkpoint, when the files that it continues are on disk."""
    self.directory.check_in_place()
    for name in (run_directory.METRICS, run_directory.CANARIES):
      if self.directory.has(name):
        new_files.sync(self.directory.file(name))
    head = self._ledger.head
    checkpoint = records.Checkpoint(rounds, state, head, measured)
    self._checkpoints.save(checkpoint)
    return checkpoint

  def _compute(
    self,
    engine: plan_lib.Engine,
    state: Any,
    before: Any,
    number: int,
    clients: np.ndarray,
  ) -> tuple[Any, Any, dict[str, Any]]:
    """Runs a round; returns the state after it, the same as arrays, and JSON values."""
    has_line = number < self._ledger.rounds
    if has_line and self.plan.draws_anew:
      raise run_directory.FilesError(
        f'round {number} has a line in the ledger and was released, and what it came '
        f'to is no longer in {self.directory.file(run_directory.CHECKPOINTS)}. Its '
        'noise was drawn by clients, so it cannot be run again to the same result: '
        'that would be another release, which nothing counts. Put the directory back, '
        'or begin another run in another run_dir; what the ledger has is spent.'
      )
    try:
      state, metrics = engine.next(state, number, clients)
    except failures.ComputationError as e:
      raise e.in_round(number, clients, self.plan.clients.ids) from None
    released, measured = engine.release(state), _measured(metrics)
    clip_norm, mechanism = self.plan.clip_norm, self.plan.mechanism
    if mechanism is not None and mechanism.clipped_count_stddev is not None:
      clip_norm = float(before.aggregator.query.clip_norm)  # It is adaptive.
    measured['clip_norm'] = clip_norm
    # A round that has a line is confirmed first: only released results are kept.
    if self._keeps_rounds and not has_line:
      self._save(number + 1, released, measured)
    return state, released, measured

  @property
  def _keeps_rounds(self) -> bool:
    """Whether a round has a checkpoint before its line, as it may not be repeatable."""
    # Workers on other machines, with other processors, may join in any round.
    is_elsewhere = self._cluster is not None and self._cluster.is_elsewhere
    return self.plan.draws_anew or is_elsewhere

  def _release(
    self,
    number: int,
    attempts: Sequence[sampling.Attempt],
    released: Any,
    measured: dict[str, Any],
  ) -> dict[str, Any]:
    counted = attempts[-1]
    entry = self._account(number, counted, released, measured)
    epsilon = math.inf if entry.epsilon is None else entry.epsilon
    if self.plan.composed_spending is not None:
      epsilon = self.plan.composed_spending.after(number + 1)
    row: dict[str, Any] = {
      'round': number,
      'attempts': len(attempts),
      _CLIENTS: len(counted.reporting),
      'epsilon': epsilon,
      'effective_noise_multiplier': entry.effective_noise_multiplier,
      **self._planned_columns(number),
    }
    if self._canaries_file is not None:
      self._keep_projections(number, counted.reporting, measured['canaries'])
    if self._evaluator:
      values: dict[str, Any] = dict.fromkeys(self._evaluator.names)
      done = number + 1
      if done == self.plan.schedule.num_rounds or not done % self.plan.evaluate_every:
        values = self._evaluator.measure(released.global_model_weights)
      row.update({f'test_{name}': value for name, value in values.items()})
    row.update(measured['row'])
    if self._measures_signal:
      row.update(self._add_signal(measured['signal_and_noise']))
    return row

  def _planned_columns(self, number: int) -> dict[str, float]:
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
    this_round = aggregators.SignalToNoise(*measured)
    self._signal_to_noise += this_round
    values = (*measured, this_round.ratio, self._signal_to_noise.ratio)
    return dict(zip(_SIGNAL_COLUMNS, values))

  def _keep_projections(
    self, number: int, clients: np.ndarray, projections: Sequence[float]
  ) -> None:
    plan = self.plan
    assert plan.canaries is not None and plan.clip_norm and self._canaries_file
    took_part = clients - (len(plan.clients) - plan.canaries.number)
    # Projections of the sum, in clip norms.
    scaled = np.array(projections) * plan.schedule.clients_per_round / plan.clip_norm
    row = plan.canaries.row(number, took_part[took_part >= 0], scaled)
    self._canaries_file.append(row)

  def _account(
    self,
    number: int,
    attempt: sampling.Attempt,
    state: Any,
    measured: dict[str, Any],
  ) -> ledger_lib.LedgerEntry:
    mechanism, clip_norm = self.plan.added_noise, measured['clip_norm']
    event: dp_accounting.DpEvent = dp_accounting.NonPrivateDpEvent()
    noise: dict[str, Any] = {
      'clip_norm': clip_norm,
      'noise_multiplier': 0.0,
      'strategy_checksum': None,
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
    # With sampling, the size of a cohort reveals something of who was drawn.
    has_sizes = not self.plan.is_sampled
    line: dict[str, Any] = {
      'round': number,
      'event': event,
      'cohort_requested': len(attempt.requested) if has_sizes else None,
      'cohort_reported': len(attempt.reporting) if has_sizes else None,
      **noise,
      'result_checksum': ledger_lib.checksum_of(
        tf.nest.flatten(state.global_model_weights)
      ),
      **self.plan.sources,
    }
    if number < self._ledger.rounds:
      try:
        return self._ledger.confirm(**line)
      except ValueError as e:
        raise run_directory.FilesError(
          f'{e} It was run again, and came to another result: data, code or machine '
          f'changed; {run_directory.CONFIG} has the software and the machine then.'
        ) from e
    return self._ledger.append(**line)

  def _announce(self, rounds: int) -> None:
    plan, path, released = self.plan, self.directory.path, self._ledger.rounds
    schedule = plan.schedule
    if released:
      text = f'{path}: going on after round {rounds} of {schedule.num_rounds}'
      if released > rounds:
        text += f'; {released - rounds} more were released and are run again'
    else:
      noise = 'no privacy'
      if plan.added_noise is not None:
        noise = plan.added_noise.noise_in_words()
        if plan.added_noise.noise_site != 'server':
          noise += f', noise_site={plan.added_noise.noise_site}'
        if plan.added_noise.placement.is_simulation:
          noise += f' ({plan_lib.NO_GUARANTEE})'
      text = (
        f'{path}: {schedule.num_rounds} rounds of {schedule.clients_per_round:g} of '
        f'{schedule.num_clients} clients; {noise}'
      )
    if plan.larger_cohort is not None:
      text += f'; {plan.both_cohorts}'
    if plan.options.packed_simulation and not plan.packed:
      text += f'; clients are trained one by one: {plan.why_one_by_one}'
    progress_lib.say(f'{text}.', sys.stderr)
    if not rounds and plan.added_noise is not None:
      remark = noise_to_signal.remark(
        plan.added_noise, plan.noised_size, schedule.clients_per_round
      )
      if remark is not None:  # The first round's noise is larger than what it hides.
        progress_lib.say(remark, sys.stderr)

  def finish(self) -> None:
    """Removes what a resumed run needs: data, and all checkpoints at once."""
    removed = self.directory.file(run_directory.REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    for name in (run_directory.DATA, run_directory.CHECKPOINTS):
      if self.directory.has(name):
        # A name that is cleared if this is stopped: neither is ever there in part.
        os.rename(self.directory.file(name), removed)
        shutil.rmtree(removed)


def _measured(metrics: Any) -> dict[str, Any]:
  train = metrics['client_work']['train']
  row = {
    f'{NOT_PRIVATE}train_{name}': np.asarray(train[name]).tolist() for name in train
  }
  count = metrics['aggregator'].get('nonfinite_count')
  row[f'{NOT_PRIVATE}nonfinite_count'] = None if count is None else int(count)
  query_metrics = metrics['aggregator'].get('dp_query_metrics', {})
  # Tags that identify the keys of the noise, of all parts; '' for noise from a seed.
  tags = [
    bytes(query_metrics[name]).decode()
    for name in sorted(query_metrics)
    if name.split('/')[-1] == 'noise_key_tag'
  ]
  projections = metrics['aggregator'].get(server_lib.CANARY_PROJECTIONS)
  return {
    'row': row,
    'canaries': None if projections is None else projections.tolist(),
    'noise_key_tag': ','.join(filter(None, tags)),
    # Norm of the signal and squared norm of the noise, if they were measured.
    'signal_and_noise': [
      float(query_metrics[name]) for name in (_SIGNAL, _NOISE) if name in query_metrics
    ],
  }

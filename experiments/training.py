"""Runs a simulation: trains a task's model on its data by `learning.train`."""

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import learning
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import models as models_lib
from tff_dp_aggregators.learning.runs import progress

from . import metrics
from . import plot
from . import settings as settings_lib
from .data import population as population_lib
from .options import run as run_options

_INTERRUPTED = 130  # Exit code of a program ended by Ctrl-C.
_FAILED = 1  # Exit code if a cluster fails, or a round takes too long.


def run(settings: settings_lib.Settings) -> int:
  """Trains and reports; returns the exit code. Ctrl-C ends it after the round."""
  population = settings.task.load(settings.data)
  _print_data(settings, population)
  run_dir = settings.run.run_dir or run_options.new_directory(settings.name)
  progress.say(_headline(settings, run_dir))
  try:
    result = train(settings, population, run_dir)
  except KeyboardInterrupt:
    progress.say(f'Interrupted; {run_dir} has no round to report.', sys.stderr)
    return _INTERRUPTED
  except (cluster.ClusterError, failures.RoundTimeoutError) as e:
    progress.say(f'{e} {_how_to_resume(settings, run_dir)}', sys.stderr)
    return _FAILED
  _print_result(settings, population, result)
  return 0 if result.is_finished else _INTERRUPTED


def train(
  settings: settings_lib.Settings,
  population: population_lib.Population,
  run_dir: str,
  not_covered: Sequence[str] = (),
) -> learning.Result:
  # Otherwise last digits, and with them resuming, would depend on the processors.
  with contextlib.suppress(RuntimeError):  # TensorFlow is in use already.
    tf.config.threading.set_intra_op_parallelism_threads(1)
  privacy, run, shape = settings.privacy, settings.run, population.shape
  asked_for, num_clients = settings.flags['num_clients'], population.num_clients
  try:
    if settings.facts not in (None, population.facts):
      raise ValueError(
        'the data have changed since their flags were checked; the same command reads '
        'them again.'
      )
    if asked_for not in (None, num_clients):
      raise ValueError(
        f'--num_clients={asked_for}, and the data have {num_clients} clients of their '
        'own; leave it out.'
      )
    settings.model.check_for(population)
    model = settings.model.make(shape, run.seed)
    schedule = settings.participation.schedule(num_clients + (run.audit_canaries or 0))
    settings.check(schedule)
    if privacy.mechanism is not None:
      models_lib.part_of(privacy.mechanism, model)
  except ValueError as e:
    raise program.WrongUsage(str(e)) from e
  mechanism: Any = privacy.nbafl or privacy.mechanism
  if privacy.simulated_cohort_scale != 1:
    mechanism = learning.SimulatedCohort(mechanism, privacy.simulated_cohort_scale)
  test = None
  if population.test_examples is not None:
    measured = settings.model.test_metrics(shape, population.label_scaling)
    test = learning.Evaluation(population.test_examples, measured, run.evaluate_every)
  optimization, preprocessing = settings.optimization, population.preprocessing
  result = learning.train(
    model,
    population.clients,
    mechanism,
    run_dir,
    delta=privacy.delta,
    clip_norm=privacy.clip_norm,
    schedule=schedule,
    seed=run.seed,
    scheduler=run.scheduler,
    local=optimization.client_training(schedule.num_rounds),
    server=dataclasses.replace(
      settings.server, optimizer=optimization.server_optimizer_of(schedule.num_rounds)
    ),
    test=test,
    run=dataclasses.replace(
      settings.learning_run,
      preprocessing=None if preprocessing is None else preprocessing.to_json(),
      not_covered=(*population.not_covered, *not_covered),
      data_facts=population.facts or None,
    ),
  )
  name, saved = settings.model.metric.name, plot.read_run(run_dir)
  if saved.has(f'test_{name}'):
    title = f'{settings.name}, {population.num_clients} clients'
    picture = plot.picture([saved], y=f'test_{name}', title=title)
    plot.save(picture, os.path.join(run_dir, f'{name}.png'))
  return result


def _print_data(
  settings: settings_lib.Settings, population: population_lib.Population
) -> None:
  if population.facts:
    progress.say(
      'The data, in exact numbers that no noise protects: do not publish them.'
    )
  for name, value in population.facts.items():
    if isinstance(value, dict):
      value = [f'{each} ({count})' for each, count in value.items()]
    text = ', '.join(map(str, value)) if isinstance(value, list) else value
    progress.say(f'  {name}: {text}')
  for remark in (*population.remarks, *settings.remarks):
    progress.say(remark)


def _print_result(
  settings: settings_lib.Settings,
  population: population_lib.Population,
  result: learning.Result,
) -> None:
  metric = settings.model.metric
  # None if the run ended between two evaluations, or there are no test data.
  measured = result.metrics.get(f'test_{metric.name}')
  if measured is not None:
    progress.say(f'Test {metric.name} after {result.rounds} rounds: {measured:.4f}.')
    if metric.best_constant and population.test_examples is not None:
      labels, scaling = population.test_examples[1], population.label_scaling
      labels = labels if scaling is None else scaling.undone(labels)
      is_class = population.shape.label_kind == 'class'
      names = population.shape.names if is_class else None
      if remark := remark_on_constant(metric, measured, labels, names):
        progress.say(remark)
  progress.say(_spent(settings, result))
  report = os.path.join(result.run_dir, 'report.md')
  progress.say(f'Results are in {result.run_dir}; read {report} first.')
  if not result.is_finished:
    how = _how_to_resume(settings, result.run_dir)
    progress.say(f'Ended before its {result.num_rounds} rounds. {how}')


def _how_to_resume(settings: settings_lib.Settings, run_dir: str) -> str:
  argument = shlex.quote(f'--run_dir={run_dir}')
  return f'To resume, run:\n    {settings.command} {argument}'


def remark_on_constant(
  metric: metrics.Metric,
  measured: float,
  labels: np.ndarray,
  names: Optional[Sequence[str]] = None,
) -> str:
  """Returns a remark if a constant answer is as good as the model; else ''."""
  assert metric.best_constant is not None
  best, values = metric.best_constant(np.asarray(labels, np.float64))
  baseline = float(np.mean(values))
  if measured > baseline if metric.higher_is_better else measured < baseline:
    return ''
  answers = [f'{each:.6g}' for each in np.ravel(best)]
  if names is not None:
    answers = [names[int(best)]]
  return (
    f'Note: the constant answer {", ".join(answers)} to all test examples has '
    f'{metric.name} {baseline:.4f}, and the model, with {measured:.4f}, is no better; '
    'docs/own_data.md tells what to try.'
  )


def _spent(settings: settings_lib.Settings, result: learning.Result) -> str:
  statement, mechanism = result.statement, settings.privacy.mechanism
  scale = settings.privacy.simulated_cohort_scale
  if mechanism is None:
    return 'No privacy: epsilon is infinite.'
  if scale != 1:
    clients = settings.participation.clients_per_round
    return (
      f'No guarantee: the noise is that of a cohort of {scale * clients:g}, {scale:g} '
      f"times the run's own of {clients:g}."
    )
  if mechanism.placement.is_simulation:
    return f'No guarantee: {terms.PLACEMENTS[mechanism.noise_site].help}.'
  guarantee, is_bound = statement['guarantee'], mechanism.sensitivity_kind == 'bound'
  is_bound |= guarantee['accountant'] != accountants.EXACT
  spent = (
    f'Privacy spent in {result.rounds} of {result.num_rounds} rounds: (epsilon, delta) '
    f'= ({rounding.up(guarantee["epsilon"])}, {guarantee["delta"]:g}) for each client, '
    f'{"an upper bound" if is_bound else "exact"}'
  )
  if stopped := statement.get('stopped'):
    spent += (
      ', that of the plan. If no result decided when to stop it is '
      f'{rounding.up(stopped["epsilon_completed"])}: tff-dp-report --rounds_fixed_by '
      'states what did'
    )
  lines = [spent]
  if audit := statement.get('canaries'):
    bound = rounding.down(max(each['epsilon'] for each in audit['bounds']), 4)
    lines.append(
      f'An attacker with {audit["num_canaries"]} canaries showed, with confidence '
      f'{audit["confidence"]:g}, that epsilon is at least {bound}: a lower bound, no '
      'guarantee'
    )
  # The first sentence of each; the report says what follows.
  lines += [each.split('. ')[0].rstrip('.') for each in statement['warnings']]
  return '\n'.join(f'{each}.' for each in lines)


def _headline(settings: settings_lib.Settings, run_dir: str) -> str:
  noise, mechanism = 'no privacy', settings.privacy.mechanism
  if mechanism is not None:
    noise = f'{mechanism.noise_in_words()} relative to the clip norm'
    effective = mechanism.effective_noise_multiplier
    if effective is not None:
      noise += f', {effective:.4f} relative to the sensitivity'
  return f'{settings.name}: {noise}. Writing to {run_dir}.'  # `train` prints more.

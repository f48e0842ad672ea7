"""Runs a simulation: trains a task's model on its data by `learning.train`."""

import contextlib
import dataclasses
import math
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import learning
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import models as models_lib
from tff_dp_aggregators.learning.runs import fitting
from tff_dp_aggregators.learning.runs import progress

from . import metrics
from . import plotting
from . import settings as settings_lib
from .data import population as population_lib
from .options import optimization as optimization_options
from .options import run as run_options

_INTERRUPTED = 130  # Exit code of a program ended by Ctrl-C.
_FAILED = 1  # Exit code if a cluster fails, or a round takes too long.
_WHAT_TO_TRY = 'docs/own_data.md tells what to try if a model does not learn.'


def run(settings: settings_lib.Settings) -> int:
  """Trains and reports; returns the exit code. Ctrl-C ends it after the round."""
  population = settings.task.load(settings.data)
  _print_data(settings, population)
  settings.model.check(population.shape)
  run_dir = settings.run.run_dir or run_options.new_directory(settings.name)
  progress.say(_headline(settings, run_dir))
  try:
    result = train(settings, population, run_dir)
  except KeyboardInterrupt:
    progress.say(f'Interrupted; {run_dir} has no round to report.', sys.stderr)
    return _INTERRUPTED
  except (cluster.ClusterError, failures.RoundTimeoutError) as e:
    text = str(e).replace('scheduler=', '--scheduler=', 1)
    command = _resume_command(settings, run_dir)
    progress.say(f'{text} This goes on:\n    {command}', sys.stderr)
    return _FAILED
  except fitting.TooFewExamplesError as e:
    raise program.WrongUsage(str(e)) from e
  _print_result(settings, population, result)
  return 0 if result.is_finished else _INTERRUPTED


def train(
  settings: settings_lib.Settings,
  population: population_lib.Population,
  run_dir: str,
  not_covered: Sequence[str] = (),
) -> learning.Result:
  """Trains, and writes all results and the picture to the run directory."""
  # Otherwise last digits, and with them resuming, would depend on the processors.
  with contextlib.suppress(RuntimeError):  # TensorFlow is in use already.
    tf.config.threading.set_intra_op_parallelism_threads(1)
  if settings.facts not in (None, population.facts):
    raise program.WrongUsage(
      'the data have changed since their flags were checked; the same command reads '
      'them again.'
    )
  stated = settings.flags['num_clients']
  if stated not in (None, population.num_clients):
    raise program.WrongUsage(
      f'--num_clients={stated}, and the data have {population.num_clients} clients of '
      f'their own; leave it out, or give --num_clients={population.num_clients}.'
    )
  shape = population.shape
  settings.model.check_for(population)
  model = settings.model.make(shape, settings.run.seed)
  privacy, run = settings.privacy, settings.run
  num_clients = population.num_clients + (run.audit_canaries or 0)
  schedule = settings.participation.schedule(num_clients)
  try:
    settings_lib.check_cohorts(privacy, schedule)
    if privacy.mechanism is not None:
      privacy.mechanism.part_of(
        models_lib.weight_names(model), models_lib.weights_in_words(model)
      )
  except ValueError as e:
    raise program.WrongUsage(str(e)) from e
  mechanism: Any = privacy.nbafl or privacy.mechanism
  if privacy.simulated_cohort_scale != 1:
    mechanism = learning.SimulatedCohort(mechanism, privacy.simulated_cohort_scale)
  test = None
  if population.test_examples is not None:
    measured = settings.model.test_metrics(shape, population.label_scaling)
    test = learning.Evaluation(population.test_examples, measured, run.evaluate_every)
  is_seeded = privacy.mechanism is not None and not (
    run.secret_noise or privacy.is_always_secret
  )
  options = learning.RunOptions(
    noise_seed=run.seed if is_seeded else None,
    packed_simulation='auto'
    if run.packed_simulation is None
    else run.packed_simulation,
    checkpoint_seconds=run.checkpoint_seconds,
    timeout_seconds=run.timeout_seconds,
    trusted_network=settings.trusted_network,
    settings=settings.flags,
    preprocessing=population.preprocessing and population.preprocessing.to_json(),
    target_epsilon=privacy.target_epsilon,
    not_covered=(*population.not_covered, *not_covered),
    data_facts=population.facts or None,
    audit_canaries=run.audit_canaries or 0,
    audit_confidence=run.audit_confidence,
  )
  with warnings.catch_warnings():
    warnings.showwarning = _print_warning
    result = learning.train(
      model,
      population.clients,
      mechanism,
      run_dir,
      delta=privacy.delta,
      clip_norm=privacy.clip_norm,
      schedule=schedule,
      seed=run.seed,
      scheduler=settings.scheduler,
      local=_client_training(settings),
      server=dataclasses.replace(
        settings.server, optimizer=_server_optimizer(settings)
      ),
      test=test,
      run=options,
    )
  name, saved = settings.model.metric.name, plotting.read_run(run_dir)
  if saved.has(f'test_{name}'):
    title = f'{settings.name}, {population.num_clients} clients'
    picture = plotting.picture([saved], y=f'test_{name}', title=title)
    plotting.save(picture, os.path.join(run_dir, f'{name}.png'))
  return result


def _print_warning(message: Any, *unused: Any, **unused_too: Any) -> None:
  """Prints a warning without its line of code."""
  progress.say(f'warning: {message}', sys.stderr)


def _client_training(settings: settings_lib.Settings) -> learning.ClientTraining:
  optimization, learning_rate_fn = settings.optimization, None
  optimizer = optimization_options.KINDS[optimization.client_optimizer].make
  if optimization.has_client_schedule:
    learning_rate_fn = optimization_options.client_learning_rate_fn(
      optimization.client_learning_rate_schedule,
      optimization.client_learning_rate,
      settings.participation.num_rounds,
    )
  else:
    optimizer = optimizer(optimization.client_learning_rate)
  return learning.ClientTraining(
    optimization.batch_size,
    optimization.local_epochs,
    optimizer,
    learning_rate_fn,
    optimization.proximal_strength,
  )


def _server_optimizer(
  settings: settings_lib.Settings,
) -> tff.learning.optimizers.Optimizer:
  optimization = settings.optimization
  if optimization.has_schedule:
    workload = optimization.workload(settings.participation.num_rounds)
    return learning.ServerSchedule(
      workload, optimization.server_learning_rate
    ).optimizer()
  rates = (optimization.server_learning_rate, optimization.server_momentum)
  kind = optimization_options.KINDS[optimization.server_optimizer]
  return kind.make(*rates, optimization.server_adaptivity)


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
  for remark in settings.remarks:
    progress.say(remark)


def _print_result(
  settings: settings_lib.Settings,
  population: population_lib.Population,
  result: learning.Result,
) -> None:
  metric = settings.model.metric.name
  # None if the run ended between two evaluations, or there are no test data.
  measured = result.metrics.get(f'test_{metric}')
  if measured is not None:
    progress.say(f'Test {metric} after {result.rounds} rounds: {measured:.4f}.')
    _, values = plotting.read_run(result.run_dir).points(
      plotting.ROUND, f'test_{metric}'
    )
    if remark := remark_on_no_change(settings.model.metric, values):
      progress.say(remark)
    if settings.model.metric.best_constant and population.test_examples is not None:
      labels, scaling = population.test_examples[1], population.label_scaling
      labels = labels if scaling is None else scaling.undone(labels)
      is_class = population.shape.label_kind == 'class'
      names = population.shape.names if is_class else None
      if remark := remark_on_constant(settings.model.metric, measured, labels, names):
        progress.say(remark)
  progress.say(_spent(settings, result))
  if settings.privacy.nbafl is not None:
    progress.say(
      f'NbAFL was asked for epsilon {settings.privacy.nbafl.epsilon:g}: its claim, of '
      'one example of a client, which rests on clipping of examples. The one above is '
      'what holds of a client, in all that it sends; the report has both.'
    )
  report = os.path.join(result.run_dir, 'report.md')
  progress.say(f'Results are in {result.run_dir}; read {report} first.')
  if not result.is_finished:
    progress.say(
      f'Ended before its {result.num_rounds} rounds. This goes on:\n    '
      f'{_resume_command(settings, result.run_dir)}'
    )


def _resume_command(settings: settings_lib.Settings, run_dir: str) -> str:
  return f'{settings.command} {shlex.quote(f"--run_dir={run_dir}")}'


def remark_on_no_change(metric: metrics.Metric, values: Sequence[float]) -> str:
  """Returns a remark if a metric is the same in all evaluations; else ''.

  Example:
    >>> remark_on_no_change(metrics.METRICS['accuracy'], [0.5, 0.5, 0.5])[:51]
    'Note: test accuracy is 0.5000 in all 3 rounds that '
    >>> remark_on_no_change(metrics.METRICS['accuracy'], [0.5, 0.5, 0.6])
    ''
  """
  best = metric.limits[1 if metric.higher_is_better else 0]
  if len(values) < 2 or len(set(values)) > 1 or values[0] == best:
    return ''
  return (
    f'Note: test {metric.name} is {values[0]:.4f} in all {len(values)} rounds that '
    'were measured, so by it the model has learned nothing. Look at the loss; '
    f'{_WHAT_TO_TRY}'
  )


def remark_on_constant(
  metric: metrics.Metric,
  measured: float,
  labels: np.ndarray,
  names: Optional[Sequence[str]] = None,
) -> str:
  """Returns a remark if a constant answer is about as good as the model; else ''."""
  assert metric.best_constant is not None
  best, values = metric.best_constant(np.asarray(labels, np.float64))
  baseline = float(np.mean(values))
  by_example = values.reshape(len(values), -1).mean(axis=1)
  better = measured - baseline if metric.higher_is_better else baseline - measured
  if better > 2 * float(np.std(by_example)) / math.sqrt(len(by_example)):
    return ''
  verdict = 'is no better'
  if better > 0:
    verdict = 'is not clearly better (by less than two standard errors)'
  answers = [f'{each:.6g}' for each in np.ravel(best)]
  if names is not None:
    answers = [names[int(best)]]
  return (
    f'Note: the constant answer {", ".join(answers)} to all test examples has '
    f'{metric.name} {baseline:.4f}, and the model, with {measured:.4f}, {verdict}. '
    f'Look at the loss, or of two classes or tags at --metric=auc; {_WHAT_TO_TRY}'
  )


def _spent(settings: settings_lib.Settings, result: learning.Result) -> str:
  guarantee = result.statement['guarantee']
  mechanism, scale = settings.privacy.mechanism, settings.privacy.simulated_cohort_scale
  if mechanism is None:
    return 'No privacy: epsilon is infinite.'
  if scale != 1:
    return f'No guarantee: {_cohorts(settings)}.'
  if mechanism.placement.is_simulation:
    text = f'No guarantee: {terms.PLACEMENTS[mechanism.noise_site].help}.'
    epsilon = result.statement['mechanism']['simulated_epsilon']
    if epsilon is None:
      return text
    return (
      f'{text} It stands for (epsilon, delta) = ({rounding.up(epsilon)}, '
      f'{result.delta:g}) local differential privacy of what each client would send in '
      'all planned rounds.'
    )
  is_exact = (
    mechanism.sensitivity_kind != 'bound'
    and guarantee['accountant'] == accountants.EXACT
  )
  epsilon = rounding.up(guarantee['epsilon'])
  spent = (
    f'Privacy spent in {result.rounds} of {result.num_rounds} rounds: '
    f'(epsilon, delta) = ({epsilon}, {guarantee["delta"]:g}) for each client, '
    f'{"exact" if is_exact else "an upper bound"}.'
  )
  stopped = result.statement.get('stopped')
  if stopped:
    alone = stopped['epsilon_completed']
    spent = (
      f'{spent[:-1]}, that of the plan. If no result decided when to stop it is '
      f'{rounding.up(alone)}: tff-dp-report --rounds_fixed_by states what did.'
    )
  lines = [spent]
  audit = result.statement.get('canaries')
  if audit is not None:
    bound = rounding.down(max(each['epsilon'] for each in audit['bounds']), 4)
    lines.append(
      f'An attacker with {audit["num_canaries"]} canaries showed, with confidence '
      f'{audit["confidence"]:g}, that epsilon is at least {bound}: a lower bound, no '
      'guarantee.'
    )
  # The first sentence of each; the report says what follows.
  warnings = [each.split('. ')[0].rstrip('.') for each in result.statement['warnings']]
  return '\n'.join([*lines, *(f'{each}.' for each in warnings)])


def _cohorts(settings: settings_lib.Settings) -> str:
  """Describes both cohorts, if the noise is that of a larger one."""
  scale = settings.privacy.simulated_cohort_scale
  clients = settings.participation.clients_per_round
  return (
    f'the noise is that of a cohort of {scale * clients:g}, {scale:g} times the '
    f"run's own of {clients:g}"
  )


def _headline(settings: settings_lib.Settings, run_dir: str) -> str:
  noise = 'no privacy'
  mechanism = settings.privacy.mechanism
  if mechanism is not None:
    effective = mechanism.effective_noise_multiplier
    noise = f'{mechanism.noise_in_words()} relative to the clip norm'
    if effective is not None:
      noise += f', {effective:.4f} relative to the sensitivity'
    if mechanism.has_integer_noise:  # The report has the cost of rounding to integers.
      noise = f'{noise} before rounding'
    if mechanism.placement.is_of_client:
      noise = f'{noise}, of each client'
    if mechanism.server_noise_multiplier is not None:
      on_top = mechanism.server_noise_multiplier
      noise = f'{noise}, and {on_top:.4f} of the server relative to the clip norm'
  if settings.privacy.simulated_cohort_scale != 1:
    noise = f'{noise}; no guarantee, as {_cohorts(settings)}'
  return f'{settings.name}: {noise}. Writing to {run_dir}.'  # `train` prints more.

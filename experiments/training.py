"""The simulation itself: a task's data and model, trained by `learning.train`."""

import os
import shlex
import time
from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import learning
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import run_directory

from . import plots
from . import settings as settings_lib
from .data import population as population_lib

_INTERRUPTED = 130  # Exit code of a program ended by Ctrl-C.


def run(settings: settings_lib.Settings) -> int:
  """Trains, reports, and returns the exit code.

  Ctrl-C ends the training after its round; the report says what was spent until then,
  and the same flags go on.

  Args:
    settings: Checked settings.

  Raises:
    ValueError: If the data, or the model for them, are not what the settings ask, or
      the run in the directory was begun with other flags.
  """
  population = settings.task.load(settings.data)
  run_dir = settings.run.run_dir or _new_name(settings.name)
  progress.say(_headline(settings, run_dir))
  result = train(settings, population, run_dir)
  _say_how_it_went(settings, result)
  return 0 if result.is_finished else _INTERRUPTED


def train(
  settings: settings_lib.Settings, population: population_lib.Population, run_dir: str
) -> learning.Result:
  """Trains, and leaves everything in the run directory, the picture included.

  Args:
    settings: Checked settings.
    population: Of the settings' task, for their options.
    run_dir: Where everything is left.

  Raises:
    ValueError: If the model is not for the data, or the run in the directory was begun
      with other flags.
  """
  shape = population.shape
  kind, metric = settings.model.kind, settings.model.metric
  why_not = kind.why_not(shape)
  if why_not is not None:
    raise ValueError(f'--model={kind.name} is not for these data: {why_not}.')
  privacy, optimization, run = settings.privacy, settings.optimization, settings.run
  result = learning.train(
    kind.build(shape),
    population.clients,
    privacy.mechanism,
    run_dir,
    delta=privacy.delta,
    clip_norm=privacy.clip_norm if privacy.mechanism else None,
    clients_per_round=privacy.clients_per_round,
    num_rounds=privacy.participation.num_rounds,
    batch_size=optimization.batch_size,
    local_epochs=optimization.local_epochs,
    client_optimizer=_optimizer(
      optimization.client_optimizer, optimization.client_learning_rate
    ),
    server_optimizer=_optimizer(
      optimization.server_optimizer,
      optimization.server_learning_rate,
      optimization.server_momentum,
    ),
    test_data=population.test_examples,
    test_metrics={metric.name: metric.make(shape)},
    seed=run.seed,
    noise_seed=None if run.secret_noise else run.seed,
    target_epsilon=privacy.target_epsilon,
    timeout_seconds=run.timeout_seconds,
    settings=settings.flags,
  )
  _draw(settings, run_dir, population.num_clients)
  return result


def _new_name(name: str) -> str:
  """A directory under `runs` that is not there yet."""
  path = os.path.join('runs', f'{name}-{time.strftime("%Y%m%d-%H%M%S")}')
  number, chosen = 1, path
  while os.path.exists(chosen):
    number += 1
    chosen = f'{path}-{number}'
  return chosen


def _optimizer(
  name: str, learning_rate: float, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
  if name == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum)


def _draw(settings: settings_lib.Settings, run_dir: str, num_clients: int) -> None:
  """Leaves the picture of the metric and of epsilon."""
  metric = settings.model.metric
  rows = metrics_file.read(os.path.join(run_dir, run_directory.METRICS))
  plots.draw(
    os.path.join(run_dir, f'{metric.name}.png'),
    metric,
    [int(row['round']) + 1 for row in rows],
    [float(row[f'test_{metric.name}']) for row in rows],
    [float(row['epsilon']) if settings.privacy.mechanism else None for row in rows],
    title=f'{settings.name}, {num_clients} clients',
    delta=settings.privacy.delta,
  )


def _say_how_it_went(settings: settings_lib.Settings, result: learning.Result) -> None:
  metric = settings.model.metric.name
  measured = result.metrics[f'test_{metric}']
  progress.say(f'Test {metric} after {result.rounds} rounds: {measured:.4f}.')
  progress.say(_spent(result))
  report = os.path.join(result.run_dir, 'report.md')
  progress.say(f'Results are in {result.run_dir}; read {report} first.')
  if not result.is_finished:
    progress.say(
      f'Ended before its {result.num_rounds} rounds. This goes on:\n    '
      f'{settings.command} {shlex.quote(f"--run_dir={result.run_dir}")}'
    )


def _spent(result: learning.Result) -> str:
  guarantee, mechanism = result.statement['guarantee'], result.statement['mechanism']
  if mechanism is None:
    return 'No privacy: epsilon is infinite.'
  is_bound = mechanism['sensitivity_kind'] == 'bound'
  epsilon = progress.format_number(guarantee['epsilon'])
  return (
    f'Privacy spent in {result.rounds} of {result.num_rounds} rounds: '
    f'(epsilon, delta) = ({epsilon}, {guarantee["delta"]:g}) for each client, '
    f'{"an upper bound" if is_bound else "exact"}.'
  )


def _headline(settings: settings_lib.Settings, run_dir: str) -> str:
  noise: Optional[str] = 'no privacy'
  mechanism = settings.privacy.mechanism
  if mechanism is not None:
    noise = (
      f'noise multiplier {mechanism.noise_multiplier:.4f} relative to the '
      f'clip norm, {mechanism.effective_noise_multiplier:.4f} relative to '
      'the sensitivity'
    )
  return f'{settings.name}: {noise}. Writing to {run_dir}.'  # train says the rest.

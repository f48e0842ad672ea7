"""The simulation itself: rounds, and what they leave behind."""

import contextlib
import os
import platform
import sys
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from experiments import federation as federation_lib
from experiments import plots
from experiments import run_directory
from experiments import settings as settings_lib
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning import schedules

_INTERRUPTED = 130  # Exit code of a program ended by Ctrl-C.


def run(settings: settings_lib.Settings) -> int:
  """Trains, reports, and returns the exit code.

  Ctrl-C ends the training, after which the report says what was spent until then.

  Args:
    settings: Checked settings.

  Raises:
    ValueError: If the task cannot be split as the settings ask.
  """
  federation = federation_lib.Federation.load(
    settings.task, settings.num_clients, settings.dirichlet_alpha, settings.seed
  )
  directory = run_directory.RunDirectory(settings.run_dir, settings.name)
  directory.write_json('config.json', _config(settings))
  if settings.mechanism is not None:
    settings.mechanism.strategy.save(directory.file('strategy.npz'))
  _say(_headline(settings, directory))
  interrupted = False
  history: list[dict[str, Any]] = []
  try:
    with runtime.local_runtime():
      _train(settings, federation, directory, history)
  except KeyboardInterrupt:
    interrupted = True
    _say('Interrupted.')
  if history:
    _finish(settings, directory, history)
  return _INTERRUPTED if interrupted else 0


def _train(
  settings: settings_lib.Settings,
  federation: federation_lib.Federation,
  directory: run_directory.RunDirectory,
  history: list[dict[str, Any]],
) -> None:
  """Runs the rounds; appends each one's metrics to `history` and to the files."""
  schedule = _schedule(settings)
  process = learning.build_dp_fed_avg(
    federation.model,
    _aggregator(settings),
    client_optimizer_fn=_optimizer(
      settings.client_optimizer, settings.client_learning_rate
    ),
    server_optimizer_fn=_optimizer(
      settings.server_optimizer,
      settings.server_learning_rate,
      settings.server_momentum,
    ),
  )
  state = process.initialize()
  order_seeds = np.random.default_rng([settings.seed, 1]).integers(
    2**31, size=(schedule.num_rounds, settings.clients_per_round)
  )
  metric = federation.metric.name
  with contextlib.ExitStack() as stack:
    ledger = stack.enter_context(
      ledger_lib.LedgerWriter(directory.file('ledger.jsonl'), settings.delta)
    )
    bar = stack.enter_context(
      tqdm.tqdm(
        total=schedule.num_rounds,
        unit='round',
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
      )
    )
    for this_round, seeds in enumerate(order_seeds):
      cohort = schedule.cohort(this_round)
      output = process.next(state, _client_data(settings, federation, cohort, seeds))
      state = output.state
      weights = process.get_model_weights(state)
      entry = _append(ledger, settings, output, weights, reported=len(cohort))
      metrics = _metrics(federation, weights, output, entry)
      directory.append_metrics(metrics)
      history.append(metrics)
      bar.set_postfix(
        {
          'loss': f'{metrics["test_loss"]:.3f}',
          metric: f'{metrics[f"test_{metric}"]:.3f}',
          'epsilon': _format_epsilon(entry.epsilon),
        },
        refresh=False,
      )
      bar.update()


def _schedule(settings: settings_lib.Settings) -> schedules.Schedule:
  return schedules.RandomEligible(
    settings.participation,
    settings.num_clients,
    settings.clients_per_round,
    settings.seed,
  )


def _client_data(
  settings: settings_lib.Settings,
  federation: federation_lib.Federation,
  cohort: np.ndarray,
  seeds: np.ndarray,
) -> list[tf.data.Dataset]:
  return [
    federation.client_dataset(
      int(client), settings.batch_size, settings.local_epochs, int(seed)
    )
    for client, seed in zip(cohort, seeds)
  ]


def _aggregator(
  settings: settings_lib.Settings,
) -> tff.aggregators.UnweightedAggregationFactory:
  if settings.mechanism is None:
    return tff.aggregators.UnweightedMeanFactory()
  return aggregators.from_mechanism(
    settings.mechanism,
    clip_norm=settings.clip_norm,
    clients_per_round=settings.clients_per_round,
    # By name, so that the noise does not depend on what ran before in this process.
    seed=None if settings.secret_noise else noise.Seed(settings.seed),
    generator=settings.noise_generator,
  )


def _optimizer(
  name: str, learning_rate: float, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
  if name == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum)


def _append(
  ledger: ledger_lib.LedgerWriter,
  settings: settings_lib.Settings,
  output: Any,
  weights: tff.learning.models.ModelWeights,
  reported: int,
) -> ledger_lib.LedgerEntry:
  """Writes down what the round released, before anything is made of it."""
  mechanism, tag = settings.mechanism, None
  if mechanism is None:
    event = dp_accounting.NonPrivateDpEvent()
  else:
    event = aggregators.extract_dp_event(output.state).last_round_only
    measured = output.metrics['aggregator']['dp_query_metrics']
    tag = measured['noise_key_tag'].decode() or None  # Of secret keys only.
  return ledger.append(
    event=event,
    cohort_requested=settings.clients_per_round,
    cohort_reported=reported,
    clip_norm=settings.clip_norm if mechanism else None,
    noise_multiplier=mechanism.noise_multiplier if mechanism else 0.0,
    strategy_checksum=mechanism.strategy.checksum if mechanism else None,
    result_checksum=ledger_lib.checksum_of(tf.nest.flatten(weights)),
    noise_generator=settings.noise_generator if mechanism else None,
    noise_key_tag=tag,
  )


def _metrics(
  federation: federation_lib.Federation,
  weights: tff.learning.models.ModelWeights,
  output: Any,
  entry: ledger_lib.LedgerEntry,
) -> dict[str, Any]:
  evaluation = federation.evaluate(weights)
  return {
    'round': entry.round,
    **{f'test_{name}': value for name, value in evaluation.items()},
    'clients': entry.cohort_reported,
    'nonfinite_count': int(output.metrics['aggregator']['nonfinite_count']),
    'effective_noise_multiplier': entry.effective_noise_multiplier,
    'epsilon': entry.epsilon,
  }


def _config(settings: settings_lib.Settings) -> dict[str, Any]:
  privacy = None
  if settings.mechanism is not None:
    enforced_by = _schedule(settings).enforced_by
    privacy = {
      'mechanism': settings.mechanism.to_json(),
      'target_epsilon': settings.target_epsilon,
      'delta': settings.delta,
      'clip_norm': settings.clip_norm,
      'clients_per_round': settings.clients_per_round,
      'enforced_by': enforced_by,
      'cap_enforced_by': enforced_by,
      'noise_source': settings.noise_source,
      'noise_generator': settings.noise_generator,
      'noise_seed': None if settings.secret_noise else settings.seed,
    }
  return {
    'program': 'experiments.simulate',
    'flags': settings.flags,
    'privacy': privacy,
    'software': {
      **version.current().to_json(),
      'tensorflow': tf.__version__,
      'tensorflow-federated': tff.__version__,
      'python': platform.python_version(),
    },
  }


def _finish(
  settings: settings_lib.Settings,
  directory: run_directory.RunDirectory,
  history: list[dict[str, Any]],
) -> None:
  """Writes report and picture, and says how it went."""
  last = history[-1]
  if settings.mechanism is None:
    statement = statement_lib.build_without_privacy()
    spent = 'No privacy: epsilon is infinite.'
  else:
    statement = statement_lib.build(sources.from_run_dir(directory.path))
    guarantee, rounds = statement['guarantee'], statement['run']['rounds_completed']
    is_bound = statement['mechanism']['sensitivity_kind'] == 'bound'
    spent = (
      f'Privacy spent in {rounds} of {settings.participation.num_rounds} rounds: '
      f'(epsilon, delta) = ({_format_epsilon(guarantee["epsilon"])}, '
      f'{guarantee["delta"]:g}) for each client, '
      f'{"an upper bound" if is_bound else "exact"}.'
    )
  for suffix, output_format in (
    ('md', 'markdown'),
    ('json', 'json'),
    ('html', 'html'),
  ):
    text = rendering.render(statement, output_format)
    directory.write_text(f'report.{suffix}', text)
  metric = settings.task.metric
  column = f'test_{metric.name}'
  plots.draw(
    directory.file(f'{metric.name}.png'),
    metric,
    [metrics['round'] + 1 for metrics in history],
    [metrics[column] for metrics in history],
    [metrics['epsilon'] for metrics in history],
    title=f'{settings.name}, {settings.num_clients} clients',
    delta=settings.delta,
  )
  _say(f'Test {metric.name} after {len(history)} rounds: {last[column]:.4f}.')
  _say(spent)
  _say(f'Results are in {directory.path}; read {directory.file("report.md")} first.')


def _headline(
  settings: settings_lib.Settings, directory: run_directory.RunDirectory
) -> str:
  if settings.mechanism is None:
    noise = 'no privacy'
  else:
    noise = (
      f'noise multiplier {settings.mechanism.noise_multiplier:.4f} relative to the '
      f'clip norm, {settings.mechanism.effective_noise_multiplier:.4f} relative to '
      'the sensitivity'
    )
  return (
    f'{settings.name}: {settings.participation.num_rounds} rounds of '
    f'{settings.clients_per_round} of {settings.num_clients} clients; {noise}. '
    f'Writing to {directory.path}.'
  )


def _format_epsilon(epsilon: Optional[float]) -> str:
  return 'infinite' if epsilon is None else f'{epsilon:.4f}'


def _say(text: str) -> None:
  """Prints a line; a reader that went away is no reason to lose a run."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # Python would complain again at exit, when it flushes what could not be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

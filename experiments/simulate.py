r"""Trains a federated model with differential privacy, on simulated clients.

    python -m experiments.simulate
    python -m experiments.simulate --mechanism=tree --target_epsilon=4
    python -m experiments.simulate --mechanism=none --num_rounds=50

Without flags: logistic regression on handwritten digits, 300 clients with skewed
labels, banded matrix factorization, and the noise that (8, 1e-5)-DP needs. Leaves a
run directory with config.json, metrics.csv, ledger.jsonl, the privacy report as
report.md, report.json and report.html, strategy.npz, model.npz, accuracy.png, and
events for TensorBoard. A run that was stopped goes on with the same flags and its
--run_dir.
"""

import os
import warnings
from typing import Any, Callable

from absl import flags

from experiments import tasks
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program

# Quiet TensorFlow's start-up notices; they come before any option could be set.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')


def define(values: flags.FlagValues) -> None:
  """Defines the program's flags."""

  def of_task(define_flag: Callable[..., Any], name: str, text: str) -> None:
    """Defines a flag whose default the task says."""
    defaults = '; '.join(
      f'{getattr(task.defaults, name)} for {task.name}' for task in tasks.TASKS.values()
    )
    define_flag(name, None, f'{text} Default: {defaults}.', flag_values=values)

  flags.DEFINE_enum(
    'task',
    next(iter(tasks.TASKS)),
    list(tasks.TASKS),
    'What to train: '
    + '; '.join(f'{task.name}, {task.summary}' for task in tasks.TASKS.values())
    + '.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'mechanism',
    'banded',
    [*mechanism_lib.NAMES, 'none'],
    'Privacy mechanism; none for no privacy.',
    flag_values=values,
  )
  of_task(
    flags.DEFINE_float,
    'clip_norm',
    "L2 bound of one client's contribution to one round.",
  )
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clip norm. Give this or '
    '--target_epsilon.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_epsilon',
    None,
    'Privacy target from which the noise follows. Default, if --noise_multiplier is '
    'not given either: 8.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_delta',
    1e-5,
    'Delta of the guarantee; well below 1 / num_clients.',
    flag_values=values,
  )
  of_task(flags.DEFINE_integer, 'num_rounds', 'Rounds to train.')
  of_task(flags.DEFINE_integer, 'num_clients', 'Clients in the population.')
  of_task(flags.DEFINE_integer, 'clients_per_round', 'Clients in a round.')
  of_task(
    flags.DEFINE_integer,
    'min_separation',
    'Smallest difference of two rounds of one client. Larger is better for privacy, '
    'and needs clients_per_round * min_separation clients.',
  )
  flags.DEFINE_integer(
    'max_participations',
    None,
    'Most rounds of one client. Default: as many as --min_separation leaves possible.',
    flag_values=values,
  )
  flags_lib.define_options(values)
  flags.DEFINE_float(
    'dirichlet_alpha',
    0.5,
    'Label skew between clients; small is more skewed.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'client_optimizer',
    'sgd',
    ['sgd', 'adam'],
    'Optimizer of local training.',
    flag_values=values,
  )
  of_task(
    flags.DEFINE_float, 'client_learning_rate', 'Learning rate of local training.'
  )
  flags.DEFINE_enum(
    'server_optimizer',
    'sgd',
    ['sgd', 'adam'],
    'Optimizer of the global model.',
    flag_values=values,
  )
  of_task(
    flags.DEFINE_float, 'server_learning_rate', 'Learning rate of the global model.'
  )
  flags.DEFINE_float(
    'server_momentum',
    None,
    'Momentum of the server optimizer sgd. Default: 0.9.',
    flag_values=values,
  )
  of_task(flags.DEFINE_integer, 'batch_size', 'Examples in a batch of local training.')
  of_task(
    flags.DEFINE_integer, 'local_epochs', "Passes over a client's data in a round."
  )
  flags.DEFINE_integer(
    'seed',
    1,
    'Of the split into clients, their selection and order, and the noise: same seed, '
    'same result. Noise from a known seed protects nobody, which is right for a '
    'simulation; see --secret_noise.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'secret_noise',
    False,
    'Draw the noise from a secret key instead of --seed. The run can then not be '
    'repeated exactly.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'timeout_seconds',
    3600.0,
    'How long a round may take; one that takes longer ends the program with an error, '
    'and the same command goes on.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'run_dir',
    None,
    'Where to leave the results: a directory that does not exist or is empty, or one '
    'of a run with the same flags, which goes on. Default: a new directory under runs.',
    flag_values=values,
  )


def main(values: flags.FlagValues) -> int:
  """Runs the simulation; returns the exit code."""
  # What can be refused is refused before TensorFlow is loaded, in a second.
  from experiments import settings as settings_lib
  from tff_dp_aggregators.learning.runs import run_directory

  try:
    settings = settings_lib.from_flags(values)
    if settings.run_dir is not None:
      _make(settings.run_dir)
      run_directory.check_flags(settings.run_dir, settings.flags)
  except (ValueError, FileExistsError) as e:
    raise program.WrongUsage(str(e)) from e
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of TFF's dependencies, about each other.
    from experiments import training
  try:
    return training.run(settings)
  except (run_directory.OtherSettingsError, BlockingIOError) as e:
    raise program.WrongUsage(str(e)) from e


def _make(run_dir: str) -> None:
  """Makes the directory, so that one that cannot be made is no surprise later."""
  try:
    os.makedirs(run_dir, exist_ok=True)
  except OSError as e:
    raise program.WrongUsage(
      f'--run_dir={run_dir} cannot be made: {e.strerror}. Give another directory.'
    ) from e


# Errors of the training itself are shown with where they happened.
PROGRAM = program.Program(
  'simulate', __doc__ or '', define, main, refusals=(program.WrongUsage,)
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

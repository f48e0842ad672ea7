r"""Trains a federated model with differential privacy, on simulated clients.

    python -m experiments.simulate
    python -m experiments.simulate --mechanism=tree --target_epsilon=4
    python -m experiments.simulate --mechanism=none --num_rounds=50

Without flags: logistic regression on handwritten digits, 300 clients with skewed
labels, banded matrix factorization, and the noise that (8, 1e-5)-DP needs. Leaves a
run directory with config.json, metrics.csv, ledger.jsonl, report.md, report.json and
accuracy.png.
"""

import os
import sys
import warnings

from absl import app
from absl import flags
from absl import logging

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import flags as flags_lib

# Quiet TensorFlow's start-up notices; they come before any option could be set.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

FLAGS = flags.FLAGS

flags.DEFINE_enum('task', 'digits', ['digits'], 'What to train.')
flags.DEFINE_enum(
  'mechanism',
  'banded',
  [*mechanism_lib.NAMES, 'none'],
  'Privacy mechanism; none for no privacy.',
)
flags.DEFINE_float(
  'clip_norm', 1.0, "L2 bound of one client's contribution to one round."
)
flags.DEFINE_float(
  'noise_multiplier',
  None,
  'Standard deviation of the noise over the clip norm. Give this or --target_epsilon.',
)
flags.DEFINE_float(
  'target_epsilon',
  None,
  'Privacy target from which the noise follows. Default, if --noise_multiplier is '
  'not given either: 8.',
)
flags.DEFINE_float(
  'target_delta', 1e-5, 'Delta of the guarantee; well below 1 / num_clients.'
)
flags.DEFINE_integer('num_rounds', 100, 'Rounds to train.')
flags.DEFINE_integer('num_clients', 300, 'Clients in the population.')
flags.DEFINE_integer('clients_per_round', 30, 'Clients in a round.')
flags.DEFINE_integer(
  'min_separation',
  10,
  'Smallest difference of two rounds of one client. Larger is better for privacy, '
  'and needs clients_per_round * min_separation clients.',
)
flags.DEFINE_integer(
  'max_participations',
  None,
  'Most rounds of one client. Default: as many as --min_separation leaves possible.',
)
flags_lib.define_options()
flags.adopt_module_key_flags(flags_lib)  # For --help and the record.
flags.DEFINE_float(
  'dirichlet_alpha', 0.5, 'Label skew between clients; small is more skewed.'
)
flags.DEFINE_enum(
  'client_optimizer', 'sgd', ['sgd', 'adam'], 'Optimizer of local training.'
)
flags.DEFINE_float('client_learning_rate', 0.5, 'Learning rate of local training.')
flags.DEFINE_enum(
  'server_optimizer', 'sgd', ['sgd', 'adam'], 'Optimizer of the global model.'
)
flags.DEFINE_float('server_learning_rate', 0.2, 'Learning rate of the global model.')
flags.DEFINE_float(
  'server_momentum', None, 'Momentum of the server optimizer sgd. Default: 0.9.'
)
flags.DEFINE_integer('batch_size', 5, 'Examples in a batch of local training.')
flags.DEFINE_integer('local_epochs', 1, "Passes over a client's data in a round.")
flags.DEFINE_integer(
  'seed',
  1,
  'Of the split into clients, their selection and order, and the noise: same seed, '
  'same result. Noise from a known seed protects nobody, which is right for a '
  'simulation; see --secret_noise.',
)
flags.DEFINE_bool(
  'secret_noise',
  False,
  "Draw the noise from the operating system's entropy instead of --seed. The run "
  'can then not be repeated exactly.',
)
flags.DEFINE_string(
  'run_dir',
  None,
  'Where to leave the results; must not exist, or be empty. Default: a new '
  'directory under runs.',
)


def main(argv: list[str]) -> int:
  """Runs the simulation; returns the exit code."""
  # What can be refused is refused before TensorFlow is loaded, in a second.
  from experiments import settings as settings_lib

  if len(argv) > 1:
    print(f'error: unexpected arguments {argv[1:]}; all are flags.', file=sys.stderr)
    return 2
  try:
    settings = settings_lib.from_flags(FLAGS)
  except (ValueError, FileExistsError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of TFF's dependencies, about each other.
    from experiments import training
  if FLAGS.verbosity == logging.INFO:  # Where app.run sets it; --verbosity=1 for more.
    logging.set_verbosity(logging.WARNING)
  return training.run(settings)


if __name__ == '__main__':
  app.run(main)

r"""Trains a federated model with differential privacy, on simulated clients.

    tff-dp-simulate
    tff-dp-simulate --mechanism=tree --target_epsilon=4
    tff-dp-simulate --mechanism=none --num_rounds=50

Without flags: logistic regression on handwritten digits, 300 clients with skewed
labels, banded matrix factorization, and the noise that (8, 1e-5)-DP needs. Defaults for
your own data (--data) are in docs/own_data.md#defaults. The run directory gets
config.json, metrics.csv, ledger.jsonl, the privacy report as report.md, report.json and
report.html, strategy.npz, model.npz, accuracy.png, events for TensorBoard, and the
model in the folder architecture, which tff-dp-predict uses. Keep private.json to
yourself; the folder share may be published. The same flags with --run_dir resume a run
that was stopped.
"""

import warnings

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning import options as learning_options
from tff_dp_aggregators.learning.runs import run_directory

from . import settings as settings_lib
from .options import run as run_options


def main(values: flags.FlagValues) -> int:
  try:  # Wrong flags are refused within a second, before TensorFlow is loaded.
    settings = settings_lib.from_flags(values)
    if settings.run.run_dir is not None:
      run_options.make_directory(settings.run.run_dir, 'run_dir')
      run_directory.check_flags(
        settings.run.run_dir, settings.flags, settings.facts, settings.checksums
      )
  except program.BAD_INPUT as e:
    raise program.WrongUsage(program.error_message(e)) from e
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # TFF's dependencies warn about each other.
    from . import training
  return training.run(settings)


PROGRAM = program.Program(
  'tff-dp-simulate',
  __doc__ or '',
  settings_lib.groups,
  main,
  # Other errors of the training are shown with a traceback.
  (run_directory.FilesError, learning_options.TooFewExamplesError, BlockingIOError),
  settings_lib.BASIC,
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

"""A campaign of faults against a training on workers, which none of them may change.

    python -m benchmarks.worker_faults [--faults=200] [--seed=1] [--workers=3]

Starts workers, each behind a proxy, one of them on a network of its own where this user
may make one (root, by ip netns). A small private training runs on them, round after
round, and each round's state and metrics have to be, to the bit, those of a training
without workers. Meanwhile faults come at random moments, to one worker, or to several
at once, and now and then to all: processes are killed, stopped and left without memory,
connections refused, closed, swallowed and slowed down, the link is set down, and
answers are random bytes, of another type, damaged by one bit, those of an earlier pack,
errors, or never come.

Prints for each kind how many of its faults were noticed, that is whose worker was said
to be lost, and how long that took at most. Others were over before anything waited for
that worker. Ends with 1 if a round took more than a minute, was lost or came to other
bits, if the loss of a worker was not noted for the ledger, if a worker was not used
again in the end, or if threads were left over.

Workers have 2 s to say how they are, here. A worker that answered garbage is tried
again after 5 s instead of 30, and given up on a pack after 15 s instead of 600, so that
more faults come in a minute.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import sys

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(__doc__ or '', faults=200, seed=1, workers=3)

from benchmarks.faults import campaign


def main() -> None:
  """Prints a line for each kind, and what became of all."""
  try:
    planned = campaign.Campaign(
      faults=_FLAGS.faults,
      seed=_FLAGS.seed,
      workers=_FLAGS.workers,
      say=lambda line: print(line, flush=True),
    )
  except ValueError as e:
    sys.exit(f'error: {e}')
  outcome = planned.run()
  for error in outcome.errors:
    print(error)
  print('\n'.join(campaign.table(outcome)), flush=True)
  if outcome.hangs:
    os._exit(1)  # What hangs would be waited for.
  sys.exit(not outcome.is_good)


if __name__ == '__main__':
  main()

"""Lower bounds of epsilon that jax_privacy states, for canaries_test.py.

It runs in jax_privacy's own environment, which `tools/python/make_peer.sh jax_privacy`
makes, and prints jax_privacy_audits.json, in seconds; from a checkout:

    build/peers/jax_privacy/bin/python tools/peers/jax_privacy_audits.py

jax_privacy guesses that canaries above a threshold were in, and no others. So scores
are made of which guesses are to be right, and both sides have the same counts.
"""

import json

import jax_privacy
import numpy as np
from jax_privacy import auditing

# Canaries, guesses, correct ones, delta and significance.
_COUNTS = [
  (100, 40, 36, 1e-5, 0.05),
  (100, 100, 80, 1e-5, 0.05),
  (400, 40, 40, 1e-6, 0.025),
  (1000, 176, 156, 1e-5, 0.025),
  (1000, 500, 497, 1e-5, 0.025),
  (1000, 1000, 560, 1e-8, 0.05),
  (1000, 1000, 510, 1e-5, 0.05),
  (5000, 700, 690, 1e-4, 0.01),
]


def _bounds(canaries, guesses, correct, delta, significance):
  """By both methods, of scores that are 1 where a guess is made."""
  half = canaries // 2
  inside, outside = np.zeros(half), np.zeros(canaries - half)
  inside[:correct] = 1.0
  outside[: guesses - correct] = 1.0
  if correct > half:  # Which are in does not matter, only how many are.
    inside = np.r_[np.ones(correct), np.zeros(canaries - guesses)]
    outside = np.ones(guesses - correct)
  auditor = auditing.CanaryScoreAuditor(inside, outside)
  at = {'threshold_strategy': auditing.Explicit(0.5)}
  return {
    'one_run': float(auditor.epsilon_one_run(significance, delta, **at)),
    'one_run_fdp': float(auditor.epsilon_one_run_fdp(significance, delta, **at)),
  }


def main():
  """Prints the bounds of all counts."""
  names = ('num_canaries', 'num_guesses', 'num_correct', 'delta', 'significance')
  print(f'{{"version": "{jax_privacy.__version__}", "audits": [')
  found = [{**dict(zip(names, each)), **_bounds(*each)} for each in _COUNTS]
  print(',\n'.join(map(json.dumps, found)))
  print(']}')


if __name__ == '__main__':
  main()

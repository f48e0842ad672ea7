"""Privacy losses that jax_privacy draws, for tests/accounting/accountants.

It runs in jax_privacy's own environment, which `tools/python/make_peer.sh jax_privacy`
makes, and prints jax_privacy.json, in four minutes; from a checkout:

    build/peers/jax_privacy/bin/python tools/peers/jax_privacy_losses.py

With names of settings it prints these alone.

For each setting and direction there are estimates of delta with their standard errors,
and, of both directions, a few outcomes, rounded, with the losses that are computed for
them. All columns begin with 1: of others jax_privacy 2.0.0 rounds the first entry to
float32, for balls in bins.
"""

import json
import sys

import jax_privacy
import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import sample_generation

_SEED = 20260
_BATCH = 2**14
# The first column of square roots of prefix sums.
_ROOT = [1.0, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375]
# Rounds, column, noise, draws of each direction, and how clients are drawn.
_BINS = {
  'bins': (24, _ROOT[:4], 1.0, 2**18, {'cycle_length': 8}),
  'bins with fewer rounds than bands': (12, _ROOT, 2.0, 2**18, {'cycle_length': 5}),
  'bins without rounds': (6, _ROOT[:2], 0.7, 2**18, {'cycle_length': 10}),
}
_SPACED = {
  'breaks': (24, _ROOT[:2], 1.0, 2**20, {'sampling_prob': 0.2, 'min_sep': 4}),
  'many rounds': (64, _ROOT[:2], 1.5, 2**20, {'sampling_prob': 0.1, 'min_sep': 2}),
  'long breaks': (12, _ROOT[:2], 0.7, 2**20, {'sampling_prob': 0.3, 'min_sep': 15}),
  'a cold start': (
    24,
    _ROOT[:2],
    1.0,
    2**20,
    {'sampling_prob': 0.2, 'min_sep': 4, 'warm_start': False},
  ),
  # Whose losses there are not those of any pair.
  'three bands': (3, _ROOT[:3], 1.0, 2**20, {'sampling_prob': 0.3, 'min_sep': 3}),
}
_EPSILONS = [0.25, 0.5, 1.0, 2.0, 3.0, 4.0]


def _estimates(losses):
  """Deltas with their standard errors."""
  found = []
  for epsilon in _EPSILONS:
    outcomes = np.maximum(-np.expm1(epsilon - losses), 0.0)
    error = outcomes.std() / np.sqrt(len(outcomes))
    found.append([float(f'{each:.10g}') for each in (outcomes.mean(), error)])
  return found


def _setting(make, seed, rounds, column, noise, size, sampling):
  scheme, column = make(iterations=rounds, **sampling), np.array(column)
  found = {
    'rounds': rounds,
    'column': column.tolist(),
    'noise': noise,
    'sampling': sampling,
    'draws': size,
    'seed': seed,
    'epsilons': _EPSILONS,
  }
  outcomes = []
  rng = np.random.default_rng(seed)
  for removed in (True, False):
    losses, first = [], None
    for _ in range(size // _BATCH):
      drawn, sample = sample_generation.get_privacy_loss_sample(
        scheme, noise, column, rng, removed, _BATCH
      )
      losses.append(drawn)
      first = sample if first is None else first
    name = 'deltas of removing' if removed else 'deltas of adding'
    found[name] = _estimates(np.concatenate(losses))
    outcomes.append(np.round(first[:, :6], 3))
  kept = np.concatenate(outcomes, axis=1)
  found['outcomes'] = kept.T.tolist()
  # log P / Q of each, whichever direction it was drawn for.
  losses = sample_generation.compute_privacy_loss(scheme, kept, noise, column)
  found['losses'] = losses.tolist()
  return found


def main():
  """Prints all settings, or those that are named."""
  found = {}
  settings = {**_BINS, **_SPACED}
  for i, (name, numbers) in enumerate(settings.items()):
    if len(sys.argv) == 1 or name in sys.argv[1:]:
      make = batch_selection.BMinSepSampling
      if name in _BINS:
        make = batch_selection.BallsInBinsSampling
      found[name] = _setting(make, _SEED + i, *numbers)
  print(f'{{"version": "{jax_privacy.__version__}", "settings": {{')
  for i, (name, setting) in enumerate(found.items()):
    print(f'"{name}": {{')
    lines = [f'"{key}": {json.dumps(value)}' for key, value in setting.items()]
    print(',\n'.join(lines))
    print('},' if i < len(found) - 1 else '}')
  print('}}')


if __name__ == '__main__':
  main()

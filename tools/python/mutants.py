r"""Mutation tests: breaks the package one line at a time, and prints which test fails.

    .venv/bin/python tools/python/mutants.py [--only=TEXT] [--jobs=2]

Each mutant is a mistake that reduces the noise, makes a sensitivity or an epsilon too
small, or counts a client wrongly. It is applied in a scratch copy of the checkout, in
which the tests listed with it run until one fails. Prints a table; exits with 1 if a
mutant passes all its tests, or if the line that it changes no longer exists.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDERS = ('tff_dp_aggregators', 'experiments', 'tests', 'benchmarks', 'tools', 'docs')
_TIMEOUT_SECONDS = 600.0


class Mutant(NamedTuple):
  """A mistake: `old`, which must occur exactly once in `file`, becomes `new`."""

  what: str
  file: str  # Below tff_dp_aggregators.
  old: str
  new: str
  tests: str  # Below tests, separated by spaces.


MUTANTS = (
  # Strategies and their sensitivity.
  Mutant(
    'columns of banded strategies are not normalised, but rows',
    'strategies/banded.py',
    'return diagonals / np.linalg.norm(diagonals, axis=0)',
    'return diagonals / np.linalg.norm(diagonals, axis=1, keepdims=True)',
    'strategies/banded_test.py',
  ),
  Mutant(
    'separation off by one in sums over patterns',
    'strategies/participation.py',
    'before = recent[max(0, t + 1 - separation) % separation]',
    'before = recent[max(0, t - separation) % separation]',
    'strategies/participation_test.py strategies/sensitivity_test.py',
  ),
  Mutant(
    'separation off by one in pairs of rounds',
    'strategies/sensitivity.py',
    'allowed = np.tril(pairs, -separation)',
    'allowed = np.tril(pairs, -separation - 1)',
    'strategies/sensitivity_test.py strategies/dense_test.py',
  ),
  Mutant(
    'separation off by one in bounds of rows',
    'strategies/sensitivity.py',
    'apart = np.abs(rounds[:, np.newaxis] - rounds) >= participation.min_separation',
    'apart = np.abs(rounds[:, np.newaxis] - rounds) > participation.min_separation',
    'strategies/sensitivity_test.py strategies/dense_test.py',
  ),
  Mutant(
    'columns count as disjoint that overlap in one row',
    'strategies/sensitivity.py',
    'return not np.any(np.tril(matrix, -participation.min_separation))',
    'return not np.any(np.tril(matrix, -participation.min_separation - 1))',
    'strategies/sensitivity_test.py strategies/dense_test.py',
  ),
  Mutant(
    'participations that are possible are rounded down',
    'strategies/participation.py',
    'return -(-self.num_rounds // self.min_separation)',
    'return max(1, self.num_rounds // self.min_separation)',
    'strategies/participation_test.py',
  ),
  Mutant(
    'noise of lower-triangular strategies has the wrong sign of the past',
    'strategies/recursion.py',
    'weights = -entries / entries[:, :1]',
    'weights = entries / entries[:, :1]',
    'strategies/recursion_test.py',
  ),
  # Noise.
  Mutant(
    'every vector of a row is the same',
    'noise/rows.py',
    'vector, place = first_vector + number // num_chunks, number % num_chunks',
    'vector, place = first_vector, number % num_chunks',
    'noise/rows_test.py noise/streaming_test.py',
  ),
  Mutant(
    'chunks of a vector share their words',
    'noise/rows.py',
    'key, index, vector, place * num_blocks, num_blocks)',
    'key, index, vector, 0 * num_blocks, num_blocks)',
    'noise/rows_test.py',
  ),
  Mutant(
    'rare words are those of the common ones',
    'noise/rows.py',
    'first_block = num_chunks * num_blocks + place * num_more',
    'first_block = place * num_more',
    'noise/rows_test.py noise/normal_test.py noise/chacha20_test.py',
  ),
  Mutant(
    'Gaussians are too small by a hundredth',
    'noise/rows.py',
    'radius = tf.sqrt(-2.0 * _log_uniform(radii, lower))',
    'radius = tf.sqrt(-1.98 * _log_uniform(radii, lower))',
    'noise/rows_test.py noise/normal_test.py',
  ),
  Mutant(
    'rounds use the row of the round before',
    'noise/streaming.py',
    'after = NoiseState(state.key, state.round + 1, kept)',
    'after = NoiseState(state.key, state.round + state.round % 2, kept)',
    'noise/streaming_test.py',
  ),
  Mutant(
    'buffers are written to the wrong slot',
    'noise/streaming.py',
    'slot = this_round % max(self.num_slots, 1)',
    'slot = (this_round + 1) % max(self.num_slots, 1)',
    'noise/streaming_test.py',
  ),
  Mutant(
    'nodes of a tree end a round early',
    'noise/streaming.py',
    'this_round - tf.bitwise.left_shift(tf.ones_like(levels), levels), -1',
    'this_round - tf.bitwise.left_shift(tf.ones_like(levels), levels) - 1, -1',
    'noise/streaming_test.py',
  ),
  Mutant(
    'the restart of a tree is forgotten',
    'noise/streaming.py',
    'in_tree = this_round % recursion.tree_rounds',
    'in_tree = this_round',
    'noise/streaming_test.py',
  ),
  Mutant(
    'processes of one factory have the same noise',
    'noise/options.py',
    'part = max(0, built - 1)',
    'part = 0',
    'noise/seeds_test.py noise/keys_test.py',
  ),
  Mutant(
    'objects built with one seed have the same noise',
    'noise/options.py',
    '_taken[value] += 1',
    '_taken[value] += 0',
    'noise/seeds_test.py noise/keys_test.py',
  ),
  # Clipping, sums and what is added to them.
  Mutant(
    'noise is less than the noise multiplier says',
    'queries/matrix_mechanism.py',
    'return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier\n',
    'return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier * 0.95\n',
    'learning/audit_test.py',
  ),
  Mutant(
    'a tensor has no noise',
    'queries/grid.py',
    'return tf.nest.map_structure(add, sums, noise)',
    'return tf.nest.map_structure('
    'lambda t, z: add(t, z if t.shape.rank else tf.zeros_like(z)), sums, noise)',
    'queries/matrix_mechanism_test.py aggregators/dp_mean_test.py',
  ),
  Mutant(
    'noise is cut off towards zero, which is no function of the noised sum',
    'queries/grid.py',
    'return total + tf.cast(tf.floor(scaled + 0.5), tf.int64)',
    'return total + tf.cast(scaled, tf.int64)',
    'queries/matrix_mechanism_test.py queries/clipping_test.py',
  ),
  Mutant(
    'records that are not finite are summed as they are',
    'queries/grid.py',
    '    finite = tf.math.is_finite(norm)\n',
    '    finite = tf.constant(True)\n',
    'queries/clipping_test.py queries/hostile_records_test.py',
  ),
  Mutant(
    'the grid follows the clip norm only half',
    'queries/grid.py',
    'exponent += tf.cast(is_between, tf.int64)',
    'exponent += 0 * tf.cast(is_between, tf.int64)',
    'queries/clipping_test.py queries/matrix_mechanism_test.py',
  ),
  Mutant(
    'the count of adaptive clipping has half its noise',
    'queries/adaptive_clipping.py',
    'stddev = tf.constant(self.clipped_count_stddev * UNIT, tf.float64)',
    'stddev = tf.constant(self.clipped_count_stddev * UNIT / 2, tf.float64)',
    'queries/adaptive_clipping_test.py queries/adaptive_clipping_privacy_test.py',
  ),
  Mutant(
    'the noise of adaptive clipping ignores what the count costs',
    'queries/adaptive_clipping.py',
    'return tf.cast(state.clip_norm, tf.float64) * self.value_noise_multiplier',
    'return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier',
    'queries/adaptive_clipping_test.py queries/adaptive_clipping_privacy_test.py',
  ),
  # Means.
  Mutant(
    'the denominator follows the data',
    'aggregators/factory.py',
    'mean = self._query.mean_of(noised, self._clients_per_round)',
    'mean = self._query.mean_of(noised, tf.cast(counts.clients, tf.float64))',
    'aggregators/dp_mean_test.py aggregators/exact_sums_test.py',
  ),
  Mutant(
    'too few clients are enough',
    'aggregators/factory.py',
    'clients >= self._min_clients,',
    'clients >= 0,',
    'aggregators/client_noise_test.py aggregators/distributed_test.py',
  ),
  Mutant(
    'a state of another mechanism is accepted',
    'queries/matrix_mechanism.py',
    'mechanism_text(self._mechanism()),\n      global_state.noise.round,',
    'global_state.belongs_to,\n      global_state.noise.round,',
    'aggregators/state_fingerprint_test.py',
  ),
  # Accounting.
  Mutant(
    'a replaced client moves a sum by one clip norm',
    'sampling/scheme.py',
    'return 2 if relation is Relation.REPLACE_ONE else 1',
    'return 1',
    'accounting/mechanism_test.py accounting/run_events_test.py',
  ),
  Mutant(
    'the event of a run ignores how far a client moves sums under its relation',
    'accounting/run_events.py',
    'return scheme_lib.Noise(checked / factor, noise.event, _epsilon)',
    'return scheme_lib.Noise(checked, noise.event, _epsilon)',
    'accounting/run_events_test.py accounting/mechanism_test.py',
  ),
  Mutant(
    'the noise of a part of a model is for the whole budget',
    'accounting/joint_mechanism.py',
    'effective = noise / math.sqrt(share_of[part.name])',
    'effective = noise',
    'accounting/joint_mechanism_test.py',
  ),
  Mutant(
    'calibration returns the largest noise below what is needed',
    'accounting/calibration.py',
    'return smallest if entry.is_numerical else smallest * (1 + _ROUND_OFF)',
    'return smallest * (1 - 1e-6)',
    'accounting/calibration_test.py',
  ),
  Mutant(
    'shares of noise that an observer knows are counted as unknown',
    'accounting/local.py',
    'clients = noise_multiplier * math.sqrt(min_clients - known_shares)',
    'clients = noise_multiplier * math.sqrt(min_clients)',
    'accounting/local_test.py',
  ),
  Mutant(
    'shares of noise are too small',
    'accounting/local.py',
    'return noise_multiplier / math.sqrt(min_clients)',
    'return noise_multiplier / min_clients',
    'accounting/local_test.py',
  ),
  Mutant(
    'the count of adaptive clipping costs a quarter',
    'accounting/adaptive_clipping.py',
    'return (noise_multiplier / (2 * clipped_count_stddev)) ** 2',
    'return (noise_multiplier / (4 * clipped_count_stddev)) ** 2',
    'accounting/adaptive_clipping_test.py',
  ),
  Mutant(
    'masses of a privacy loss are rounded down',
    'accounting/accountants/pld.py',
    'first = math.floor((grid_plan.least - displaced) / interval) - 1',
    'first = math.floor((grid_plan.least - displaced) / interval) + 4',
    'accounting/accountants/pld_test.py accounting/accountants/accountants_test.py',
  ),
  Mutant(
    'a probability of sampling is that of all groups together',
    'sampling/round_sampling.py',
    'return cls(num_rounds, clients_per_round / smallest, num_groups)',
    'return cls(num_rounds, clients_per_round / num_clients, num_groups)',
    'sampling/sampled_test.py',
  ),
  Mutant(
    'a ledger whose lines were changed is read',
    'accounting/records/ledger.py',
    'if entry.previous_line_sha256 != self.head.sha256:',
    'if False:',
    'accounting/records/ledger_test.py accounting/records/ledger_reading_test.py',
  ),
  Mutant(
    'a client that pushes another one out of a full cohort moves the sum by one norm',
    'accounting/accountants/pld.py',
    'dataclasses.replace(usual, mu=2 * mu)',
    'dataclasses.replace(usual, mu=mu)',
    'accounting/truncated_test.py',
  ),
  Mutant(
    'of a full cohort the first clients are kept, and not random ones',
    'sampling/round_sampling.py',
    'np.sort(drawn[np.argpartition(hashed[drawn], most - 1)[:most]])',
    'drawn[:most]',
    'accounting/truncated_test.py',
  ),
  Mutant(
    'rounds of random allocation are in larger blocks than there are',
    'sampling/allocation.py',
    'in ((size, times - larger), (size + 1, larger))',
    'in ((size + 1, times - larger), (size + 1, larger))',
    'accounting/accountants/allocation_test.py',
  ),
  Mutant(
    'the guarantee of a stopped run is that of the rounds that ran',
    'accounting/reports/statement.py',
    'if is_complete or inputs.rounds_fixed_by is not None:',
    'if True:',
    'accounting/reports/stopped_test.py',
  ),
  Mutant(
    'a budget takes a round too many',
    'accounting/mechanism.py',
    'return bool(rounds >= cached[target])',
    'return bool(rounds > cached[target])',
    'aggregators/spent_events_test.py',
  ),
  Mutant(
    'bounds by canaries have less confidence than they say',
    'accounting/canaries.py',
    'significance = (1 - check_confidence(record.confidence)) / 2',
    'significance = (1 - check_confidence(record.confidence)) * 20',
    'accounting/canaries_test.py learning/canaries_test.py',
  ),
  # Who takes part.
  Mutant(
    'clients come back a round early',
    'sampling/limits.py',
    'if len(away) == self.participation.min_separation:',
    'if len(away) == max(1, self.participation.min_separation - 1):',
    'sampling/schedule_test.py sampling/limits_test.py',
  ),
  Mutant(
    'a group follows the population',
    'sampling/round_sampling.py',
    "hashed = draws.hashed(self, seed, keys, 'group')",
    "hashed = draws.hashed(self, seed, keys, 'group') + np.uint64(len(keys))",
    'sampling/draws_test.py',
  ),
  Mutant(
    'all rounds draw the same clients',
    'sampling/round_sampling.py',
    "hashed = draws.hashed(self, seed, their_keys, 'round', round_num)",
    "hashed = draws.hashed(self, seed, their_keys, 'round', 0)",
    'sampling/sampled_test.py',
  ),
  Mutant(
    'how often a client took part is not counted',
    'sampling/limits.py',
    'self._times[counted] += 1',
    'self._times[counted] += 0',
    'sampling/schedule_test.py sampling/limits_test.py',
  ),
  Mutant(
    'a sampled round may be tried twice',
    'sampling/schedule.py',
    'if len(attempts) > 1 and self._scheme.is_sampled:',
    'if len(attempts) > 2 and self._scheme.is_sampled:',
    'sampling/schedule_test.py',
  ),
  Mutant(
    'cohorts above a cap pass',
    'sampling/schedule.py',
    'if most is not None and not least <= len(requested) <= most:',
    'if most is not None and least and not least <= len(requested) <= most:',
    'sampling/schedule_test.py accounting/truncated_test.py',
  ),
  Mutant(
    'a bound of long runs forgets that norms add up',
    'strategies/numerics/toeplitz_sensitivity.py',
    'return float(longest.sum() ** 2)',
    'return float(np.square(longest).sum())',
    'strategies/unit_banded_inverse_test.py',
  ),
  Mutant(
    'events are read that only a later dp-accounting knows',
    'accounting/accountants/rdp.py',
    'all(type(each) in _KNOWN for each in accountant.nested(part))',
    'True',
    'accounting/accountants/rdp_test.py',
  ),
  Mutant(
    'the seed of a run is the same for all',
    'learning/training.py',
    'seed = run_directory.secret_seed(run_dir)',
    'seed = 1',
    'learning/runs/shared_files_test.py',
  ),
)


def _apply(mutant: Mutant, root: pathlib.Path) -> bool:
  """Changes the line; returns whether it occurred exactly once."""
  path = root / 'tff_dp_aggregators' / mutant.file
  text = path.read_text(encoding='utf-8')
  if text.count(mutant.old) != 1:
    return False
  path.write_text(text.replace(mutant.old, mutant.new), encoding='utf-8')
  return True


def _find_failing_test(mutant: Mutant) -> str:
  """Returns the first test that fails; '' if none does."""
  with tempfile.TemporaryDirectory() as scratch:
    root = pathlib.Path(scratch)
    for name in _FOLDERS:
      shutil.copytree(
        ROOT / name,
        root / name,
        symlinks=True,
        ignore=shutil.ignore_patterns('__pycache__'),
      )
    for name in ('conftest.py', 'pyproject.toml', 'setup.py', 'README.md'):
      shutil.copy(ROOT / name, root)
    if not _apply(mutant, root):
      return 'NOT APPLIED'
    tests = [f'tests/{each}' for each in mutant.tests.split()]
    command = [sys.executable, '-m', 'pytest', '-x', '-q', '--tb=no', *tests]
    with open(root / 'output', 'w+', encoding='utf-8') as output:
      result = subprocess.run(
        [*command, '-p', 'no:cacheprovider'],
        cwd=root,
        env={**os.environ, 'PYTHONPATH': str(root)},
        stdout=output,
        stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_SECONDS,
      )
      output.seek(0)
      text = output.read()
  failed = re.search(r'^(?:FAILED|ERROR) (\S+)', text, re.MULTILINE)
  if failed:
    return failed.group(1).removeprefix('tests/')
  return '' if result.returncode == 0 else f'PYTEST ENDED WITH {result.returncode}'


def main() -> int:
  """Prints the table; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
  parser.add_argument('--only', default='', help='mutations with this text in them')
  parser.add_argument('--jobs', type=int, default=2, help='so many side by side')
  arguments = parser.parse_args()
  selected = [each for each in MUTANTS if arguments.only in f'{each.what} {each.file}']
  missed = 0
  with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
    for mutant, test in zip(selected, pool.map(_find_failing_test, selected)):
      is_missed = not test or test.isupper()
      missed += is_missed
      print(f'{mutant.file}: {mutant.what}: {test or "NOT NOTICED"}', flush=True)
  print(f'{len(selected)} mutations, {missed} not noticed.')
  return 1 if missed else 0


if __name__ == '__main__':
  sys.exit(main())

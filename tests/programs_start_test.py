"""Every program refuses a mistyped flag with exit code 2 before slow imports.

How long this takes depends on the machine, so the tests check which modules were loaded
by then. All modules of benchmarks can be imported.
"""

import pathlib

import pytest

from tests import executing

ROOT = pathlib.Path(__file__).resolve().parents[1]
ACCOUNTING = ('participation', 'plan', 'report')
PROGRAMS = [
  'experiments.simulate',
  'experiments.audit',
  'experiments.compare',
  'experiments.plot',
  'experiments.predict',
  *(f'tff_dp_aggregators.accounting.{name}' for name in ACCOUNTING),
]
BENCHMARKS = [
  f'benchmarks.{path.stem}'
  for path in sorted((ROOT / 'benchmarks').glob('[!_]*.py'))
  if "__name__ == '__main__'" in path.read_text(encoding='utf-8')
]
# Each takes a second or more to import.
SLOW = (
  'tensorflow',
  'scipy.stats',
  'scipy.signal',
  'matplotlib',
  'sklearn',
  'distributed',
)
_RUN = """
import atexit, runpy, sys

name, *slow = sys.argv[1].split(',')
sys.argv[1:] = ['--no_such_flag']
atexit.register(lambda: print('loaded', [each for each in slow if each in sys.modules]))
runpy.run_module(name, run_name='__main__', alter_sys=True)
"""


@pytest.mark.parametrize(
  'name',
  [*PROGRAMS, *(pytest.param(name, marks=pytest.mark.slow) for name in BENCHMARKS)],
)
def test_mistyped_flag_is_refused_before_slow_imports(name):
  result = executing.run_python(_RUN, ','.join([name, *SLOW]))
  assert (result.returncode, result.stdout) == (2, 'loaded []\n')
  assert 'no_such_flag' in result.stderr
  assert 'Traceback' not in result.stderr


@pytest.mark.slow
def test_benchmarks_can_be_imported():
  assert 'benchmarks.noise_round' in BENCHMARKS
  result = executing.run_python(
    'import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)',
    *BENCHMARKS,
  )
  assert result.returncode == 0, result.stderr

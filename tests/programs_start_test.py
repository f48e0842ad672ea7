"""A mistyped flag is answered at once, by every program, with exit code 2.

How fast that is depends on the machine and on what else it does; what makes it slow
does not: the modules that were loaded by then. And what benchmarks import is there.
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


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'name',
  [*PROGRAMS, *(pytest.param(name, marks=pytest.mark.slow) for name in BENCHMARKS)],
)
def test_a_mistyped_flag_is_answered_before_anything_slow_is_loaded(name):
  result = executing.run_python(_RUN, ','.join([name, *SLOW]))
  assert (result.returncode, result.stdout) == (2, 'loaded []\n')
  assert 'no_such_flag' in result.stderr
  assert 'Traceback' not in result.stderr


@pytest.mark.slow
def test_what_benchmarks_import_is_there():
  assert 'benchmarks.noise_round' in BENCHMARKS
  result = executing.run_python(
    'import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)',
    *BENCHMARKS,
  )
  assert result.returncode == 0, result.stderr

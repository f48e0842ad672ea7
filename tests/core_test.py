"""Without TensorFlow, light layers work and the others say how to install it.

`make test-core` runs these in an environment without TensorFlow. Where TensorFlow is
installed, it is hidden from the interpreters that are started here.
"""

import pathlib
import re

import pytest

from tests import executing

ROOT = pathlib.Path(__file__).resolve().parents[1]
_TFF = ['tensorflow', 'tensorflow_federated', 'tensorflow_privacy']


def _without(missing, code):
  """Runs code in an interpreter that cannot import the missing modules."""
  hide = f'import sys\nsys.modules.update(dict.fromkeys({missing}))\n'
  return executing.run_python(hide + code)


@pytest.mark.parametrize('layer', ['noise', 'learning'])
def test_layers_that_need_tensorflow_say_how_to_install_it(layer):
  result = _without(_TFF, f'from tff_dp_aggregators import {layer}')
  last = result.stderr.splitlines()[-1]
  assert re.fullmatch(
    f'ModuleNotFoundError: tff_dp_aggregators.{layer} needs tensorflow.*: install '
    r'tff-dp-aggregators\[tff\], .* as docs/install\.md says\.',
    last,
  )
  assert (ROOT / 'docs' / 'install.md').exists()


@pytest.mark.parametrize('name', ['plot', 'simulate'])
def test_programs_that_need_tensorflow_print_one_line(name):
  code = f"import runpy; runpy.run_module('experiments.{name}', run_name='__main__')"
  result = _without(_TFF, code)
  assert (result.returncode, result.stdout) == (2, '')
  assert re.fullmatch(r'error: This program needs tensorflow .*\n', result.stderr)


def test_report_needs_neither_tensorflow_nor_posix_modules():
  flags = '--mechanism=tree --num_rounds=2000 --rounds_between=313 '
  flags += '--max_participations=6 --noise_multiplier=7 --target_delta=1e-10'
  code = (
    f'import runpy; sys.argv[1:] = {flags.split()}\n'
    "runpy.run_module('tff_dp_aggregators.accounting.report', run_name='__main__')"
  )
  result = _without([*_TFF, 'fcntl', 'grp', 'pwd', 'resource', 'termios'], code)
  assert '(8.5261, 1e-10)' in result.stdout, result.stderr

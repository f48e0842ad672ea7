"""The commands of docs/several_machines.md are taken, and that for one machine runs.

tests/workers runs those for several machines, between network namespaces.
"""

import pathlib
import re
import shlex

import numpy as np
import pytest
from absl import flags

from experiments import settings
from experiments import simulate
from experiments import worker
from tests import executing

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PAGE = (ROOT / 'docs' / 'several_machines.md').read_text(encoding='utf-8')
_DEFINE = {'simulate': settings.define, 'worker': worker.define}


def _commands():
  """Program and flags of each."""
  text = '\n'.join(re.findall(r'^```bash\n(.*?)^```', _PAGE, re.M | re.S))
  lines = re.findall(r'^\.venv/bin/tff-dp-(.*)$', text.replace('\\\n', ' '), re.M)
  return [(name, arguments) for name, *arguments in map(shlex.split, lines)]


def test_there_are_commands_of_all_kinds():
  assert [name for name, _ in _commands()] == ['simulate', 'worker', 'simulate']
  assert re.findall(r'^docs/several_machines/(\S+)', _PAGE, re.M) == [
    'make_certificates.sh',
    'make_certificates.sh',
  ]


@pytest.mark.parametrize('name, arguments', _commands())
def test_flags_of_commands_are_there(name, arguments):
  values = flags.FlagValues()
  _DEFINE[name](values)
  assert values(['program', *arguments]) == ['program']


def test_the_command_for_one_machine_comes_to_the_same_bits(tmp_path):
  _, arguments = _commands()[0]
  given = [each for each in arguments if not each.startswith('--run_dir=')]
  assert '--workers=local:2' in given
  without = [each for each in given if not each.startswith('--workers=')]
  weights = []
  for name, flagged in (('on_workers', given), ('here', without)):
    run_dir = tmp_path / name
    result = executing.execute(simulate, *flagged, f'--run_dir={run_dir}')
    assert result.returncode == 0, result.stderr
    assert 'Privacy spent in 20 of 20 rounds' in result.stdout
    assert ('worker local:1 is there' in result.stderr) == (name == 'on_workers')
    with np.load(run_dir / 'model.npz') as arrays:
      weights.append({each: arrays[each] for each in arrays.files})
  assert weights[0].keys() == weights[1].keys()
  for name, array in weights[0].items():
    np.testing.assert_array_equal(array, weights[1][name])

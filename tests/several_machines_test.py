"""The commands of docs/several_machines.md run as they stand there.

Claims:

* Flags of all commands are taken.
* That for one machine comes to the bits of a run without workers.
* Those for several machines do as well, word by word, between three network namespaces
  that have the addresses of the page (slow, and for root).
"""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from absl import flags

from experiments import settings
from experiments import simulate
from experiments import worker
from tests import executing
from tests.workers import supervised

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


def _assert_same_models(*run_dirs):
  weights = []
  for run_dir in run_dirs:
    with np.load(run_dir / 'model.npz') as arrays:
      weights.append({each: arrays[each] for each in arrays.files})
  assert weights[0].keys() == weights[1].keys() and weights[0]
  for name, array in weights[0].items():
    np.testing.assert_array_equal(array, weights[1][name])


def test_the_command_for_one_machine_comes_to_the_same_bits(tmp_path):
  _, arguments = _commands()[0]
  given = [each for each in arguments if not each.startswith('--run_dir=')]
  assert '--workers=local:2' in given
  without = [each for each in given if not each.startswith('--workers=')]
  for name, flagged in (('on_workers', given), ('here', without)):
    result = executing.execute(simulate, *flagged, f'--run_dir={tmp_path / name}')
    assert result.returncode == 0, result.stderr
    assert 'Privacy spent in 20 of 20 rounds' in result.stdout
    assert ('worker local:1 is there' in result.stderr) == (name == 'on_workers')
    assert ' differ: ' not in result.stderr  # One machine, and one environment.
  _assert_same_models(tmp_path / 'on_workers', tmp_path / 'here')


def _section(title):
  """Commands of a section of the page, as a shell takes them."""
  (section,) = re.findall(rf'^## {title}\n(.*?)^## ', _PAGE, re.M | re.S)
  return re.findall(r'^```bash\n(.*?)^```', section, re.M | re.S)


@contextlib.contextmanager
def _network(addresses):
  """A namespace for each address; all reach the first one, and it reaches them."""
  names = [f'tff-page-{os.getpid()}-{number}' for number in range(len(addresses))]

  def ip(*arguments):
    subprocess.run(['ip', *arguments], check=True, capture_output=True)

  def of(number, *arguments):
    ip('-n', names[number], *arguments)

  with contextlib.ExitStack() as stack:
    for number, (name, address) in enumerate(zip(names, addresses)):
      ip('netns', 'add', name)
      stack.callback(ip, 'netns', 'delete', name)
      of(number, 'link', 'set', 'lo', 'up')
      of(number, 'address', 'add', f'{address}/32', 'dev', 'lo')
    for number, address in enumerate(addresses[1:], 1):
      link = f'v{number}'
      peer = ('peer', 'name', link, 'netns', names[number])
      of(0, 'link', 'add', link, 'type', 'veth', *peer)
      for side, other, own in (
        (0, address, addresses[0]),
        (number, addresses[0], address),
      ):
        of(side, 'link', 'set', link, 'up')
        of(side, 'route', 'add', other, 'dev', link, 'src', own)
    yield [('ip', 'netns', 'exec', name) for name in names]


@pytest.mark.slow
def test_the_commands_for_several_machines_come_to_the_same_bits(tmp_path):
  if os.getuid() != 0 or shutil.which('ip') is None:
    pytest.skip('machines are network namespaces, which root alone can make')
  venv = pathlib.Path(sys.executable).parent.parent
  if not (venv / 'bin' / 'tff-dp-worker').exists():
    pytest.skip('the programs are not installed in this environment')
  (tmp_path / '.venv').symlink_to(venv)
  (tmp_path / 'docs').symlink_to(ROOT / 'docs')
  certificates, worker_command, training = _section('Several machines')
  assert '10.0.0.2 10.0.0.3' in certificates
  subprocess.run(['bash', '-ec', certificates], cwd=tmp_path, check=True)
  with contextlib.ExitStack() as stack:
    try:
      machines = stack.enter_context(_network(['10.0.0.1', '10.0.0.2', '10.0.0.3']))
    except subprocess.CalledProcessError as e:
      pytest.skip(f'no network namespaces can be made here: {e.stderr}')
    for machine, address in zip(machines[1:], ('10.0.0.2', '10.0.0.3')):
      command = 'exec ' + worker_command.replace('10.0.0.2', address)
      stack.enter_context(
        supervised.Worker(
          command=(*machine, 'bash', '-ec', f'cd {tmp_path}; {command}')
        )
      )
    done = subprocess.run(
      [*machines[0], 'bash', '-ec', training],
      cwd=tmp_path,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=300,
    )
  assert done.returncode == 0, done.stderr
  assert 'Privacy spent in 20 of 20 rounds' in done.stdout
  for address in ('10.0.0.2', '10.0.0.3'):
    assert f'worker {address}:8470 is there' in done.stderr
  _, arguments = _commands()[-1]
  without = [each for each in arguments if not each.startswith(('--workers', '--run_'))]
  here = executing.execute(simulate, *without, f'--run_dir={tmp_path / "here"}')
  assert here.returncode == 0, here.stderr
  _assert_same_models(tmp_path / 'runs' / 'two_machines', tmp_path / 'here')

"""Commands and files of docs/several_machines.md do what the page says."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from absl import flags

from experiments import settings
from experiments import simulate
from tests import executing
from tff_dp_aggregators.accounting.programs import program as program_lib

ROOT = pathlib.Path(__file__).resolve().parent.parent
_FOLDER = ROOT / 'docs' / 'several_machines'
_PAGE = (ROOT / 'docs' / 'several_machines.md').read_text(encoding='utf-8')
_BLOCKS = [
  block.replace('\\\n', ' ').splitlines()
  for block in re.findall(r'^```bash\n(.*?)^```', _PAGE, re.M | re.S)
]
_HERE, _CERTIFICATES, _THERE = _BLOCKS
_SECONDS = 120


def _container_commands():
  compose = yaml.safe_load((_FOLDER / 'compose.yaml').read_text())
  for service in compose['services'].values():
    yield shlex.split(service['command'])
  for each in _kubernetes():
    for container in _pod(each).get('containers', ()):
      yield container['args']


def _kubernetes():
  return list(yaml.safe_load_all((_FOLDER / 'kubernetes.yaml').read_text()))


def _pod(manifest):
  return manifest['spec'].get('template', {}).get('spec', {})


def _commands():
  """Yields all commands that start a program, without its directory."""
  for line in (*_HERE, *_THERE):
    if line.startswith('.venv/bin/'):
      yield shlex.split(line.removeprefix('.venv/bin/'))
  yield from _container_commands()


@pytest.mark.parametrize('command', _commands(), ids=' '.join)
def test_commands_have_valid_flags(command):
  program, *arguments = command
  if program == 'tff-dp-simulate':
    values = flags.FlagValues()
    program_lib.define(values, settings.groups())
    assert values(['program', *arguments]) == ['program']
    return
  assert program == 'dask' and arguments[0] in ('scheduler', 'worker')
  help_text = _help(arguments[0])
  for flag in (each for each in arguments if each.startswith('--')):
    assert re.search(rf'{flag}\b', help_text), flag


@functools.cache
def _help(command):
  dask = pathlib.Path(sys.executable).parent / 'dask'
  return subprocess.run(
    [dask, command, '--help'], capture_output=True, text=True, timeout=_SECONDS
  ).stdout


def _bits(run_dir):
  with np.load(run_dir / 'model.npz') as arrays:
    return {name: arrays[name].tobytes() for name in arrays.files}


def _simulate(line, run_dir, *left_out):
  """Runs a command of the page, without some flags."""
  _, *arguments = shlex.split(line)
  kept = [each for each in arguments if not each.startswith(('--run_dir', *left_out))]
  return executing.execute(simulate, *kept, f'--run_dir={run_dir}')


@pytest.fixture(scope='module')
def local_bits(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('straight') / 'run'
  result = _simulate(_HERE[0], run_dir, '--scheduler')
  assert result.returncode == 0, result.stderr
  return _bits(run_dir)


@pytest.mark.slow
def test_training_on_dask_workers_gives_the_same_bits(
  tmp_path, local_bits, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'docs').symlink_to(ROOT / 'docs')
  (tmp_path / '.venv').symlink_to(pathlib.Path(sys.executable).parent.parent)
  subprocess.run(['bash', '-ec', '\n'.join(_CERTIFICATES)], check=True)
  assert (tmp_path / 'certificates' / 'key.pem').stat().st_mode & 0o77 == 0
  export, *cluster, training = (
    line.replace('10.0.0.1', '127.0.0.1').replace('8786', '18786') for line in _THERE
  )
  name, _, value = export.removeprefix('export ').partition('=')
  path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
  environment = {**os.environ, name: value, 'PYTHONPATH': path}
  processes = []
  try:
    for line in cluster:
      with open(tmp_path / f'{len(processes)}.log', 'w') as log:
        processes.append(
          subprocess.Popen(
            shlex.split(line), env=environment, stdout=log, stderr=subprocess.STDOUT
          )
        )
    command = shlex.split(training.replace('.venv/bin/tff-dp-simulate', ''))
    command = [sys.executable, '-m', 'experiments.simulate', *command]
    with open(tmp_path / 'training.log', 'w+') as log:
      result = subprocess.run(
        command, env=environment, stdout=log, stderr=log, timeout=2 * _SECONDS
      )
    assert result.returncode == 0, (tmp_path / 'training.log').read_text()
    assert _bits(tmp_path / 'runs' / 'two_machines') == local_bits
    _check_other_certificate_is_refused(tmp_path, command, environment)
  finally:
    for each in processes:
      each.terminate()
    for each in processes:
      each.wait(_SECONDS)


def _check_other_certificate_is_refused(folder, command, environment):
  subprocess.run(['bash', '-ec', '\n'.join(_CERTIFICATES)], check=True)  # A new pair.
  start = time.monotonic()
  with open(folder / 'stranger.log', 'w+') as log:
    result = subprocess.run(
      [*command[:-1], '--run_dir=runs/of_a_stranger'],
      env=environment,
      stdout=log,
      stderr=log,
      timeout=2 * _SECONDS,
    )
  assert result.returncode == 1 and time.monotonic() - start < _SECONDS
  assert 'scheduler=tls://127.0.0.1:18786 cannot be ' in (
    (folder / 'stranger.log').read_text()
  )


def test_containers_drop_privileges_and_use_tls():
  compose = yaml.safe_load((_FOLDER / 'compose.yaml').read_text())
  services = compose['services']
  for service in services.values():
    assert service['cap_drop'] == ['ALL'] and service['read_only']
  containers = [
    each for pod in _kubernetes() for each in _pod(pod).get('containers', ())
  ]
  for container in containers:
    context = container['securityContext']
    assert context['capabilities'] == {'drop': ['ALL']}
    assert context['readOnlyRootFilesystem'] and not context['allowPrivilegeEscalation']
  assert len(containers) == 3 == len(services) and 'scheduler' in services
  for command in _container_commands():
    if command[:2] == ['dask', 'scheduler']:
      assert command[command.index('--protocol') + 1] == 'tls'
      continue
    (address,) = (each for each in command if '://' in each)
    assert address.removeprefix('--scheduler=') == 'tls://scheduler:8786'


def test_dockerfile_copies_only_existing_files():
  dockerfile = (_FOLDER / 'Dockerfile').read_text()
  copied = re.findall(r'^COPY (?!--from)(.*) \S+$', dockerfile, re.M)
  assert len(copied) == len(re.findall(r'^COPY (?!--from)', dockerfile, re.M)) > 1
  for line in copied:
    for name in line.split():
      assert (ROOT / name).exists(), name

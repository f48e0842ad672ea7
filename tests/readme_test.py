"""The README's Python example runs, and so do its commands, as they are printed."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def _blocks(language):
  return re.findall(rf'^```{language}\n(.*?)^```', README, re.MULTILINE | re.DOTALL)


def _python_commands():
  """The README's commands that call this project's programs."""
  text = '\n'.join(_blocks('bash')).replace('\\\n', ' ')
  return [
    shlex.split(line)[1:]
    for line in text.splitlines()
    if line.startswith('.venv/bin/python')
  ]


def _simulations():
  """ARGS of the README's `make simulate` lines, without the default run."""
  text = '\n'.join(_blocks('bash'))
  return re.findall(r'^make simulate ARGS="(.*)"$', text, re.MULTILINE)


# What the commands' output has to say.
_CLAIMS = {
  'tff_dp_aggregators.accounting.report': ('8.5261', '8.8986'),
  'tff_dp_aggregators.accounting.plan': ('gaussian', 'tree', 'toeplitz', 'blt'),
}


def test_python_example_runs_and_prints_the_round_s_event(tmp_path):
  (example,) = _blocks('python')
  program = tmp_path / 'example.py'
  program.write_text(example, encoding='utf-8')
  result = subprocess.run(
    [sys.executable, program],
    cwd=ROOT,
    env=_environment(),
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr
  assert re.fullmatch(r'GaussianDpEvent\(noise_multiplier=\d\.\d+\)\n', result.stdout)


def test_there_are_python_commands_and_simulations_to_run():
  assert len(_python_commands()) == 2
  assert len(_simulations()) == 2


@pytest.mark.parametrize('command', _python_commands(), ids=lambda c: c[1])
def test_python_command_runs(command):
  result = subprocess.run(
    [sys.executable, *command],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  for claim in _CLAIMS[command[1]]:
    assert claim in result.stdout


@pytest.mark.parametrize('arguments', _simulations())
def test_simulation_runs(arguments, tmp_path):
  result = subprocess.run(
    [sys.executable, '-m', 'experiments.simulate', *shlex.split(arguments)]
    + [f'--run_dir={tmp_path / "run"}'],
    cwd=ROOT,
    env=_environment(),
    capture_output=True,
    text=True,
    timeout=300,
  )
  if arguments == '--help':
    assert '--target_epsilon' in result.stdout
    return
  assert result.returncode == 0, result.stderr
  assert 'Privacy spent in 20 of 20 rounds' in result.stdout


def test_example_run_is_what_the_readme_says():
  report = (ROOT / 'docs' / 'example_run' / 'report.md').read_text(encoding='utf-8')
  metrics = (ROOT / 'docs' / 'example_run' / 'metrics.csv').read_text(encoding='utf-8')
  last = dict(zip(*(line.split(',') for line in metrics.split('\n')[0:101:100])))
  stated = re.search(r'after 100 rounds: (\d\.\d+)', README).group(1)
  assert f'{float(last["test_accuracy"]):.4f}' == stated
  assert '(epsilon, delta) = (8.0000, 1e-05)' in report


def _environment():
  import os

  return {**os.environ, 'PYTHONPATH': str(ROOT)}

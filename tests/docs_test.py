"""The examples in docs/ run, and print what stands below them; so do its commands."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _examples():
  """File, program and expected output of each Python block of the documents."""
  for path in sorted((ROOT / 'docs').glob('*.md')):
    text = path.read_text(encoding='utf-8')
    pattern = r'^```python\n(.*?)^```\n\n```text\n(.*?)^```'
    for program, output in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
      yield pytest.param(program, output, id=path.name)


def test_every_python_block_has_an_output():
  blocks = sum(
    path.read_text(encoding='utf-8').count('```python')
    for path in (ROOT / 'docs').glob('*.md')
  )
  assert len(list(_examples())) == blocks > 0


@pytest.mark.parametrize('program, output', _examples())
def test_example_prints_what_stands_below_it(program, output):
  result = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  assert result.stdout == output


def _commands():
  """The documents' calls of accounting programs."""
  for path in sorted((ROOT / 'docs').glob('*.md')):
    text = path.read_text(encoding='utf-8').replace('\\\n', ' ')
    for line in re.findall(r'^\.venv/bin/python (-m .*)$', text, re.MULTILINE):
      yield pytest.param(shlex.split(line), id=path.name)


def test_there_are_commands_to_run():
  assert len(list(_commands())) == 3


@pytest.mark.parametrize('command', _commands())
def test_command_runs(command):
  result = subprocess.run(
    [sys.executable, *command],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  assert len(result.stdout.splitlines()) > 8

"""The examples in docs/ run, and print what stands below them."""

import os
import pathlib
import re
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

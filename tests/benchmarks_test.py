"""The program that draws all strategies runs, for few rounds, and draws a picture."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_errors_of_all_strategies_are_printed_and_drawn(tmp_path):
  picture = tmp_path / 'errors.png'
  result = subprocess.run(
    [sys.executable, '-m', 'benchmarks.error_by_rounds']
    + ['--num_rounds=30', f'--output={picture}'],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  assert picture.read_bytes().startswith(b'\x89PNG')
  lines = re.findall(r'^(.{36}) +(\d+) +([\d.]+) +[\d.]+ s$', result.stdout, re.M)
  single, several = lines[: len(lines) // 2], lines[len(lines) // 2 :]
  assert [(n, float(error)) for name, n, error in single if 'dense' in name] == [
    ('10', 1.5561),
    ('30', 1.873),
  ]
  # The best one drawn for five epochs is the general banded one.
  errors = {name.strip(): float(error) for name, n, error in several if n == '30'}
  assert min(errors, key=errors.get) == 'general banded, n/5 bands'

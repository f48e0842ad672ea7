"""Names and tests that the tables of docs/moving cite exist."""

import functools
import math
import pathlib
import re

import numpy as np
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = _ROOT / 'docs' / 'moving' / 'names.md'
_FINDINGS = _PAGE.with_name('findings.md')
_PACKAGES = {
  each.__name__.rpartition('.')[2]: each
  for each in (accounting, aggregators, learning, queries, strategies)
}
_CODE = re.compile(r'`([^`]+)`')


def _rows():
  system = ''
  for line in _PAGE.read_text('utf-8').splitlines():
    if line.startswith('## '):
      system = line[3:].split(' (')[0]
    elif line.startswith('|') and not line.startswith(('|---', '| there')):
      yield (system, *(cell.strip() for cell in line.strip('|').split(' |')))


ROWS = list(_rows())


def test_names_of_this_package_exist():
  assert len(ROWS) > 40
  for row in ROWS:
    named = _CODE.findall(row[2])
    in_packages = [each for each in named if each.split('.')[0] in _PACKAGES]
    in_aggregators = [each for each in named if each[:2] == 'DP']
    assert in_packages or in_aggregators, row
    for name in in_packages:
      package, *rest = name.split('.')
      assert functools.reduce(getattr, rest, _PACKAGES[package]) is not None
    for name in in_aggregators:
      assert functools.reduce(getattr, name.split('.'), aggregators)


def _findings():
  lines = _FINDINGS.read_text('utf-8').splitlines()
  return [line.split(' | ')[-1] for line in lines if line.startswith('| ')][1:]


@pytest.mark.parametrize('cells', [[row[4] for row in ROWS], _findings()])
def test_cited_tests_exist(cells):
  assert len(cells) > 5
  for cell in cells:
    tests = _CODE.findall(cell)
    assert tests, cell
    for test in tests:
      path, _, name = test.partition('::')
      source = (_ROOT / path).read_text('utf-8')
      assert not name or f'def {name}(' in source, test


@pytest.mark.parametrize(
  ('num_rounds', 'separation', 'ratio'), [(64, 16, 1.41), (200, 50, 2.00)]
)
def test_the_wrong_cholesky_factor_adds_too_little_noise(num_rounds, separation, ratio):
  # X = C^T C with unit diagonal and separation - 1 bands, as pfl-research optimises it.
  limits = strategies.Participation(num_rounds, separation)
  right = strategies.banded.optimize(
    num_rounds, num_bands=separation - 1, participation=limits
  )
  matrix = right.materialize()
  wrong = strategies.Dense(num_rounds, np.linalg.cholesky(matrix.T @ matrix))
  np.testing.assert_allclose(np.linalg.norm(wrong.materialize(), axis=1), 1.0)
  # Noise is calibrated for as many columns of norm one as participations.
  accounted = math.sqrt(limits.possible_participations)
  assert right.sensitivity(limits) == pytest.approx(accounted, rel=1e-9)
  assert wrong.sensitivity(limits) / accounted == pytest.approx(ratio, abs=0.005)
  assert f'{ratio:.2f}' in _FINDINGS.read_text('utf-8')

"""Names of other systems and tests that docs/moving gives are there."""

import functools
import math
import pathlib
import re

import numpy as np
import pytest
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = _ROOT / 'docs' / 'moving' / 'names.md'
_FINDINGS = _PAGE.with_name('findings.md')
_ROOMS = {
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
each_row = pytest.mark.parametrize('row', ROWS, ids=lambda row: row[1][:40])


def test_all_systems_have_rows():
  assert {row[0] for row in ROWS} == {
    'pfl-research',
    'Flower',
    'flower-dp',
    'TensorFlow Privacy',
    'TensorFlow Federated',
  }
  assert all(len(row) == 5 for row in ROWS)


@each_row
def test_names_here_are_there(row):
  names = [
    name
    for name in _CODE.findall(row[2])
    if name.split('.')[0] in _ROOMS and '.' in name
  ]
  in_aggregators = [name for name in _CODE.findall(row[2]) if name[:2] == 'DP']
  assert names or in_aggregators
  for name in names:
    room, *rest = name.split('.')
    assert functools.reduce(getattr, rest, _ROOMS[room]) is not None
  for name in in_aggregators:
    assert functools.reduce(getattr, name.split('.'), aggregators)


@each_row
def test_the_tests_are_there(row):
  tests = _CODE.findall(row[4])
  assert tests
  for test in tests:
    _check_test(test)


def _check_test(test):
  path, _, name = test.partition('::')
  source = (_ROOT / path).read_text('utf-8')
  assert not name or f'def {name}(' in source


def test_findings_name_tests_that_are_there():
  lines = _FINDINGS.read_text('utf-8').splitlines()
  tested = [line.split(' | ')[-1] for line in lines if line.startswith('| ')][1:]
  assert len(tested) > 5
  for cell in tested:
    tests = _CODE.findall(cell)
    assert tests
    for test in tests:
      _check_test(test)


@pytest.mark.parametrize(
  ('num_rounds', 'separation', 'said'), [(64, 16, 1.41), (200, 50, 2.00)]
)
def test_the_wrong_cholesky_factor_adds_too_little_noise(num_rounds, separation, said):
  # X = C^T C with unit diagonal and separation - 1 bands, as pfl-research optimises it.
  limits = strategies.Participation(num_rounds, separation)
  right = strategies.banded.optimize(
    num_rounds, num_bands=separation - 1, participation=limits
  )
  matrix = right.materialize()
  wrong = strategies.Dense(num_rounds, np.linalg.cholesky(matrix.T @ matrix))
  np.testing.assert_allclose(np.linalg.norm(wrong.materialize(), axis=1), 1.0)
  # What noise is calibrated for: as many columns of norm one as participations.
  accounted = math.sqrt(limits.possible_participations)
  assert right.sensitivity(limits) == pytest.approx(accounted, rel=1e-9)
  assert wrong.sensitivity(limits) / accounted == pytest.approx(said, abs=0.005)
  assert f'{said:.2f}' in _FINDINGS.read_text('utf-8')


@pytest.mark.parametrize(
  'row',
  [row for row in ROWS if row[0].startswith('TensorFlow')],
  ids=lambda row: row[1][:40],
)
def test_names_of_the_peers_that_are_installed_are_theirs(row):
  peers = [
    tff.aggregators,
    tff.aggregators.differential_privacy,
    tff.learning,
    tff.aggregators.DifferentiallyPrivateFactory,
  ]
  if row[0] == 'TensorFlow Privacy':
    peers = [tfp, *_modules_of_queries()]
  names = [
    name.split('(')[0].split('.')[-1]
    for name in _CODE.findall(row[1])
    if name[0].isupper() or name.endswith(('factory', 'aggregator'))
  ]
  for name in names:
    assert any(hasattr(peer, name) for peer in peers), name


def _modules_of_queries():
  from tensorflow_privacy.privacy.dp_query import distributed_discrete_gaussian_query
  from tensorflow_privacy.privacy.dp_query import distributed_skellam_query
  from tensorflow_privacy.privacy.dp_query import nested_query
  from tensorflow_privacy.privacy.dp_query import quantile_estimator_query
  from tensorflow_privacy.privacy.dp_query import restart_query

  return (
    distributed_discrete_gaussian_query,
    distributed_skellam_query,
    nested_query,
    quantile_estimator_query,
    restart_query,
  )

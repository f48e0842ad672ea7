"""Test vectors are exact, and no figure of this package is below them."""

import json
import math
from fractions import Fraction

import pytest
from msgspec import structs

from tests import executing
from tff_dp_aggregators.accounting import vectors
from tff_dp_aggregators.accounting.programs import vectors as program


@pytest.fixture(scope='module')
def stored():
  return vectors.read()


def _vector(stored, name):
  return next(each for each in stored if each.id == name)


def test_remake_reproduces_stored_vectors(stored):
  assert vectors.remake(stored) == stored
  assert vectors.PATH.read_text(encoding='utf-8') == vectors.to_json(stored)


def test_vectors_match_figures_derived_by_hand(stored):
  # Columns 0, 4 and 8 of the identity; columns 0 and 2 of a matrix with two bands.
  assert _vector(stored, 'sensitivity/identity/4-3').exact == '3'
  matrix = vectors.toeplitz([Fraction(1), Fraction(1, 2)], 3)
  patterns = vectors.patterns(3, 2, 2, False)
  assert vectors.squared_sensitivity(matrix, patterns) == Fraction(9, 4)
  # In the tree over 10 rounds, each round is in its leaf and three nodes above it.
  assert _vector(stored, 'sensitivity/binary_tree/10-1').exact == '4'
  total_variation = _vector(stored, 'curve/delta/1/0')
  expected = math.erf(0.5 / math.sqrt(2))
  assert float(total_variation.value) == pytest.approx(expected, rel=1e-15)


def test_package_matches_every_vector(stored):
  checked = vectors.check(stored)
  assert [each.vector.id for each in checked if not each.is_right] == []
  bounds = [each for each in checked if each.is_bound]
  assert len(bounds) <= 1


def test_is_right_accepts_too_large_figures_of_bounds_only(stored):
  (checked,) = vectors.check([_vector(stored, 'sensitivity/tail/4-3')])
  assert checked.is_right and not checked.is_bound
  for factor, is_bound, is_right in (
    (1 - 1e-9, True, False),
    (1 + 1e-9, False, False),
    (1 + 1e-9, True, True),
    (2.5, True, False),
  ):
    changed = checked._replace(ours=checked.ours * factor, is_bound=is_bound)
    assert changed.is_right == is_right


def _changed(stored, tmp_path, **changes):
  first, *others = stored
  path = tmp_path / 'vectors.json'
  path.write_text(vectors.to_json([structs.replace(first, **changes), *others]))
  return path


@pytest.mark.slow
def test_program_writes_vectors_and_compares_them_with_file(stored, tmp_path):
  path = tmp_path / 'new.json'
  assert executing.execute(program, f'--output={path}').returncode == 0
  assert path.read_bytes() == vectors.PATH.read_bytes()
  again = executing.execute(program, f'--output={path}')
  assert again.returncode == 2 and 'exists' in again.stderr
  assert executing.execute(program, f'--file={path}', '--remake').returncode == 0
  changed_path = _changed(stored, tmp_path, method='by guess')
  result = executing.execute(program, f'--file={changed_path}', '--remake')
  assert result.returncode == 1
  assert f'{stored[0].id} is {stored[0].value} in the file' in result.stderr


def test_program_reports_wrong_figures_and_invalid_files(stored, tmp_path):
  result = executing.execute(program, f'--file={_changed(stored, tmp_path, value="5")}')
  assert result.returncode == 1
  assert f'1 of {len(stored)} figures are wrong, first {stored[0].id}' in result.stderr
  zero = executing.execute(program, f'--file={_changed(stored, tmp_path, value="0")}')
  assert zero.returncode == 1
  few = executing.execute(program, f'--file={_changed(stored, tmp_path, digits=0)}')
  assert few.returncode == 2 and 'digits' in few.stderr
  path = tmp_path / 'other.json'
  unknown = vectors.to_json([structs.replace(stored[0], kind='other')])
  no_inputs = vectors.to_json([structs.replace(stored[0], inputs={})])
  for content, message in (
    ('no JSON', f'{path} is not a file of test vectors'),
    ('{"format": "x", "version": 9}', "Invalid enum value 'x'"),
    (unknown, f"{stored[0].id} cannot be computed: KeyError('other')"),
    (no_inputs, f'{stored[0].id} cannot be computed'),
  ):
    path.write_text(content)
    result = executing.execute(program, f'--file={path}')
    assert result.returncode == 2 and message in result.stderr, result.stderr


def test_program_reports_missing_vectors(tmp_path):
  content = json.loads(vectors.PATH.read_text(encoding='utf-8'))
  content['vectors'] = [e for e in content['vectors'] if 'calib' not in e['id']]
  path = tmp_path / 'vectors.json'
  path.write_text(json.dumps(content), encoding='utf-8')
  result = executing.execute(program, f'--file={path}', '--remake')
  assert result.returncode == 1
  assert 'the file has no calibration/' in result.stderr

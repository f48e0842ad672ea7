"""Test vectors are exact, and this package is never below them."""

import json
import math
from fractions import Fraction

import pytest
from msgspec import structs

from tests import executing
from tff_dp_aggregators.accounting import vectors
from tff_dp_aggregators.accounting.programs import vectors as program


@pytest.fixture(scope='module')
def found():
  return vectors.read()


def _figure(found, name):
  return next(each for each in found if each.id == name)


def test_the_file_is_what_is_made_anew(found):
  assert vectors.remake(found) == found
  assert vectors.PATH.read_text(encoding='utf-8') == vectors.to_json(found)


def test_figures_by_hand(found):
  # Columns 0, 4 and 8 of the identity; rounds 0 and 2 of one that ends after two bands.
  assert _figure(found, 'sensitivity/identity/4-3').exact == '3'
  matrix = vectors.toeplitz([Fraction(1), Fraction(1, 2)], 3)
  patterns = vectors.patterns(3, 2, 2, False)
  assert vectors.squared_sensitivity(matrix, patterns) == Fraction(9, 4)
  # Of the tree over 10 rounds: each round is in its leaf and three nodes above it.
  assert _figure(found, 'sensitivity/binary_tree/10-1').exact == '4'
  total_variation = _figure(found, 'curve/delta/1/0')
  expected = math.erf(0.5 / math.sqrt(2))
  assert float(total_variation.value) == pytest.approx(expected, rel=1e-15)


def test_every_figure_of_this_package_is_right(found):
  checked = vectors.check(found)
  assert [each.vector.id for each in checked if not each.is_right] == []
  bounds = [each for each in checked if each.is_bound]
  assert len(bounds) <= 1


def test_a_figure_that_is_too_small_is_wrong_and_one_too_large_unless_it_is_a_bound(
  found,
):
  (checked,) = vectors.check([_figure(found, 'sensitivity/tail/4-3')])
  assert checked.is_right and not checked.is_bound
  for factor, is_bound, is_right in (
    (1 - 1e-9, True, False),
    (1 + 1e-9, False, False),
    (1 + 1e-9, True, True),
    (2.5, True, False),
  ):
    other = checked._replace(ours=checked.ours * factor, is_bound=is_bound)
    assert other.is_right == is_right


def _changed(found, tmp_path, **changes):
  first, *others = found
  path = tmp_path / 'vectors.json'
  path.write_text(vectors.to_json([structs.replace(first, **changes), *others]))
  return path


@pytest.mark.slow
def test_figures_are_written_anew_and_compared_with_the_file(found, tmp_path):
  path = tmp_path / 'new.json'
  assert executing.execute(program, f'--output={path}').returncode == 0
  assert path.read_bytes() == vectors.PATH.read_bytes()
  again = executing.execute(program, f'--output={path}')
  assert again.returncode == 2 and 'exists' in again.stderr
  assert executing.execute(program, f'--file={path}', '--remake').returncode == 0
  other = _changed(found, tmp_path, method='by guess')
  result = executing.execute(program, f'--file={other}', '--remake')
  assert result.returncode == 1
  assert f'{found[0].id} is {found[0].value} in the file' in result.stderr


def test_wrong_figures_and_other_files_end_with_what_is_wrong(found, tmp_path):
  result = executing.execute(program, f'--file={_changed(found, tmp_path, value="5")}')
  assert result.returncode == 1
  assert f'1 of {len(found)} figures are wrong, first {found[0].id}' in result.stderr
  other = tmp_path / 'other.json'
  twice = vectors.to_json([found[0], found[0]])
  no_inputs = vectors.to_json([structs.replace(found[0], inputs={})])
  for content, message in (
    ('no JSON', f'{other} is not a file of test vectors'),
    ('{"format": "x", "version": 9}', "Invalid enum value 'x'"),
    (twice, f'the id {found[0].id} is there twice'),
    (no_inputs, f'{found[0].id} cannot be computed'),
  ):
    other.write_text(content)
    result = executing.execute(program, f'--file={other}')
    assert result.returncode == 2 and message in result.stderr, result.stderr


def test_a_file_that_lacks_figures_is_not_the_packages(tmp_path):
  content = json.loads(vectors.PATH.read_text(encoding='utf-8'))
  content['vectors'] = [e for e in content['vectors'] if 'calib' not in e['id']]
  path = tmp_path / 'vectors.json'
  path.write_text(json.dumps(content), encoding='utf-8')
  result = executing.execute(program, f'--file={path}', '--remake')
  assert result.returncode == 1
  assert 'the file has no calibration/' in result.stderr

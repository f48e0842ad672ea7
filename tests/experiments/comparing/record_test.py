"""What a folder says of a comparison: which commands go on with it, and as what."""

import fcntl
import os

import pytest

from experiments import settings
from experiments.comparing import grid
from experiments.comparing import record as record_lib
from tff_dp_aggregators.accounting.programs import program


@pytest.fixture(scope='module')
def values():
  return program.values_of(settings.groups(), [])


def asked(values, *texts):
  axes = grid.axes(texts, values, {})
  points = grid.points(axes, {'mechanism': None, 'num_bands': 3})
  varied = [axis.flag for axis in axes]
  return record_lib.Record({}, varied, points, ['digits'], 1, {}, 1)


def test_one_comparison_at_a_time_also_of_several_machines(tmp_path):
  with record_lib.folder(str(tmp_path)):
    with pytest.raises(BlockingIOError, match='another comparison, here or on another'):
      with record_lib.folder(str(tmp_path)):
        pass
  with open(tmp_path / '.lock', 'r+') as theirs:  # All that another machine shows.
    fcntl.flock(theirs, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match='another comparison, here or on another'):
      with record_lib.folder(str(tmp_path)):
        pass


def test_what_a_killed_comparison_left_half_written_is_removed(tmp_path):
  (tmp_path / '.writing-of-another').touch()
  (tmp_path / 'table.md').touch()
  with record_lib.folder(str(tmp_path)):
    assert sorted(os.listdir(tmp_path)) == ['.lock', 'table.md']
    (tmp_path / '.writing-now').touch()
    with pytest.raises(BlockingIOError):  # Whoever is refused removes nothing.
      with record_lib.folder(str(tmp_path)):
        pass
    assert (tmp_path / '.writing-now').exists()


def test_a_folder_with_a_lock_alone_is_empty(values, tmp_path):
  with record_lib.folder(str(tmp_path)):
    pass
  now = asked(values, 'mechanism=tree')
  assert record_lib.taken_up(str(tmp_path), now) == (now, now)
  (tmp_path / 'mine.txt').touch()
  with pytest.raises(FileExistsError, match='is not empty, and is not of a comparison'):
    record_lib.taken_up(str(tmp_path), now)


def test_flags_in_another_order_are_the_same_runs(values, tmp_path):
  one = ('mechanism=tree:batch_size=7,banded', 'clip_norm=1,2')
  begun = asked(values, *one)
  record_lib.write(str(tmp_path), begun)
  again, all_of_it = record_lib.taken_up(str(tmp_path), asked(values, *one[::-1]))
  assert set(again.points) == set(begun.points)
  assert list(all_of_it.points) == list(begun.points)


def test_a_record_of_other_types_is_refused_with_its_place(values, tmp_path):
  record_lib.write(str(tmp_path), asked(values, 'mechanism=tree'))
  path = tmp_path / record_lib.FILE
  path.write_text(path.read_text().replace('"seeds": 1', '"seeds": "one"'))
  with pytest.raises(ValueError, match='not a record of a comparison: .*seeds'):
    record_lib.read(str(tmp_path))

"""Grids of a comparison: syntax, crossed points, names, and the record in a folder."""

import fcntl
import os

import pytest
from absl import flags

from experiments import settings
from experiments.comparing import cells
from experiments.comparing import grid
from tff_dp_aggregators.accounting.programs import program

DEFAULTS = {'mechanism': 'banded'}


@pytest.fixture(scope='module')
def values():
  return program.values_of(settings.groups(), [])


@pytest.fixture(scope='module')
def axes(values):
  return lambda *texts: grid.axes(texts, values, cells.UNVARIED)


def names(axes, others=None):
  return [point.name for point in grid.points(axes, others or DEFAULTS)]


def test_axes_are_crossed_in_order_given(axes):
  assert names(axes('mechanism=tree,gaussian', 'target_epsilon=2,4')) == [
    'mechanism=tree,target_epsilon=2',
    'mechanism=tree,target_epsilon=4',
    'mechanism=gaussian,target_epsilon=2',
    'mechanism=gaussian,target_epsilon=4',
  ]


def test_equal_values_are_merged(axes):
  assert names(axes('target_epsilon=2,0.1,2')) == [
    'target_epsilon=2',
    'target_epsilon=0.1',
  ]


@pytest.mark.parametrize('text', ['target_epsilon=2,2.0', 'secret_noise=True,true'])
def test_same_value_in_other_words_is_refused(text, axes):
  with pytest.raises(ValueError, match='has a value twice'):
    axes(text)


def test_equal_values_of_different_flags_are_different_settings(axes):
  rates = 'gaussian:client_learning_rate=0.1,gaussian:server_learning_rate=0.1'
  assert len(names(axes(f'mechanism={rates}'))) == 2
  assert len(axes('mechanism=none:clip_norm=,none:batch_size=')['mechanism']) == 2


def test_flags_attached_to_value_override_grid(axes):
  crossed = axes('mechanism=tree,banded:num_bands=8', 'num_bands=2,3')
  assert names(crossed) == ['mechanism=tree', 'mechanism=banded,num_bands=8']


def test_value_may_leave_out_flags(axes):
  (first, second) = grid.points(axes('mechanism=tree,blt:clip_norm='), DEFAULTS)
  assert first.left_out == ()
  assert second == grid.Point({'mechanism': 'blt'}, ('clip_norm',))


def test_commas_and_colons_can_be_escaped():
  values = flags.FlagValues()
  flags.DEFINE_string('data', '', '', flag_values=values)
  flags.DEFINE_string('model', '', '', flag_values=values)
  axes = grid.axes(
    [r'data=a\,b.csv,c\:model=d', 'model=package.module:function,x:data=z'], values, {}
  )
  assert axes['data'] == ((('data', 'a,b.csv'),), (('data', 'c:model=d'),))
  assert axes['model'] == (
    (('model', 'package.module:function'),),
    (('model', 'x'), ('data', 'z')),
  )


def test_mechanism_none_has_one_point_for_all_noise_flags(axes):
  crossed = axes('mechanism=none,tree', 'target_epsilon=2,4', 'num_bands=3')
  assert names(crossed) == [
    'mechanism=none',
    'mechanism=tree,target_epsilon=2',
    'mechanism=tree,target_epsilon=4',
  ]


def test_command_line_options_are_left_out_where_they_do_not_apply(axes):
  others = {'mechanism': 'banded', 'num_bands': 3, 'target_epsilon': 4.0}
  points = grid.points(axes('mechanism=banded,tree,none'), others)
  assert [point.left_out for point in points] == [
    (),
    ('num_bands',),
    ('num_bands', 'target_epsilon'),
  ]


def test_multi_flag_may_be_left_out_but_not_varied():
  values = flags.FlagValues()
  flags.DEFINE_multi_string('part', None, '', flag_values=values)
  flags.DEFINE_integer('rounds', 1, '', flag_values=values)
  axes = grid.axes(['rounds=2,2:part='], values, {})
  points = grid.points(axes, {'mechanism': None, 'part': ['a', 'b']})
  assert [point.left_out for point in points] == [(), ('part',)]
  for text in ('part=a', 'rounds=2:part=a'):
    with pytest.raises(
      ValueError, match='--part cannot be varied: it is given several'
    ):
      grid.axes([text], values, {})


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('mechanism', "--grid 'mechanism' must be FLAG=VALUE,VALUE"),
    ('mechanism=oak', "'oak' is not a value of --mechanism"),
    ('mechanisms=tree', 'there is no flag --mechanisms'),
    ('seed=1,2', '--seed cannot be varied: give --seeds=N'),
    ('metric=accuracy,auc', '--metric cannot be varied: results by other metrics do'),
    ('timeout_seconds=3', '--timeout_seconds cannot be varied: it changes no result'),
  ],
)
def test_wrong_axes_are_refused_with_message(axes, text, message):
  with pytest.raises(ValueError, match='^--grid') as caught:
    axes(text)
  assert message in str(caught.value)


def test_name_of_is_unique_and_fit_for_folders():
  points = [
    [('data', 'a/b')],
    [('data', 'a_b')],
    [('data', 'a b')],
    [('data', 'x,seed=1')],
    [('data', 'x'), ('seed', '1')],
    [('data', 'a' * 300)],
    [('data', 'a' * 301)],
    [('data', '..')],
  ]
  folder_names = [grid.name_of(each) for each in points]
  assert len(set(folder_names)) == len(folder_names)
  assert folder_names[4] == 'data=x,seed=1'
  for name in folder_names:
    assert '/' not in name
    assert ' ' not in name
    assert len(name) < 230


def test_name_of_long_value_fits_in_bytes_and_names_that_did_are_kept():
  two_bytes, three_bytes = '\u00e9', '\u4e00'
  assert grid.name_of([('data', two_bytes * 125)]) == 'data=' + two_bytes * 125
  assert grid.name_of([('data', 'a' * 300)])[:-8] == f'data={"a" * 195},'
  long = [
    [('data', each * n)] for each in (two_bytes, three_bytes) for n in (126, 150, 400)
  ]
  names = [grid.name_of(each) for each in long]
  assert len(set(names)) == len(names)
  for name in names:
    assert 250 < len(os.fsencode(name)) <= 255


def record_of(values, *texts):
  axes = grid.axes(texts, values, {})
  points = grid.points(axes, {'mechanism': None, 'num_bands': 3})
  return grid.Record({}, [*axes], points, ['digits'], 1, {}, 1)


def test_folder_is_locked_against_other_comparisons(tmp_path):
  with grid.folder(str(tmp_path)):
    with pytest.raises(
      program.WrongUsage, match='another comparison, here or on another'
    ):
      with grid.folder(str(tmp_path)):
        pass
  # A lock is all that is seen of a comparison on another machine.
  with open(tmp_path / '.lock', 'r+') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(
      program.WrongUsage, match='another comparison, here or on another'
    ):
      with grid.folder(str(tmp_path)):
        pass


def test_half_written_files_of_killed_comparison_are_removed(tmp_path):
  (tmp_path / '.writing-of-another').touch()
  (tmp_path / 'table.md').touch()
  with grid.folder(str(tmp_path)):
    assert sorted(os.listdir(tmp_path)) == ['.lock', 'table.md']
    (tmp_path / '.writing-now').touch()
    with pytest.raises(program.WrongUsage):  # A refused comparison removes nothing.
      with grid.folder(str(tmp_path)):
        pass
    assert (tmp_path / '.writing-now').exists()


def test_folder_with_only_lock_file_counts_as_empty(values, tmp_path):
  with grid.folder(str(tmp_path)):
    pass
  now = record_of(values, 'mechanism=tree')
  assert grid.merged(str(tmp_path), None, now) == now
  (tmp_path / 'mine.txt').touch()
  with pytest.raises(FileExistsError, match='is not empty, and is not of a comparison'):
    grid.merged(str(tmp_path), None, now)


def test_merged_ignores_order_of_axes(values, tmp_path):
  axes = ('mechanism=tree:batch_size=7,banded', 'clip_norm=1,2')
  record = record_of(values, *axes)
  grid.write_record(str(tmp_path), record)
  saved = grid.saved_record(str(tmp_path))
  whole = grid.merged(str(tmp_path), saved, record_of(values, *axes[::-1]))
  assert list(whole.points) == list(record.points)


def test_record_with_wrong_type_is_refused_with_field(values, tmp_path):
  grid.write_record(str(tmp_path), record_of(values, 'mechanism=tree'))
  path = tmp_path / grid.FILE
  path.write_text(path.read_text().replace('"seeds": 1', '"seeds": "one"'))
  with pytest.raises(ValueError, match='not a record of a comparison: .*seeds'):
    grid.saved_record(str(tmp_path))

"""Pictures of runs: values, labels and errors; the same chart is the same bytes."""

import json

import pytest

from experiments import plot

HEADER = 'round,epsilon,test_loss,test_accuracy,round_seconds\n'


def make(folder, flags, lines, is_private=True, header=HEADER):
  folder.mkdir()
  config = {'flags': flags, 'privacy': {'delta': 1e-5} if is_private else None}
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'metrics.csv').write_text(header + ''.join(f'{line}\n' for line in lines))
  return str(folder)


@pytest.fixture
def tree(tmp_path):
  flags = {'task': 'digits', 'metric': 'accuracy', 'mechanism': 'tree', 'seed': 1}
  lines = ('0,1.5,2.0,0.25,0.5', '1,2.5,,,0.25', '2,3.5,1.0,0.75,0.25')
  return make(tmp_path / 'tree', {**flags, 'target_epsilon': 3.5}, lines)


@pytest.fixture
def none(tmp_path):
  flags = {'task': 'digits', 'metric': 'accuracy', 'mechanism': 'none', 'seed': 1}
  lines = ('0,,2.0,0.5,0.5', '1,,1.0,0.875,0.5')
  return make(tmp_path / 'none', {**flags, 'target_epsilon': None}, lines, False)


def test_picture_of_one_run_has_metric_and_epsilon_axis(tree):
  chart = plot.picture([plot.read_run(tree)])
  (line,) = chart.lines
  # Rounds that were not evaluated have no point.
  assert line.get_xydata().tolist() == [[1, 0.25], [3, 0.75]]
  assert not chart.get_legend_handles_labels()[1]
  _, right = chart.figure.axes
  assert right.lines[0].get_xydata().tolist() == [[1, 1.5], [2, 2.5], [3, 3.5]]
  assert right.get_ylabel() == 'epsilon spent at delta = 1e-05'


def test_labels_of_several_runs_are_their_different_flags(tree, none):
  chart = plot.picture([plot.read_run(tree), plot.read_run(none)])
  assert [line.get_label() for line in chart.lines] == [
    'mechanism=tree, target_epsilon=3.5',
    'mechanism=none',
  ]
  assert len(chart.figure.axes) == 1


def test_labels_leave_out_private_flags(tmp_path, tree):
  seed = 7 * 2**100 + 12345
  flags = {'task': 'digits', 'metric': 'accuracy', 'mechanism': 'gaussian'}
  drawn = make(tmp_path / 'drawn', flags, ('0,1.5,2.0,0.25,0.5',))
  private = {'flags': {'seed': seed, 'num_clients': 183}}
  (tmp_path / 'drawn' / 'private.json').write_text(json.dumps(private))
  runs = [plot.read_run(drawn), plot.read_run(tree)]
  labels = ' '.join(plot.labels(runs))
  assert str(seed) not in labels and '183' not in labels
  assert 'mechanism=gaussian' in labels and 'seed=1' in labels


def test_run_without_privacy_is_a_level_line_over_epsilon(tree, none):
  runs = [plot.read_run(tree), plot.read_run(none)]
  first, second, third = plot.picture([*runs, runs[1]], 'epsilon').lines
  assert first.get_xydata().tolist() == [[1.5, 0.25], [3.5, 0.75]]
  assert second.get_ydata() == [0.875, 0.875]
  assert second.get_label().startswith('mechanism=none')
  assert second.get_label().endswith(' (no privacy)')
  assert (second.get_linestyle(), third.get_linestyle()) == ('-', '--')


def test_runs_without_common_metric_are_refused(tree, tmp_path):
  header = 'round,test_error,round_seconds\n'
  other = make(tmp_path / 'other', {}, ['0,0.5,1'], header=header)
  with pytest.raises(ValueError, match='no measure that all runs have'):
    plot.picture([plot.read_run(tree), plot.read_run(other)])
  # A run of another program does not name its metric; the test metric is drawn.
  (line,) = plot.picture([plot.read_run(other)]).lines
  assert line.get_ydata() == [0.5]


def test_read_run_refuses_directories_without_rounds(tmp_path, tree):
  (tmp_path / 'tree' / 'metrics.csv').write_text(HEADER)
  with pytest.raises(ValueError, match='no rounds yet'):
    plot.read_run(tree)


@pytest.mark.parametrize('kind', plot.FORMATS)
def test_save_is_deterministic(kind, tmp_path, tree, none):
  paths = [str(tmp_path / f'{number}.{kind}') for number in range(2)]
  for path in paths:
    runs = [plot.read_run(tree), plot.read_run(none)]
    plot.save(plot.picture(runs, 'epsilon'), path)
  first, second = (open(path, 'rb').read() for path in paths)
  assert first == second
  assert first.startswith(b'\x89PNG' if kind == 'png' else b'<?xml')

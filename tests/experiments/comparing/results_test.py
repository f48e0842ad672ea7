"""Tables, rankings and pictures of a comparison; means and errors agree with NumPy."""

import csv
import io
import math

import numpy as np
import pytest

from experiments.comparing import cells
from experiments.comparing import grid
from experiments.comparing import results as results_lib

ACCURACIES = {2: (0.71, 0.74, 0.79), 4: (0.8, 0.9, None)}
SEEDS = (1, 2, 3)


@pytest.fixture(scope='module')
def points():
  return [grid.Point({'target_epsilon': str(each)}) for each in ACCURACIES]


@pytest.fixture(scope='module')
def record(points):
  return grid.Record({}, ['target_epsilon'], points, ['digits'], 3, {}, 1)


@pytest.fixture(scope='module')
def results(points, tmp_path_factory):
  make = cells.Maker(str(tmp_path_factory.mktemp('output')), {})
  runs = []
  for point, accuracies in zip(points, ACCURACIES.values()):
    for seed, accuracy in zip(SEEDS, accuracies):
      cell = make.cell(point, seed)
      if accuracy is None:
        runs.append(cells.Result(cell, cells.FAILED, error='no memory'))
        continue
      runs.append(
        cells.Result(
          cell,
          cells.FINISHED,
          measures={'test_accuracy': accuracy, 'test_loss': 1 - accuracy},
          epsilon=float(point.settings['target_epsilon']),
          delta=1e-5,
          noise_multiplier=cell.settings.privacy.mechanism.noise_multiplier,
          seconds=float(seed),
        )
      )
  return runs


def test_mean_and_standard_error_match_numpy(record, results):
  rows = results_lib.rows(record, results, {})
  assert len(rows) == len(ACCURACIES)
  for row, accuracies in zip(rows, ACCURACIES.values()):
    values = np.array([each for each in accuracies if each is not None])
    for name, measured in (('test_accuracy', values), ('test_loss', 1 - values)):
      assert row[name] == pytest.approx(measured.mean(), rel=1e-12)
      deviation = np.sqrt(((measured - measured.mean()) ** 2).sum() / (len(values) - 1))
      expected = deviation / np.sqrt(len(values))
      assert row[f'{name}_stderr'] == pytest.approx(expected, rel=1e-12)


def test_single_run_has_no_standard_error(record, results):
  rows = results_lib.rows(record, results[:1], {})
  assert (rows[0]['test_accuracy'], rows[0]['test_accuracy_stderr']) == (0.71, None)
  assert (rows[1]['test_accuracy'], rows[1]['test_accuracy_stderr']) == (None, None)


def test_markdown_has_rounded_means_and_csv_all_digits(record, results):
  rows = results_lib.rows(record, results, {})
  assert [(row['seeds'], row['seeds_missing']) for row in rows] == [(3, 0), (2, 1)]
  assert '| 2 (1 missing) |' in results_lib.to_markdown(record, rows, ())
  assert '| 2 | 0.7467 ± 0.0233 | 0.2533 ± 0.0233 | 2.0000 | 1e-05 |' in (
    results_lib.to_markdown(record, rows, ())
  )
  (first, _) = csv.DictReader(io.StringIO(results_lib.to_csv(rows)))
  assert float(first['test_accuracy']) == rows[0]['test_accuracy']
  assert float(first['noise_multiplier']) == rows[0]['noise_multiplier']
  assert list(first)[:3] == ['target_epsilon', 'test_accuracy', 'test_accuracy_stderr']


def test_epsilon_without_guarantee_is_printed_as_infinite(record, results):
  row = {**results_lib.rows(record, results, {})[0], 'epsilon': math.inf}
  assert '| infinite |' in results_lib.to_markdown(record, [row], ())


def picture(varied, lines):
  """Returns the picture of lines: varied values, accuracy, error, epsilon, columns."""
  rows, points = [], []
  for values, accuracy, error, epsilon, columns in lines:
    points.append(grid.Point({n: v for n, v in zip(varied, values) if v}))
    rows.append(
      {
        **dict(zip(varied, values)),
        'test_accuracy': accuracy,
        f'test_accuracy{results_lib.ERROR}': error,
        'epsilon': epsilon,
        'delta': '1e-05',
        'seeds': '2' if error else '1',
        **columns,
      }
    )
  record = grid.Record({}, varied, points, ['digits'], 2, {}, 1)
  return results_lib.picture(record, rows)


def test_picture_draws_metric_against_epsilon_with_line_per_mechanism():
  chart = picture(
    ['mechanism', 'target_epsilon'],
    [
      (('tree', '8'), '0.9', '0.01', '7.9999999', {}),
      (('tree', '2'), '0.8', '0.02', '1.9999999', {}),
      (('blt', '2'), '0.7', '', '1.9999999', {}),
      (('blt', '4'), '', '', '', {}),  # Not finished.
      (('none', ''), '0.95', '0.005', 'inf', {'delta': ''}),
    ],
  )
  tree, blt = chart.containers
  assert [each.get_label() for each in chart.containers] == ['tree', 'blt']
  assert tree[0].get_xdata() == pytest.approx([2.0, 8.0], rel=1e-6)
  assert tree[0].get_ydata() == pytest.approx([0.8, 0.9])
  first, second = (bar[:, 1] for bar in tree[2][0].get_segments())
  assert first == pytest.approx([0.78, 0.82])
  assert second == pytest.approx([0.89, 0.91])
  assert blt[0].get_xydata() == pytest.approx(np.array([[2.0, 0.7]]), rel=1e-6)
  (level,) = (line for line in chart.lines if 'no privacy' in line.get_label())
  assert level.get_ydata() == [0.95, 0.95]
  (band,) = chart.patches
  assert band.get_extents().height > 0
  assert chart.get_xlabel() == 'epsilon at delta = 1e-05'
  assert chart.get_ylabel() == 'test accuracy'
  title = chart.get_title('left')
  assert title == 'digits: test accuracy, 1 to 2 seeds (bars: standard error)'


def test_picture_tells_runs_without_privacy_apart():
  chart = picture(
    ['mechanism', 'target_epsilon', 'model'],
    [
      *((('tree', each, 'linear'), '0.8', '', each, {}) for each in '24'),
      *((('none', '', each), '0.9', '', 'inf', {}) for each in ('linear', 'dense')),
    ],
  )
  levels = [line for line in chart.lines if 'no privacy' in line.get_label()]
  assert [line.get_linestyle() for line in levels] == ['-', '--']


def test_picture_labels_simulated_epsilon_as_no_guarantee():
  lines = [
    ((noise,), '0.5', '', 'inf', {'simulated_epsilon': epsilon})
    for noise, epsilon in (('1', '12.5'), ('2', '3.25'))
  ]
  chart = picture(['noise_multiplier'], lines)
  (line,) = chart.containers
  assert list(line[0].get_xdata()) == [3.25, 12.5]
  assert 'no guarantee' in chart.get_xlabel()


def test_picture_has_no_axis_of_noise_if_every_epsilon_is_infinite():
  lines = [((noise,), '0.5', '', 'inf', {}) for noise in '123']
  chart = picture(['noise_multiplier'], lines)
  assert [each.get_text() for each in chart.get_yticklabels()] == [
    f'noise_multiplier={noise}' for noise in '123'
  ]


def test_ranking_lists_means_that_seeds_cannot_tell_apart(record):
  def rows(errors, seeds):
    names = ('target_epsilon', 'test_accuracy', 'test_accuracy_stderr')
    return [
      {**dict(zip(names, each)), 'seeds': seeds}
      for each in zip((1.0, 2.0, 4.0), (0.90, 0.91, 0.99), errors)
    ]

  assert results_lib.ranking(record, rows([0.001] * 3, 5)) == ''
  ranking = results_lib.ranking(record, rows([0.01] * 3, 5))
  assert '1.0 and 2.0.' in ranking and '4.0' not in ranking
  # With two seeds the error is poorly known: t with two degrees of freedom is 4.3.
  assert '2.0 and 4.0' in results_lib.ranking(record, rows([0.014] * 3, 2))
  assert 'Give more --seeds' in results_lib.ranking(record, rows([None] * 3, 1))

"""Which picture a table becomes, and what is in it."""

import math

import pytest

from experiments.comparing import grid
from experiments.comparing import pictures
from experiments.comparing import record as record_lib
from experiments.comparing import table
from experiments.plotting import charts

NAN = pytest.approx(math.nan, nan_ok=True)


def picture(varied, lines, **settings):
  """Of lines with the values of what is varied, accuracy, error and epsilon."""
  rows, points = [], []
  for values, accuracy, error, epsilon in lines:
    points.append(grid.Point(tuple((n, v) for n, v in zip(varied, values) if v)))
    rows.append(
      {
        **dict(zip(varied, values)),
        'test_accuracy': accuracy,
        f'test_accuracy{table.ERROR}': error,
        'epsilon': epsilon,
        'delta': '' if epsilon == 'inf' else '1e-05',
        'seeds': '2' if error else '1',
      }
    )
  record = record_lib.Record({}, varied, points, ['digits'], 2, {}, 1, **settings)
  return pictures.picture(record, rows)


def test_the_metric_is_drawn_against_epsilon_with_a_line_for_each_mechanism():
  chart = picture(
    ['mechanism', 'target_epsilon'],
    [
      (('tree', '8'), '0.9', '0.01', '7.9999999'),
      (('tree', '2'), '0.8', '0.02', '1.9999999'),
      (('blt', '2'), '0.7', '', '1.9999999'),
      (('none', ''), '0.95', '0.005', 'inf'),
    ],
  )
  assert chart.lines == [
    charts.Line('tree', [2.0, 8.0], [0.8, 0.9], [0.02, 0.01]),
    charts.Line('blt', [2.0], [0.7], [NAN]),
    charts.Line('no privacy', (), [0.95], [0.005]),
  ]
  assert chart.x_label == 'epsilon at delta = 1e-05'
  assert chart.y_label == 'test accuracy'
  assert chart.title == 'digits: test accuracy, 1 to 2 seeds'


def test_epsilon_that_follows_from_the_noise_is_the_axis_as_well():
  chart = picture(
    ['noise_multiplier'],
    [(('1',), '0.5', '', '12.5'), (('2',), '0.4', '', '3.25')],
  )
  (line,) = chart.lines
  assert line.x == [3.25, 12.5]


def test_epsilon_of_a_simulated_cohort_is_said_to_be_no_guarantee():
  rows = [
    {
      'noise_multiplier': each,
      'test_accuracy': '0.5',
      f'test_accuracy{table.ERROR}': '',
      'epsilon': 'inf',
      'seeds': '1',
      'simulated_epsilon': epsilon,
      'delta': '1e-05',
    }
    for each, epsilon in (('1', '12.5'), ('2', '3.25'))
  ]
  points = [
    grid.Point((('noise_multiplier', row['noise_multiplier']),)) for row in rows
  ]
  record = record_lib.Record({}, ['noise_multiplier'], points, ['digits'], 1, {}, 1)
  chart = pictures.picture(record, rows)
  assert chart.lines[0].x == [3.25, 12.5]
  assert 'no guarantee' in chart.x_label


def test_points_without_a_finished_run_are_not_drawn():
  chart = picture(
    ['target_epsilon'],
    [(('1',), '', '', ''), (('2',), '0.5', '', '2'), (('4',), '0.6', '', '4')],
  )
  (line,) = chart.lines
  assert line.x == [2.0, 4.0]
  assert picture(['target_epsilon'], [(('1',), '', '', '')]) is None


@pytest.mark.parametrize('kind', charts.FORMATS)
def test_every_kind_of_picture_can_be_drawn(kind, tmp_path):
  lines = [((m,), '0.5', '0.1', '8') for m in ('tree', 'blt')]
  charts.save(picture(['mechanism'], lines), str(tmp_path / f'dots.{kind}'))
  lines = [((str(e),), '0.5', '0.1', str(e)) for e in (1, 16)]
  charts.save(picture(['target_epsilon'], lines), str(tmp_path / f'lines.{kind}'))

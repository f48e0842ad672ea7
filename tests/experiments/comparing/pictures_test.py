"""Which picture a table becomes, and what is in it."""

import math

import pytest

from experiments.comparing import grid
from experiments.comparing import pictures
from experiments.comparing import record as record_lib
from experiments.comparing import table
from experiments.plotting import charts

NAN = pytest.approx(math.nan, nan_ok=True)


def picture(varied, lines):
  """Of lines with the values of what is varied, accuracy, error and epsilon."""
  rows, points = [], []
  for values, accuracy, error, epsilon, more in lines:
    points.append(grid.Point(tuple((n, v) for n, v in zip(varied, values) if v)))
    rows.append(
      {
        **dict(zip(varied, values)),
        'test_accuracy': accuracy,
        f'test_accuracy{table.ERROR}': error,
        'epsilon': epsilon,
        'delta': '1e-05',
        'seeds': '2' if error else '1',
        **more,
      }
    )
  record = record_lib.Record({}, varied, points, ['digits'], 2, {}, 1)
  return pictures.picture(record, rows)


def test_the_metric_is_drawn_against_epsilon_with_a_line_for_each_mechanism():
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
  assert chart.lines == [
    charts.Line('tree', [2.0, 8.0], [0.8, 0.9], [0.02, 0.01]),
    charts.Line('blt', [2.0], [0.7], [NAN]),
    charts.Line('no privacy', (), [0.95], [0.005]),
  ]
  assert chart.x_label == 'epsilon at delta = 1e-05'
  assert chart.y_label == 'test accuracy'
  assert chart.title == 'digits: test accuracy, 1 to 2 seeds'


def test_epsilon_of_a_simulated_cohort_is_said_to_be_no_guarantee():
  lines = [
    ((noise,), '0.5', '', 'inf', {'simulated_epsilon': epsilon})
    for noise, epsilon in (('1', '12.5'), ('2', '3.25'))
  ]
  chart = picture(['noise_multiplier'], lines)
  assert chart.lines[0].x == [3.25, 12.5]
  assert 'no guarantee' in chart.x_label

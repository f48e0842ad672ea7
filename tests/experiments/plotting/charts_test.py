"""Pictures: lines that can be told apart, and files that are whole."""

import math

import pytest

from experiments.plotting import charts

LINES = tuple(
  charts.Line(f'mechanism={number}', (1, 2, 4), (0.1, 0.2, number / 20), (0.01,) * 3)
  for number in range(12)
)
CHART = charts.Chart(
  'title', 'epsilon', 'accuracy', (*LINES, charts.Line('no privacy', (), (0.9,)))
)


@pytest.mark.parametrize('kind', charts.FORMATS)
def test_the_same_picture_is_the_same_bytes(kind, tmp_path):
  paths = [str(tmp_path / f'{number}.{kind}') for number in range(2)]
  for path in paths:
    charts.save(CHART, path)
  first, second = (open(path, 'rb').read() for path in paths)
  assert first == second
  assert first.startswith(b'\x89PNG' if kind == 'png' else b'<?xml')


def test_error_bars_have_the_length_of_the_errors():
  line = charts.Line('a', (1.0, 2.0, 4.0), (0.5, 0.6, 0.7), (0.05, math.nan, 0.02))
  chart = charts.Chart('', 'x', 'y', [line], are_points=True)
  (axes,) = charts._drawn(chart).axes
  (container,) = axes.containers
  (bars,) = container[2]
  segments = bars.get_segments()
  assert segments[0][:, 1] == pytest.approx([0.45, 0.55])
  assert segments[2][:, 1] == pytest.approx([0.68, 0.72])
  assert [text.get_text() for text in axes.get_xticklabels()] == ['1', '2', '4']

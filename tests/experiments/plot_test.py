"""The program that draws, what it refuses, and its pictures."""

import json
import math
import os

import pytest

from experiments import plot
from experiments.comparing import grid
from experiments.comparing import record as record_lib
from experiments.plotting import charts
from tests import executing


@pytest.fixture
def run_dir(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  config = {'flags': {'metric': 'accuracy'}, 'privacy': {'delta': 1e-5}}
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'metrics.csv').write_text(
    'round,epsilon,test_accuracy,round_seconds\n0,1.0,0.5,1\n1,2.0,0.75,1\n'
  )
  return folder


@pytest.fixture
def comparison(tmp_path):
  folder = tmp_path / 'comparison'
  folder.mkdir()
  points = [grid.Point((('target_epsilon', each),)) for each in '24']
  record = record_lib.Record({}, ['target_epsilon'], points, ['digits'], 1, {}, 1)
  record_lib.write(str(folder), record)
  (folder / 'table.csv').write_text(
    'target_epsilon,seeds,test_accuracy,test_accuracy_stderr,epsilon,delta\n'
    '2,1,0.5,,2.0,1e-05\n4,1,0.6,,4.0,1e-05\n'
  )
  return folder


def _plot(*arguments):
  return executing.execute(plot, *arguments)


def test_runs_are_drawn_into_the_file_that_is_named(run_dir, tmp_path):
  for name, arguments in (
    ('one.png', [run_dir]),
    ('two.svg', [run_dir, run_dir, '--x=epsilon']),
    ('flag.png', [f'--run_dir={run_dir}', '--y=epsilon']),
  ):
    path = tmp_path / name
    # What has no flag may stand in front of flags and after them.
    result = _plot(*arguments, f'--output={path}')
    assert result.returncode == 0, result.stderr
    assert result.stdout == f'Drawn: {path}.\n'
    assert path.stat().st_size > 5000


def test_a_comparison_is_drawn_again_in_its_directory(comparison):
  assert _plot(comparison).returncode == 0
  drawn = {'comparison.png', 'comparison.svg'}
  assert drawn <= set(os.listdir(comparison))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'name the directory of a run'),
    (['{run}', '--y=speed'], "has no column 'speed'; there are round, epsilon"),
    (['{run}/nothing'], 'cannot be read as a run: '),
    (['{run}', '--output=a.pdf'], "'a.pdf' must end in .png or .svg"),
    (['{comparison}', '{run}'], 'a comparison is drawn alone'),
  ],
)
def test_what_cannot_be_drawn_is_refused(
  arguments, message, run_dir, comparison, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  given = [each.format(run=run_dir, comparison=comparison) for each in arguments]
  result = _plot(*given)
  assert result.returncode == 2
  assert message in result.stderr
  assert set(os.listdir(tmp_path)) == {'run', 'comparison'}


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

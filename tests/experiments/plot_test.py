"""The plot program: pictures of runs and comparisons, and refused arguments."""

import json
import os

import pytest

from experiments import plot
from experiments.comparing import grid
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
  points = [grid.Point({'target_epsilon': each}) for each in '24']
  record = grid.Record({}, ['target_epsilon'], points, ['digits'], 1, {}, 1)
  grid.write_record(str(folder), record)
  (folder / 'table.csv').write_text(
    'target_epsilon,seeds,test_accuracy,test_accuracy_stderr,epsilon,delta\n'
    '2,1,0.5,,2.0,1e-05\n4,1,0.6,,4.0,1e-05\n'
  )
  return folder


def _plot(*arguments):
  return executing.execute(plot, *arguments)


def test_runs_are_drawn_to_output_file(run_dir, tmp_path):
  for name, arguments in (
    ('one.png', [run_dir]),
    ('two.svg', [run_dir, run_dir, '--x=epsilon']),
    ('flag.png', [f'--run_dir={run_dir}', '--y=epsilon']),
  ):
    path = tmp_path / name
    # Directories may come before flags and after them.
    result = _plot(*arguments, f'--output={path}')
    assert result.returncode == 0, result.stderr
    assert result.stdout == f'Drawn: {path}.\n'
    assert path.stat().st_size > 5000


def test_comparison_is_drawn_in_its_directory(comparison):
  assert _plot(comparison).returncode == 0
  pictures = {'comparison.png', 'comparison.svg'}
  assert pictures <= set(os.listdir(comparison))


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
def test_plot_refuses_wrong_arguments(
  arguments, message, run_dir, comparison, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  formatted = [each.format(run=run_dir, comparison=comparison) for each in arguments]
  result = _plot(*formatted)
  assert result.returncode == 2
  assert message in result.stderr
  assert set(os.listdir(tmp_path)) == {'run', 'comparison'}

"""Tests of learning curves in the HTML page of a run; other formats have none."""

import base64
import re

import pytest

from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement

_HEADER = 'round,not_private_clients,epsilon,test_loss,test_accuracy,'
_HEADER += 'not_private_train_loss,round_seconds'
_ROWS = (
  '0,10,0.5,3.0,,9.75,0.1',
  '1,10,0.75,inf,0.25,9.5,0.1',
  '2,10,1.25,1.5,0.625,9.25,0.1',
)
_TITLE = 'Learning and privacy over rounds'


def _write(run_dir, *rows, header=_HEADER, end='\n'):
  with open(f'{run_dir}/metrics.csv', 'w', encoding='utf-8') as file:
    file.write('\n'.join((header, *rows)) + end)


@pytest.fixture(name='run_dir')
def _run_dir(tmp_path):
  run_dir = statements.run_dir(tmp_path / 'run')
  _write(run_dir, *_ROWS)
  return run_dir


def test_of_run_reads_curves_from_metrics_file(run_dir):
  curves = learning_curves.of_run(run_dir)
  assert curves.rounds == 3
  assert curves.test == {
    'loss': learning_curves.Curve(((1, 3.0), (3, 1.5)), left_out=1),
    'accuracy': learning_curves.Curve(((2, 0.25), (3, 0.625))),
  }
  assert curves.epsilon.points == ((1, 0.5), (2, 0.75), (3, 1.25))
  assert curves.simulated_epsilon.points == ()


def test_page_plots_test_metrics_and_no_data_of_clients(run_dir, monkeypatch):
  stated = statement.build(sources.from_run_dir(run_dir))
  curves = learning_curves.of_run(run_dir)
  drawn = {}
  with monkeypatch.context() as drawing:

    def draw(title, x_label, y_label, points, mark, mark_text=None, **options):
      drawn[title] = (points, mark_text)
      return ''

    drawing.setattr(rendering, '_image', draw)
    text = rendering.render(stated, 'html', curves)
  assert drawn['Test loss against rounds'] == (((1, 3.0), (3, 1.5)), '1.5000')
  assert 'Left out are 1 rounds in which it was not finite' in text
  points, _ = drawn['Test accuracy against epsilon']
  assert points == ((0.75, 0.25), (1.25, 0.625))
  page = rendering.render(stated, 'html', curves)
  assert page.index(_TITLE) < page.index('Setting and definition')
  for figure in ('9.25', 'train loss', 'round_seconds', 'not_private'):
    assert figure not in _texts(page)


def _texts(page):
  """Returns a page with the texts of its images."""
  images = re.findall(r'data:image/svg\+xml;base64,([^"]*)', page)
  return page + ''.join(base64.b64decode(image).decode() for image in images)


def test_incomplete_last_line_of_metrics_is_ignored(run_dir):
  whole = learning_curves.of_run(run_dir)
  _write(run_dir, *_ROWS, '3,10,2.5,1', end='')
  assert learning_curves.of_run(run_dir) == whole


def test_invalid_metrics_file_is_refused(run_dir):
  _write(run_dir, '0,10,much,3.0,,9.75,0.1')
  shown = reporting.execute(f'--run_dir={run_dir}', '--format=html')
  assert shown.returncode == 2
  assert "could not convert string to float: 'much'" in shown.stderr
  assert reporting.execute(f'--run_dir={run_dir}').returncode == 0

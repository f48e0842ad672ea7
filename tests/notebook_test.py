"""The notebook of docs/ runs from top to bottom and prints its committed output."""

import nbformat
import pytest

from tools.docs import notebook


def _code(document):
  return [cell for cell in document.cells if cell.cell_type == 'code']


def _printed(cell):
  """Returns standard output, without notes that depend on the checkout."""
  text = ''.join(
    output.text
    for output in cell.outputs
    if output.output_type == 'stream' and output.name == 'stdout'
  )
  return [line for line in text.splitlines() if not line.startswith('note: ')]


def _shown(cell):
  """Returns the MIME types of outputs other than streams."""
  return [
    sorted(output.data) for output in cell.outputs if output.output_type != 'stream'
  ]


@pytest.mark.slow
def test_notebook_prints_and_draws_its_committed_output(tmp_path):
  committed = _code(nbformat.read(notebook.PATH, as_version=4))
  executed = _code(notebook.executed(str(tmp_path)))
  for expected, actual in zip(committed, executed):
    assert _printed(actual) == _printed(expected), actual.source
    assert _shown(actual) == _shown(expected), actual.source
  assert any(line.startswith('verified: ') for line in _printed(executed[-1]))
  assert sum('image/png' in kinds for cell in executed for kinds in _shown(cell)) == 4


def test_committed_notebook_is_one_run_without_local_paths():
  text = notebook.PATH.read_text(encoding='utf-8')
  assert not any(place in text for place in ('/home/', '/root/', '/tmp/', '.venv'))
  cells = _code(nbformat.reads(text, as_version=4))
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))

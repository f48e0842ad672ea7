"""Runs the notebook of docs/ anew: `python -m tools.docs.notebook`.

It is written back with what it then shows. Do so in a checkout without changes, of
which the report in it would tell.
"""

import os
import pathlib
import tempfile

import nbclient
import nbformat

PATH = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'tutorial.ipynb'


def executed(directory: str) -> nbformat.NotebookNode:
  """The notebook with what it shows now.

  Args:
    directory: An empty one to start it in; what IPython keeps is left there.

  Raises:
    nbclient.exceptions.CellExecutionError: If a cell fails.
  """
  notebook = nbformat.read(PATH, as_version=4)
  client = nbclient.NotebookClient(
    notebook,
    timeout=300,
    record_timing=False,
    resources={'metadata': {'path': directory}},
  )
  client.execute(env={**os.environ, 'IPYTHONDIR': directory})
  return notebook


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as scratch:
    nbformat.write(executed(scratch), PATH)

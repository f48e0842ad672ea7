"""Executes programs in the process of the tests, and captures their output."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple


class Result(NamedTuple):
  """Exit code and output of a program, with the names of `subprocess.run`."""

  returncode: int
  stdout: str
  stderr: str


def execute(program, *arguments):
  """Executes a program, or a module with a function `execute`, like a command line.

  Output goes to files, because TensorFlow Federated starts its worker only if stdout
  and stderr are files.
  """
  with contextlib.ExitStack() as stack:
    stdout, stderr = (
      stack.enter_context(tempfile.TemporaryFile('w+', encoding='utf-8'))
      for _ in range(2)
    )
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
      code = program.execute([str(each) for each in arguments])
    texts = []
    for stream in (stdout, stderr):
      stream.seek(0)
      texts.append(stream.read())
  return Result(code, *texts)


def run_example(program):
  """Returns what a Python program, given as text, prints."""
  return run_text(program)[0]


def run_text(program):
  """Returns what a Python program, given as text, prints, and its global names."""
  names = {'__name__': '__main__'}
  with tempfile.TemporaryFile('w+', encoding='utf-8') as stdout:
    with contextlib.redirect_stdout(stdout):
      exec(compile(program, '<example>', 'exec'), names)
    stdout.seek(0)
    return stdout.read(), names


def run_python(code, *arguments):
  """Runs code in a new interpreter, which imports from this checkout."""
  root = pathlib.Path(__file__).resolve().parents[1]
  return subprocess.run(
    [sys.executable, '-c', code, *arguments],
    cwd=root,
    env={**os.environ, 'PYTHONPATH': str(root)},
    capture_output=True,
    text=True,
    timeout=120,
  )

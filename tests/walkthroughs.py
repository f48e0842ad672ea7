"""Executes walkthroughs: documents to be followed from top to bottom.

A walkthrough shows commands with their output:

    ```console
    $ tff-dp-plan --num_rounds=300 \
        --min_separation=20
    300 rounds, ...
    ```

and Python with a block of its output below. Python whose first line is a comment with
only the name of a file, such as `# shop.py`, is written to that file. A line `...`
stands for any lines, and `...` in a line for any characters, as in doctest. All steps
run in one directory, so that each finds the files of those before it.
"""

import contextlib
import doctest
import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

from tests import executing

# Ends of lines and spaces compare equal; `...` matches any text.
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# A command ends with the first line without a backslash at its end.
_COMMAND = re.compile(r'((?:[^\n]*\\\n)*[^\n]*\n)(.*)', re.DOTALL)
_FILE = re.compile(r'# (\S+\.py)\n')
_SHELL_SYNTAX = re.compile(r'[|&;<>$]')
_PROGRAMS = {
  **{
    name: f'tff_dp_aggregators.accounting.programs.{name}'
    for name in ('participation', 'plan', 'report')
  },
  **{
    name: f'experiments.{name}' for name in ('compare', 'plot', 'predict', 'simulate')
  },
}


class Step(NamedTuple):
  """One step of the reader: a command, Python, or writing a file."""

  kind: str
  text: str  # The command or code.
  output: str  # Its expected output.


def is_walkthrough(path):
  """Whether a file is a walkthrough, which has commands with output."""
  return '```console' in path.read_text(encoding='utf-8')


def steps(document):
  """Returns the steps of a walkthrough, given as Markdown text."""
  result = []
  blocks = _BLOCK.findall(document)
  for index, (language, text) in enumerate(blocks):
    if language == 'console':
      for part in re.split(r'^\$ ', text, flags=re.MULTILINE)[1:]:
        command, output = _COMMAND.match(part).groups()
        result.append(Step('command', command.replace('\\\n', ' ').strip(), output))
    elif language == 'python' and _FILE.match(text):
      result.append(Step('file', text, ''))
    elif language == 'python':
      following, output = blocks[index + 1] if index + 1 < len(blocks) else ('', '')
      assert following == 'text', f'no output below:\n{text}'
      result.append(Step('python', text, output))
  return result


def follow(document, directory):
  """Executes all steps in an empty directory, and compares their output."""
  with _WorkingDirectory(directory):
    for step in steps(document):
      output = _run(step)
      if not doctest.OutputChecker().check_output(step.output, output, _OPTIONS):
        raise AssertionError(
          f'{step.text}\n\nshould print\n\n{step.output}\nand printed\n\n{output}'
        )


class _WorkingDirectory(contextlib.AbstractContextManager):
  """Changes the working directory, like `contextlib.chdir` of Python 3.11."""

  def __init__(self, directory):
    self._directory, self._before = directory, os.getcwd()

  def __enter__(self):
    os.chdir(self._directory)

  def __exit__(self, *exc_info):
    os.chdir(self._before)


def _run(step):
  if step.kind == 'python':
    return executing.run_example(step.text)
  if step.kind == 'file':
    pathlib.Path(_FILE.match(step.text).group(1)).write_text(step.text)
    return ''
  program, *arguments = shlex.split(step.text)
  name = program.removeprefix('tff-dp-')
  if name == program or _SHELL_SYNTAX.search(step.text):
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.defpath])
    return subprocess.run(
      step.text,
      shell=True,
      check=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env={**os.environ, 'PATH': path},
      timeout=120,
    ).stdout
  code, output = _output_of(importlib.import_module(_PROGRAMS[name]), arguments)
  assert code == 0, f'{step.text}\n{output}'
  return output


def _output_of(program, arguments):
  """Returns a program's exit code, and its output in the order of a terminal."""
  with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
      code = program.execute(arguments)
    file.seek(0)
    return code, file.read()

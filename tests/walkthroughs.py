"""Documents that are followed from top to bottom, as a reader does.

In a walkthrough, commands are shown with what they print:

    ```console
    $ tff-dp-plan --num_rounds=300 \
        --min_separation=20
    300 rounds, ...
    ```

and Python with a block of its output below; Python whose first line is a comment with
nothing but a file's name, such as `# shop.py`, is put into that file. A line `...`
stands for any lines, and `...` in a line for any characters, as in doctest. All run in
one directory, so that each step finds what those before it left.
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

# What is not told apart: an end of a line and a space. `...` is any text.
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# Its last line is the first that does not end in a backslash.
_COMMAND = re.compile(r'((?:[^\n]*\\\n)*[^\n]*\n)(.*)', re.DOTALL)
_FILE = re.compile(r'# (\S+\.py)\n')
_OF_SHELLS = re.compile(r'[|&;<>$]')
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
  """One thing that the reader does: a command, Python, or writing a file."""

  kind: str
  text: str  # What is typed.
  output: str  # What is seen.


def is_one(path):
  """Whether the document in a file is a walkthrough: it has commands with output."""
  return '```console' in path.read_text(encoding='utf-8')


def steps(document):
  """The steps of a walkthrough, of which the text is given, in Markdown."""
  found = []
  blocks = _BLOCK.findall(document)
  for number, (language, text) in enumerate(blocks):
    if language == 'console':
      for part in re.split(r'^\$ ', text, flags=re.MULTILINE)[1:]:
        command, output = _COMMAND.match(part).groups()
        found.append(Step('command', command.replace('\\\n', ' ').strip(), output))
    elif language == 'python' and _FILE.match(text):
      found.append(Step('file', text, ''))
    elif language == 'python':
      following, output = blocks[number + 1] if number + 1 < len(blocks) else ('', '')
      assert following == 'text', f'no output below:\n{text}'
      found.append(Step('python', text, output))
  return found


def follow(document, directory):
  """Takes all steps in an empty directory, and compares what is seen."""
  with _In(directory):
    for step in steps(document):
      seen = _run(step)
      if not doctest.OutputChecker().check_output(step.output, seen, _OPTIONS):
        raise AssertionError(
          f'{step.text}\n\nshould print\n\n{step.output}\nand printed\n\n{seen}'
        )


class _In(contextlib.AbstractContextManager):
  """Makes a directory the current one; `contextlib.chdir` of Python 3.11."""

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
  if name == program or _OF_SHELLS.search(step.text):
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
  code, seen = _seen(importlib.import_module(_PROGRAMS[name]), arguments)
  assert code == 0, f'{step.text}\n{seen}'
  return seen


def _seen(program, arguments):
  """Exit code of a program, and all that it prints, in the order of a terminal."""
  with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
      code = program.execute(arguments)
    file.seek(0)
    return code, file.read()

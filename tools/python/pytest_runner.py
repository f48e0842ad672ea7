"""Runs pytest on one file, as a Bazel test; see pytest.bzl.

Bazel arguments reach pytest: `bazel test --test_arg=-m --test_arg=slow //...`.
"""

import os
import pathlib
import sys
from typing import Any

import pytest


class _Deselected:
  """Counts the tests that were deselected."""

  def __init__(self):
    self.count = 0

  def pytest_deselected(self, items: list[Any]) -> None:
    self.count += len(items)


def _forget_editable_install() -> None:
  """Makes the run files the only source of the package.

  The environment has the package installed from the checkout. Its import hook would
  supply modules that a BUILD file forgets, and so hide the mistake.
  """
  sys.meta_path[:] = [
    finder
    for finder in sys.meta_path
    if not getattr(finder, '__module__', '').startswith('__editable__')
  ]


def _check_origin(root: pathlib.Path) -> None:
  try:
    import tff_dp_aggregators
  except ModuleNotFoundError:
    return  # The test declares no dependency on the package.
  origin = pathlib.Path(tff_dp_aggregators.__file__)
  if not origin.is_relative_to(root):
    sys.exit(
      f'error: tff_dp_aggregators comes from {origin}, not from the run files in'
      f' {root}. Add the library to the deps of this test.'
    )


def main(argv: list[str]) -> int:
  """Returns the exit code for `pytest_runner.py FILE [ARGUMENT OF PYTEST ...]`."""
  for name in ('TEST_SRCDIR', 'TEST_WORKSPACE', 'TEST_TMPDIR'):
    if name not in os.environ:
      sys.exit(f'error: {name} is not set. Run this through `bazel test`.')
  root = pathlib.Path(os.environ['TEST_SRCDIR'], os.environ['TEST_WORKSPACE'])
  scratch = pathlib.Path(os.environ['TEST_TMPDIR'])
  # The sandbox has no writable home folder.
  os.environ.setdefault('MPLCONFIGDIR', str(scratch / 'matplotlib'))
  _forget_editable_install()
  _check_origin(root)

  arguments = [
    f'--rootdir={root}',
    f'--config-file={root / "pyproject.toml"}',
    f'--basetemp={scratch / "pytest"}',
    '-p',
    'no:cacheprovider',
  ]
  if 'XML_OUTPUT_FILE' in os.environ:
    arguments.append(f'--junitxml={os.environ["XML_OUTPUT_FILE"]}')
  if 'TESTBRIDGE_TEST_ONLY' in os.environ:
    arguments += ['-k', os.environ['TESTBRIDGE_TEST_ONLY']]
  deselected = _Deselected()
  code = pytest.main([*arguments, *argv[1:]], plugins=[deselected])
  if code == pytest.ExitCode.NO_TESTS_COLLECTED and deselected.count:
    return 0  # All tests of the file are slow or not selected.
  return int(code)


if __name__ == '__main__':
  sys.exit(main(sys.argv))

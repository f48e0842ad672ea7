"""Checks line ends, file ends, YAML syntax and sizes, which no other tool here does.

    .venv/bin/python tools/python/check_files.py [FILE ...]

Without arguments, checks all files that git tracks. Prints each problem; exits with 1
if there are any.
"""

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import yaml

_MAX_BYTES = 500_000  # Larger files would stay in every clone forever.
_CONFLICT = re.compile(rb'^(<{7} |={7}$|>{7} )', re.MULTILINE)


def problems(path: pathlib.Path) -> Iterator[str]:
  """Yields the problems of a file, each as a line that begins with its path."""
  content = path.read_bytes()
  if len(content) > _MAX_BYTES:
    yield f'{path}: {len(content)} bytes; at most {_MAX_BYTES} are kept in git.'
  if b'\0' in content:  # Binary files, such as pictures.
    return
  for number, line in enumerate(content.split(b'\n'), start=1):
    if line.endswith((b' ', b'\t', b'\r')):
      yield f'{path}:{number}: white space at the end of the line; remove it.'
  if content and (not content.endswith(b'\n') or content.endswith(b'\n\n')):
    yield f'{path}: does not end with exactly one newline.'
  if _CONFLICT.search(content):
    yield f'{path}: has the marks of a merge conflict; resolve it.'
  if path.suffix in ('.yml', '.yaml', '.cff'):
    try:
      list(yaml.safe_load_all(content))
    except yaml.YAMLError as e:
      yield f'{path}: is no YAML: {" ".join(str(e).split())}'


def main(arguments: list[str]) -> int:
  """Prints the problems of the files; returns the exit code."""
  if not arguments:
    output = subprocess.run(
      ['git', 'ls-files', '-z'], check=True, stdout=subprocess.PIPE
    ).stdout
    arguments = [name for name in output.decode('utf-8').split('\0') if name]
  paths = [pathlib.Path(name) for name in arguments]
  # Git lists removed files until the removal is staged; targets of links are skipped.
  lines = [
    problem
    for path in paths
    if path.is_file() and not path.is_symlink()
    for problem in problems(path)
  ]
  print('\n'.join(lines) or f'{len(paths)} files are in order.')
  return 1 if lines else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))

"""Checks what no other tool does: the ends of lines and files, YAML, large files.

    .venv/bin/python tools/python/check_files.py [FILE ...]

Without arguments, all files that git tracks. Prints what is wrong and ends with 1 if
anything is.
"""

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import yaml

_LARGEST = 500_000  # Bytes. What is larger stays in every clone for ever.
_CONFLICT = re.compile(rb'^(<{7} |={7}$|>{7} )', re.MULTILINE)


def problems(path: pathlib.Path) -> Iterator[str]:
  """What is wrong with a file, each in a line that begins with its path."""
  content = path.read_bytes()
  if len(content) > _LARGEST:
    yield f'{path}: {len(content)} bytes; at most {_LARGEST} are kept in git.'
  if b'\0' in content:  # Pictures and the like.
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
  """Prints what is wrong with the files; returns the exit code."""
  if not arguments:
    listed = subprocess.run(
      ['git', 'ls-files', '-z'], check=True, stdout=subprocess.PIPE
    ).stdout
    arguments = [name for name in listed.decode('utf-8').split('\0') if name]
  paths = [pathlib.Path(name) for name in arguments]
  # A file that is removed and not yet staged is still listed; links lead elsewhere.
  found = [
    problem
    for path in paths
    if path.is_file() and not path.is_symlink()
    for problem in problems(path)
  ]
  print('\n'.join(found) or f'{len(paths)} files are in order.')
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))

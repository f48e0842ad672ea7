"""How the programs of this folder are started, in the way in which this process was.

Installed, they are commands, and modules under another name than in a clone.
"""

import os
import re
import shutil
import sys

_PREFIX = 'tff-dp-'
_IN_A_CLONE = re.compile(r'\bpython -m experiments\.(\w+)')


def of(program: str) -> str:
  """What starts a program, in the way in which this process was started."""
  folder, name = os.path.split(sys.argv[0])
  if not name.startswith(_PREFIX):
    return f'python -m {__package__}.{program}'
  command = _PREFIX + program
  found = shutil.which(name)
  if found is not None and os.path.abspath(found) == os.path.abspath(sys.argv[0]):
    return command  # Typed without its folder, or it could have been.
  return os.path.join(folder, command)


def in_words(text: str) -> str:
  """A text with the commands of a clone in it, as they are in this process."""
  return _IN_A_CLONE.sub(lambda match: of(match[1]), text)

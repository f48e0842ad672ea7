"""Lists the package's files that run from `aggregators.banded(...)` to a round's noise.

    python -m benchmarks.files_walked

Profiles a fresh process, which builds a banded mean, creates its process for a small
model and runs the first round. Prints each file of the package in which a function was
called, by the time of the first call, with the functions. Code that runs on import does
not count. TensorFlow and TFF trace Python once: the functions called then make up each
round. The last line has the number of files and the maximum; the program exits with 1
if there are more.

The strategy was optimised before, and is read from disk, since its optimisation is not
part of this path. docs/architecture.md names these files; jax_privacy and TFF with TF
Privacy have 4 and 5 files on the same path.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from benchmarks import _arguments

MAX_FILES = 18
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / 'tff_dp_aggregators'


def walk() -> dict[str, list[str]]:
  """Returns the called functions by file, in the order of their first calls."""
  import numpy as np
  import tensorflow_federated as tff

  from tff_dp_aggregators import aggregators
  from tff_dp_aggregators import strategies

  package = f'{_PACKAGE}/'
  called: dict[str, list[str]] = {}
  top = sys._getframe()

  def record(frame: Any, event: str, _: Any) -> None:
    path, name = frame.f_code.co_filename, frame.f_code.co_name
    if event != 'call' or not path.startswith(package) or _is_import(frame, top):
      return
    names = called.setdefault(path[len(package) :], [])
    if name not in names:
      names.append(name)

  participation = strategies.Participation(num_rounds=16, min_separation=4)
  # Puts the optimum on disk, as in every run but the first.
  strategies.banded.optimize(16, num_bands=4, participation=participation)
  threading.setprofile(record)
  sys.setprofile(record)
  try:
    mean = aggregators.banded(
      participation,
      clip_norm=1.0,
      noise_multiplier=2.0,
      clients_per_round=2,
    )
    process = mean.create(tff.TensorType(np.float32, [3]))
    values = [np.ones(3, np.float32)] * 2
    process.next(process.initialize(), values)
  finally:
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
  return called


def _is_import(frame: Any, top: Any) -> bool:
  """Whether a frame is part of an import that began below the frame `top`."""
  while frame is not None and frame is not top:
    if frame.f_code.co_name == '<module>':
      return True
    frame = frame.f_back
  return False


def walk_afresh() -> dict[str, list[str]]:
  """Calls `walk` in a new process with an empty cache of strategies."""
  with tempfile.TemporaryDirectory() as folder:
    # The result is in a file, since TFF's workers keep pipes open after the process.
    output = pathlib.Path(folder) / 'walk.json'
    code = 'import json, sys; from benchmarks.files_walked import walk; '
    code += "json.dump(walk(), open(sys.argv[1], 'w'))"
    program = subprocess.Popen(
      [sys.executable, '-c', code, str(output)],
      cwd=_ROOT,
      env={**os.environ, 'TFF_DP_AGGREGATORS_CACHE': folder},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
      start_new_session=True,
    )
    try:
      if program.wait():
        raise subprocess.CalledProcessError(program.returncode, program.args)
    finally:
      # Ends TFF's worker too, which TFF leaves behind.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    return json.loads(output.read_text(encoding='utf-8'))


def main() -> bool:
  """Prints the files; returns whether there are at most `MAX_FILES`."""
  called = walk_afresh()
  for path, functions in called.items():
    print(f'{path:36} {", ".join(functions)}')
  print(f'{len(called)} files, of at most {MAX_FILES}')
  return len(called) <= MAX_FILES


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  sys.exit(not main())

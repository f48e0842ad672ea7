"""The machine of a run, as far as it decides the last digits of what is computed."""

import math
import os
import platform
from typing import Any

_GROUP = '/sys/fs/cgroup'
# Environment variables that choose routines or the number of threads.
_PREFIXES = ('TF_', 'XLA_', 'OMP_', 'KMP_', 'MKL_')
# Those that choose none: of logging, of clusters, and what libraries set on import.
_OTHERS = (
  *('TF_CPP_', 'TF_CONFIG', 'TF_CLI_'),
  *('KMP_DUPLICATE_LIB_OK', 'KMP_INIT_AT_FORK'),
)


def current() -> dict[str, Any]:
  """Processor, number of processors, and environment variables; JSON-ready."""
  return {
    'processor': _processor(),
    'processors': os.cpu_count(),
    'environment': {
      name: value
      for name, value in sorted(os.environ.items())
      if name.startswith(_PREFIXES) and not name.startswith(_OTHERS)
    },
  }


def usable_processors(folder: str = _GROUP) -> int:
  """How many processors this process may use, as affinity and container allow it."""
  number = len(os.sched_getaffinity(0))
  try:
    with open(os.path.join(folder, 'cpu.max'), encoding='ascii') as file:
      quota, period = file.read().split()
    return max(1, min(number, math.ceil(int(quota) / int(period))))
  except (OSError, ValueError):  # No limit, or none that is known.
    return number


def _processor() -> str:
  try:
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
      for line in file:
        name, _, value = line.partition(':')
        if name.strip() == 'model name':
          return value.strip()
  except OSError:
    pass  # Another system.
  return platform.processor() or platform.machine()

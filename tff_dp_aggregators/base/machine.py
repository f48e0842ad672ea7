"""Properties of the machine that affect the last digits of computed results."""

import math
import os
import platform
from typing import Any

_CGROUP_FOLDER = '/sys/fs/cgroup'
# Environment variables that choose routines or the number of threads.
_PREFIXES = ('TF_', 'XLA_', 'OMP_', 'KMP_', 'MKL_')
# Exceptions that do neither: logging, clusters, and what libraries set on import.
_EXCLUDED_PREFIXES = (
  *('TF_CPP_', 'TF_CONFIG', 'TF_CLI_'),
  *('KMP_DUPLICATE_LIB_OK', 'KMP_INIT_AT_FORK'),
)


def current() -> dict[str, Any]:
  """Returns processor, number of processors and environment variables; JSON-ready."""
  return {
    'processor': _processor(),
    'processors': os.cpu_count(),
    'environment': {
      name: value
      for name, value in sorted(os.environ.items())
      if name.startswith(_PREFIXES) and not name.startswith(_EXCLUDED_PREFIXES)
    },
  }


def usable_processors(folder: str = _CGROUP_FOLDER) -> int:
  """The number of processors that CPU affinity and the container's quota allow."""
  number = len(os.sched_getaffinity(0))
  try:
    with open(os.path.join(folder, 'cpu.max'), encoding='ascii') as file:
      quota, period = file.read().split()
    return max(1, min(number, math.ceil(int(quota) / int(period))))
  except (OSError, ValueError):  # There is no limit, or it cannot be read.
    return number


def _processor() -> str:
  try:
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
      for line in file:
        name, _, value = line.partition(':')
        if name.strip() == 'model name':
          return value.strip()
  except OSError:
    pass  # Not Linux.
  return platform.processor() or platform.machine()

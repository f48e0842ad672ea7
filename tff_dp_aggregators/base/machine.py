"""The machine of a run, as far as it decides the last digits of what is computed.

Another processor, or another choice of TensorFlow's routines, may come to other bits in
a round that is run again. The run is then refused, and this tells why.
"""

import os
import platform
from typing import Any

# Of environment variables that choose routines or the number of threads.
_PREFIXES = ('TF_', 'XLA_', 'OMP_', 'KMP_', 'MKL_')
# Of logging; and of clusters, which computes nothing here and names hosts.
_OTHERS = ('TF_CPP_', 'TF_CONFIG')


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

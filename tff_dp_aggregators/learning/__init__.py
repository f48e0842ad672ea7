"""Private federated averaging, who takes part in it, and a runtime that ends.

Loads on first use: `learning.schedules` needs no TensorFlow.
"""

import importlib
from typing import Any

_MODULES = ('clients', 'fed_avg', 'runtime', 'schedules', 'sources')
# Names, and the modules that they are of.
_NAMES = {
  'ClientSource': 'sources',
  'Clients': 'clients',
  'build_dp_fed_avg': 'fed_avg',
}

__all__ = [
  'ClientSource',
  'Clients',
  'build_dp_fed_avg',
  'runtime',
  'schedules',
]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    return getattr(importlib.import_module(f'{__name__}.{_NAMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

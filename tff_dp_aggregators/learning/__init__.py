"""Private federated learning: processes, who takes part, and a runtime that ends.

Loads on first use: `learning.schedules` needs no TensorFlow.
"""

import importlib
from typing import Any

_MODULES = (
  'clients',
  'fed_avg',
  'fed_prox',
  'fed_sgd',
  'ftrl',
  'runtime',
  'schedules',
  'server_schedule',
  'sources',
)
# Names, and the modules that they are of.
_NAMES = {
  'ClientSource': 'sources',
  'Clients': 'clients',
  'ServerSchedule': 'server_schedule',
  'build_dp_fed_avg': 'fed_avg',
  'build_dp_fed_prox': 'fed_prox',
  'build_dp_fed_sgd': 'fed_sgd',
  'build_ftrl': 'ftrl',
}

__all__ = [
  'ClientSource',
  'Clients',
  'ServerSchedule',
  'build_dp_fed_avg',
  'build_dp_fed_prox',
  'build_dp_fed_sgd',
  'build_ftrl',
  'runtime',
  'schedules',
]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    return getattr(importlib.import_module(f'{__name__}.{_NAMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})

"""Private federated training: all of it in `train`, and what it is made of.

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
  'packed',
  'runtime',
  'schedules',
  'server_schedule',
  'sources',
  'training',
)
# Names, and the modules that they are of.
_NAMES = {
  'ClientSource': 'sources',
  'Clients': 'clients',
  'Result': 'training',
  'ServerSchedule': 'server_schedule',
  'build_dp_fed_avg': 'fed_avg',
  'build_dp_fed_prox': 'fed_prox',
  'build_dp_fed_sgd': 'fed_sgd',
  'build_ftrl': 'ftrl',
  'train': 'training',
}

__all__ = [
  'ClientSource',
  'Clients',
  'Result',
  'ServerSchedule',
  'build_dp_fed_avg',
  'build_dp_fed_prox',
  'build_dp_fed_sgd',
  'build_ftrl',
  'packed',
  'runtime',
  'schedules',
  'train',
]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    return getattr(importlib.import_module(f'{__name__}.{_NAMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})

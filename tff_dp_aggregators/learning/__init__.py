"""Private federated averaging, client selection, and a runtime that ends.

Loads on first use: `learning.sampling` needs no TensorFlow.
"""

import importlib
from typing import Any

__all__ = ['build_dp_fed_avg', 'runtime', 'sampling']


def __getattr__(name: str) -> Any:
  if name in ('fed_avg', 'runtime', 'sampling'):
    return importlib.import_module(f'{__name__}.{name}')
  if name == 'build_dp_fed_avg':
    return importlib.import_module(f'{__name__}.fed_avg').build_dp_fed_avg
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

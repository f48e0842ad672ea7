"""Differentially private aggregation for TensorFlow Federated.

The package is seven layers, each of which may import only those above it:

* `strategies`: matrix-mechanism strategies as plain data (NumPy, SciPy).
* `sampling`: who takes part in which round, and what that allows to assume.
* `accounting`: privacy events, accountants, calibration, ledgers, reports.
* `noise`: streaming correlated noise as pure functions (TensorFlow).
* `queries`: `DPQuery` implementations (TensorFlow Privacy).
* `aggregators`: `tff.aggregators` factories (TensorFlow Federated).
* `learning`: federated averaging processes, and on which data.

Layers load on first use (PEP 562), so that `import tff_dp_aggregators` and the
accounting programs start in a fraction of a second and never load TensorFlow.
"""

import importlib
from typing import Any

__version__ = '0.1.0'

_LAYERS = (
  'strategies',
  'sampling',
  'accounting',
  'noise',
  'queries',
  'aggregators',
  'learning',
)

__all__ = ['__version__', *_LAYERS]


def __getattr__(name: str) -> Any:
  if name in _LAYERS:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)

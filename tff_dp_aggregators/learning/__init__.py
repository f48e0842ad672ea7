"""Private federated training: `train`, and the parts that it is made of.

Modules are loaded on first use.
"""

import importlib
import os
import warnings
from typing import Any

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow', 'tensorflow_federated')

# Hides TensorFlow's informational messages, which would be mixed with the lines of a
# run; warnings and errors are shown. A value that users have set is kept.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
# Ignores a warning of a package that TFF imports. Users' filters take precedence.
warnings.filterwarnings(
  'ignore',
  'pkg_resources is deprecated as an API',
  UserWarning,
  r'google\.rpc',
  append=True,
)

_MODULES = ('models', 'packed', 'runtime')
# The module of each exported name.
_NAMES = {
  'ClientSource': 'sources',
  'ClientTraining': 'options',
  'Clients': 'clients',
  'Evaluation': 'options',
  'MeanMetric': 'runs.evaluation',
  'Result': 'training',
  'RunOptions': 'options',
  'Server': 'options',
  'ServerSchedule': 'optimizers',
  'SimulatedCohort': 'options',
  'build_dp_fed_avg': 'fed_avg',
  'build_dp_fed_prox': 'fed_avg',
  'build_dp_fed_sgd': 'fed_avg',
  'build_ftrl': 'optimizers',
  'load': 'runs.saved_model',
  'train': 'training',
  'weight_names': 'models',
}

__all__ = [*_NAMES, 'packed', 'runtime']


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    return getattr(importlib.import_module(f'{__name__}.{_NAMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)

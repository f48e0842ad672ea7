"""Private federated training: all of it in `train`, and what it is made of.

Loads on first use.
"""

import importlib
import os
import warnings
from typing import Any

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow', 'tensorflow_federated')

# TensorFlow has notices at its start and for each new computation, between the lines of
# a run. Its warnings and errors are shown, and what users have set counts.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
# A package that TFF imports warns its maintainers. Users' filters come before this one.
warnings.filterwarnings(
  'ignore',
  'pkg_resources is deprecated as an API',
  UserWarning,
  r'google\.rpc',
  append=True,
)

_MODULES = ('models', 'packed', 'runtime')
# Names, and the modules that they are of.
_NAMES = {
  'ClientSource': 'sources',
  'ClientTraining': 'options',
  'Clients': 'clients',
  'Evaluation': 'options',
  'MeanMetric': 'metrics',
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

__all__ = [
  'ClientSource',
  'ClientTraining',
  'Clients',
  'Evaluation',
  'MeanMetric',
  'Result',
  'RunOptions',
  'Server',
  'ServerSchedule',
  'SimulatedCohort',
  'build_dp_fed_avg',
  'build_dp_fed_prox',
  'build_dp_fed_sgd',
  'build_ftrl',
  'load',
  'packed',
  'runtime',
  'train',
  'weight_names',
]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    return getattr(importlib.import_module(f'{__name__}.{_NAMES[name]}'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)

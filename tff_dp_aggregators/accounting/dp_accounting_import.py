"""Imports dp-accounting without what it seldom needs of SciPy, so that programs start.

`scipy.signal` and `scipy.stats` take longer to import than all the rest together, and a
mistyped flag is to be answered within a second. So the modules of dp-accounting get
stand-ins, which import them when they are first used. Others see nothing of this.
"""

import importlib
import sys
import types
from typing import Any

_POSTPONED = ('scipy.signal', 'scipy.stats')


class _StandIn(types.ModuleType):
  """A module that is imported when something of it is wanted."""

  def __getattr__(self, name: str) -> Any:
    return getattr(importlib.import_module(self.__name__), name)


def _import() -> None:
  new = [name for name in _POSTPONED if name not in sys.modules]
  stand_ins = {name: _StandIn(name) for name in new}
  sys.modules.update(stand_ins)
  try:
    importlib.import_module('dp_accounting')
  finally:
    for name, stand_in in stand_ins.items():
      if sys.modules.get(name) is stand_in:
        del sys.modules[name]


_import()

"""Imports dp-accounting without what it seldom needs of SciPy, so that programs start.

`scipy.signal` and `scipy.stats` take longer to import than all the rest together. So
the modules of dp-accounting get stand-ins, which import them when they are first used.
"""

import importlib
import pkgutil
import sys
import types
from typing import Any

_POSTPONED = ('scipy.signal', 'scipy.stats')


class _StandIn(types.ModuleType):
  """Stands for what a dotted name names, and finds it when something of it is used."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      # dp-accounting is being imported, and 0.6 keeps `scipy.stats.norm` then.
      return _StandIn(f'{self.__name__}.{name}')
    return getattr(pkgutil.resolve_name(self.__name__), name)


_stand_ins = {name: _StandIn(name) for name in _POSTPONED if name not in sys.modules}
sys.modules.update(_stand_ins)
try:
  importlib.import_module('dp_accounting')
finally:
  for _name, _stand_in in _stand_ins.items():
    if sys.modules.get(_name) is _stand_in:
      del sys.modules[_name]

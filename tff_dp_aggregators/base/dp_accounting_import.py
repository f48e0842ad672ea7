"""Imports dp-accounting without the slow parts of SciPy, so that programs start fast.

`scipy.signal` and `scipy.stats` take longer to import than everything else together,
and dp-accounting seldom needs them. While it is imported, stand-ins take their place;
a stand-in imports the real module when an attribute of it is first used.
"""

import importlib
import pkgutil
import sys
import types
from typing import Any

_POSTPONED = ('scipy.signal', 'scipy.stats')


class _StandIn(types.ModuleType):
  """A lazy module or object: resolves its dotted name when an attribute is used."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      # During its import, dp-accounting 0.6 assigns `scipy.stats.norm` to a name.
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

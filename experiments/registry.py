"""Finds what the modules of a folder offer, so that a new one needs its file alone."""

import importlib
import pkgutil
from typing import Any


def found(package: str, path: list[str], attribute: str, first: str) -> dict[str, Any]:
  """What the modules of a package offer under a name, by its own `name`.

  Args:
    package: Name of the package.
    path: Where its modules are: its `__path__`.
    attribute: What those that offer something call it; others are passed over.
    first: The name of what comes first; the rest is in the order of names.

  Raises:
    ValueError: If two have the same name.
  """
  offered: dict[str, Any] = {}
  for module in pkgutil.iter_modules(path):
    each = getattr(importlib.import_module(f'{package}.{module.name}'), attribute, None)
    if each is None:
      continue
    if each.name in offered:
      raise ValueError(f'{package}.{module.name}: there is a {each.name!r} already.')
    offered[each.name] = each
  names = sorted(offered, key=lambda name: (name != first, name))
  return {name: offered[name] for name in names}

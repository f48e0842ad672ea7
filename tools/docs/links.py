"""A griffe extension for mkdocstrings: names in docstrings become links."""

from typing import Any

import griffe

from tools.docs import api


class Links(griffe.Extension):
  """Rewrites the docstrings of a package once it is loaded."""

  def on_package(
    self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any
  ) -> None:
    """Links names, lists what classes inherit, and marks examples as such."""
    offered = api.Api.of(pkg)
    for obj in offered.found.values():
      if obj.docstring is None:
        continue
      obj.docstring.value = offered.markdown(obj.docstring.value, obj)
      if isinstance(obj, griffe.Class) and offered.shown(obj):
        for base, members in offered.inherited(obj).items():
          names = ', '.join(f'[`{member.name}`][{member.path}]' for member in members)
          name = base.rpartition('.')[2]
          obj.docstring.value += f'\n\nInherited from [`{name}`][{base}]: {names}.'

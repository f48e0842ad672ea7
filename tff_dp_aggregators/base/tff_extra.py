"""Checks that the optional dependencies of `tff-dp-aggregators[tff]` are installed."""

import importlib.util


def require(user: str, *modules: str) -> None:
  """Raises, with the remedy, if a module that `user` needs is missing; imports none."""
  missing = [name for name in modules if importlib.util.find_spec(name) is None]
  if missing:
    raise ModuleNotFoundError(
      f'{user} needs {" and ".join(missing)}: install tff-dp-aggregators[tff], on '
      'Linux on x86-64 with Python 3.9 to 3.11, as docs/install.md says.',
      name=missing[0],
    )

"""What only `pip install tff-dp-aggregators[tff]` brings: TensorFlow and its kin."""

import importlib.util


def require(user: str, *modules: str) -> None:
  """Tells how to get modules that are not installed; imports none of them."""
  missing = [name for name in modules if importlib.util.find_spec(name) is None]
  if missing:
    raise ModuleNotFoundError(
      f'{user} needs {" and ".join(missing)}: install tff-dp-aggregators[tff], on '
      'Linux on x86-64 with Python 3.9 to 3.11, as docs/install.md says.',
      name=missing[0],
    )

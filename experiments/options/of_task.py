"""Flags whose defaults a task says."""

from collections.abc import Mapping
from typing import Any, Callable

from absl import flags


def define(
  values: flags.FlagValues,
  tasks: Mapping[str, Any],
  define_flag: Callable[..., Any],
  name: str,
  text: str,
) -> None:
  """Defines a flag that is `None` unless given, and says what tasks put there.

  Args:
    values: Where to define it.
    tasks: The tasks by name, for defaults.
    define_flag: Such as `flags.DEFINE_float`.
    name: Of the flag, and of the default.
    text: Its help.
  """
  said = f'{text} Default: {in_words(tasks, name)}.'
  define_flag(name, None, said, flag_values=values)


def in_words(tasks: Mapping[str, Any], name: str) -> str:
  """What tasks put where a flag is left out.

  Args:
    tasks: The tasks by name.
    name: Of the flag, and of the default.
  """
  defaults = {key: getattr(task.defaults, name) for key, task in tasks.items()}
  return '; '.join(
    f'{value} for {key}' for key, value in defaults.items() if value is not None
  )

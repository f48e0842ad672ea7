"""Every kind of strategy under its name: how it is made, told apart and spoken of.

`KINDS` has one entry for each. Mechanisms, flags, plans, reports, the schema of their
JSON and simulations follow from it: a kind that is added there (`kinds.table`) is in
all of them, with the options that it brings.
"""

from collections.abc import Mapping
from typing import Optional, Union

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies.kinds.builders import are_done_early
from tff_dp_aggregators.strategies.kinds.builders import free_bands
from tff_dp_aggregators.strategies.kinds.builders import more_bands
from tff_dp_aggregators.strategies.kinds.kind import Kind
from tff_dp_aggregators.strategies.kinds.kind import Option
from tff_dp_aggregators.strategies.kinds.table import KINDS

__all__ = [
  'KINDS',
  'Kind',
  'Option',
  'are_done_early',
  'check_numbers',
  'check_options',
  'check_strategy',
  'describe',
  'free_bands',
  'kind',
  'kind_of',
  'more_bands',
  'options',
  'options_of',
]


def kind(name: str) -> Kind:
  """The kind of a name.

  Raises:
    ValueError: If there is none.
  """
  if name not in KINDS:
    raise ValueError(f'unknown mechanism {name!r}; known: {", ".join(KINDS)}.')
  return KINDS[name]


def kind_of(strategy: Union[strategy_lib.Strategy, str]) -> Optional[Kind]:
  """The kind that a strategy is of, or `None` if that has no name here.

  Args:
    strategy: A strategy, or its `kind` as files and reports have it.

  Example:
    >>> from tff_dp_aggregators.strategies import tree
    >>> kind_of(tree.BinaryTree(8)).name
    'tree'
  """
  saved_as = strategy if isinstance(strategy, str) else strategy.kind
  return next((k for k in KINDS.values() if k.strategy.kind == saved_as), None)


def name_of(strategy: strategy_lib.Strategy) -> str:
  """The name of a strategy's kind, or what files call it if it is of no kind.

  Example:
    >>> from tff_dp_aggregators.strategies import tree
    >>> name_of(tree.BinaryTree(8))
    'tree'
  """
  found = kind_of(strategy)
  return strategy.kind if found is None else found.name


def options_of(strategy: strategy_lib.Strategy) -> dict[str, int]:
  """The numbers that tell strategies of one kind apart, by option.

  Example:
    >>> from tff_dp_aggregators.strategies import tree
    >>> options_of(tree.BinaryTree(8, restart_every=4))
    {'restart_every': 4}
  """
  found = kind_of(strategy)
  read = {} if found is None else {o.name: o.read(strategy) for o in found.options}
  return {name: value for name, value in read.items() if value is not None}


def options() -> dict[str, dict[str, Option]]:
  """All options by name, each by the names of the kinds that have it."""
  names = sorted({each.name for k in KINDS.values() for each in k.options})
  found: dict[str, dict[str, Option]] = {name: {} for name in names}
  for k in KINDS.values():
    for each in k.options:
      found[each.name][k.name] = each
  return found


def describe(texts: Mapping[str, str]) -> str:
  """What is said of an option by several kinds, once for those that say the same.

  Args:
    texts: By name of kind.

  Example:
    >>> describe({'banded': 'bands of C', 'toeplitz': 'bands of C', 'blt': 'buffers'})
    'For banded and toeplitz: bands of C. For blt: buffers.'
  """
  names: dict[str, list[str]] = {}
  for name, text in texts.items():
    names.setdefault(text, []).append(name)
  said = []
  for text, having in names.items():
    *most, last = having
    listed = f'{", ".join(most)} and {last}' if most else last
    said.append(f'For {listed}: {text}.')
  return ' '.join(said)


def check_numbers(given: Mapping[str, Optional[int]]) -> dict[str, int]:
  """The options that are given, in the order of their names.

  Args:
    given: By name; what is `None` is not given.

  Raises:
    TypeError: If there is no such option, or a number is not whole.
    ValueError: If a number is less than 1.
  """
  known = options()
  for name in given:
    if name not in known:
      raise TypeError(f'there is no option {name!r}; known: {", ".join(known)}.')
  values = {name: given[name] for name in known if given.get(name) is not None}
  return {name: checks.check_positive_int(name, each) for name, each in values.items()}


def check_options(name: str, given: Mapping[str, Optional[int]]) -> dict[str, int]:
  """The options that are given to a kind.

  Args:
    name: Of the kind.
    given: As for `check_numbers`.

  Raises:
    TypeError: As for `check_numbers`.
    ValueError: If there is no such kind, it does not have an option that is given, or
      a number is less than 1.
  """
  own = kind(name)
  values = check_numbers(given)
  for option, value in values.items():
    if own.option(option) is None:
      having = ', '.join(options()[option])
      raise ValueError(f'{option}={value} is for {having}, not for {name}.')
  return values


def check_strategy(
  name: str, given: Mapping[str, int], strategy: strategy_lib.Strategy
) -> None:
  """Refuses a strategy that is not what name and options stand for.

  An optimum may have fewer bands or buffers than were allowed.

  Raises:
    ValueError: If it is of another kind, or has more of something than is given.
  """
  if not isinstance(strategy, kind(name).strategy):
    raise ValueError(f'the strategy of {name} is not a {type(strategy).__name__}.')
  for option in kind(name).options:
    asked, has = given.get(option.name), option.read(strategy)
    if asked is not None and (has is None or has > asked):
      raise ValueError(f'{option.name} is {asked}, but the strategy given has {has}.')

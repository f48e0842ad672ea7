"""Registry of the kinds of strategies: how each is built, and its text in reports.

The module of a strategy registers its kind. Mechanisms, flags, plans, reports, their
JSON and simulations are generated from `KINDS`; a new kind needs no change elsewhere.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.participation import Participation

Limits = Participation
Options = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Option:
  """An option of a kind: a positive integer that limits its strategies."""

  # The argument of `accounting.Mechanism`, flag and JSON key; kinds may share one.
  name: str
  help: str  # Meaning and default, to follow text such as 'For banded: '.
  # Returns the value of a strategy; `None` if it has none.
  read: Callable[[Any], Optional[int]]
  words: tuple[str, str]  # Texts of tables: for the value 1, and for '{}' of them.
  title: str  # The name of the value in a report.
  meaning: str  # The explanation of the value in a report.
  written: str = '{}'  # The format of the value in a report.
  is_compared: bool = True  # Whether a comparison of kinds passes it to this kind.
  is_within_rounds: bool = False  # Whether the value is at most the number of rounds.

  def in_words(self, value: int) -> str:
    """Returns the text of tables for a value."""
    singular, plural = self.words
    return (singular if value == 1 else plural).format(value)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of strategy."""

  name: str  # The name of the mechanism with such a strategy.
  strategy: type[strategy_lib.Strategy]  # The class.
  # Returns the strategy with the least RMSE, for limits on participation and options;
  # takes `workload`, too, if `adapts`.
  build: Callable[..., strategy_lib.Strategy]
  words: str  # Description of its noise, for readers of a report.
  citations: tuple[str, ...] = ()  # The papers that describe it.
  options: tuple[Option, ...] = ()
  # About how long `build` takes on one core (benchmarks/planning_seconds.py).
  seconds: Callable[..., float] = lambda limits, **options: 0.0
  quicker_with: Optional[str] = None  # How to shorten `build` if that takes long.
  # The options of each row of a comparison, from limits and the options given.
  variants: Callable[[Limits, Options], Iterable[Options]] = lambda _, given: [given]
  # Why a comparison leaves this kind out, or `None`, from limits and options.
  why_skip: Callable[[Limits, Options], Optional[str]] = lambda limits, options: None
  # The option that bounds the bands of C; with as many groups of clients, cyclic
  # sampling may be used.
  bands: Optional[str] = None
  # Whether the noise of all rounds is independent, so that any sampling may be used.
  is_independent: bool = False
  # Whether the strategy depends on the limits on participation, and on the workload.
  adapts: bool = False
  # Whether, with these options, the sensitivity is that of independent noise, so that
  # the guarantee is known before the strategy is built.
  is_free: Callable[..., bool] = lambda limits, **options: False
  # The kind to use for sampled clients, where only the longest column counts.
  unscaled: Optional[str] = None

  def build_for(
    self, limits: Limits, workload: workload_lib.WorkloadLike, **options: int
  ) -> strategy_lib.Strategy:
    """Returns the strategy with the least RMSE; for prefix sums unless `adapts`."""
    workload = workload_lib.check(limits.num_rounds, workload)
    if not self.adapts or workload_lib.is_prefix_sums(workload):
      return self.build(limits, **options)
    return self.build(limits, workload=workload, **options)

  def option(self, name: str) -> Optional[Option]:
    """Returns the option of this name, or `None`."""
    return next((each for each in self.options if each.name == name), None)

  def compared(self, limits: Limits, given: Mapping[str, int]) -> list[Options]:
    """Returns the options of each row that this kind has in a comparison."""
    strategy_lib.check_rounds(limits.num_rounds)
    names = [each.name for each in self.options if each.is_compared]
    own = {name: given[name] for name in names if name in given}
    return list(self.variants(limits, own))


# All kinds by name, in the order of tables: _LISTED_FIRST, then others as registered.
KINDS: dict[str, Kind] = {}
_LISTED_FIRST = ('gaussian', 'tree', 'banded', 'toeplitz', 'blt', 'banded_inverse')


def register(registered: Kind) -> None:
  """Adds a kind to `KINDS`, for mechanisms, flags, plans and reports."""
  KINDS[registered.name] = registered
  first = [name for name in _LISTED_FIRST if name in KINDS]
  for name in [*first, *(name for name in KINDS if name not in _LISTED_FIRST)]:
    KINDS[name] = KINDS.pop(name)


def optimizing(
  optimize: Callable[..., strategy_lib.Strategy], **defaults: Callable[[Limits], int]
) -> Callable[..., strategy_lib.Strategy]:
  """Returns the `build` of a kind from its optimiser and the defaults of options."""

  def build(
    limits: Limits, workload: workload_lib.WorkloadLike = None, **given: Optional[int]
  ) -> strategy_lib.Strategy:
    options = {name: value for name, value in given.items() if value is not None}
    for name, default in defaults.items():
      options.setdefault(name, default(limits))
    return optimize(
      limits.num_rounds, participation=limits, workload=workload, **options
    )

  return build


def kind(name: str) -> Kind:
  """Returns the kind of this name; raises ValueError if there is none."""
  if name not in KINDS:
    raise ValueError(f'unknown mechanism {name!r}; known: {", ".join(KINDS)}.')
  return KINDS[name]


def kind_of(strategy: Union[strategy_lib.Strategy, str]) -> Optional[Kind]:
  """Returns the kind of a strategy or of its `kind` in files, or `None`."""
  saved_as = strategy if isinstance(strategy, str) else strategy.kind
  return next((k for k in KINDS.values() if k.strategy.kind == saved_as), None)


def name_of(strategy: strategy_lib.Strategy) -> str:
  """The name of a strategy's kind; its `kind` in files if that is not registered."""
  registered = kind_of(strategy)
  return strategy.kind if registered is None else registered.name


def options_of(strategy: strategy_lib.Strategy) -> Options:
  """The values of the options of its kind that a strategy has, by name."""
  own = kind_of(strategy)
  values = {} if own is None else {o.name: o.read(strategy) for o in own.options}
  return {name: value for name, value in values.items() if value is not None}


def options() -> dict[str, dict[str, Option]]:
  """All options by name; for each name, the options by the kinds that have it."""
  names = sorted({each.name for k in KINDS.values() for each in k.options})
  result: dict[str, dict[str, Option]] = {name: {} for name in names}
  for k in KINDS.values():
    for each in k.options:
      result[each.name][k.name] = each
  return result


def describe(texts: Mapping[str, str]) -> str:
  """Joins the texts of several kinds; kinds with the same text share a sentence."""
  kinds_by_text: dict[str, list[str]] = {}
  for name, text in texts.items():
    kinds_by_text.setdefault(text, []).append(name)
  sentences = []
  for text, kinds in kinds_by_text.items():
    *others, last = kinds
    listed = f'{", ".join(others)} and {last}' if others else last
    sentences.append(f'For {listed}: {text}.')
  return ' '.join(sentences)


def check_numbers(
  given: Mapping[str, Optional[int]], others: Iterable[str] = ()
) -> Options:
  """Returns the options, of kinds and `others`, that are not `None`, if valid."""
  known = (*options(), *others)
  for name in given:
    if name not in known:
      raise TypeError(f'there is no option {name!r}; known: {", ".join(known)}.')
  values = {name: given[name] for name in known if given.get(name) is not None}
  return {name: checks.check_positive_int(name, each) for name, each in values.items()}


def check_options(name: str, given: Mapping[str, Optional[int]]) -> Options:
  """Returns the options that are not `None`; raises ValueError if a kind lacks one."""
  own = kind(name)
  values = check_numbers(given)
  for option, value in values.items():
    if own.option(option) is None:
      kinds = ', '.join(options()[option])
      raise ValueError(f'{option}={value} is for {kinds}, not for {name}.')
  return values


def check_strategy(
  name: str, given: Mapping[str, int], strategy: strategy_lib.Strategy
) -> None:
  """Raises ValueError if a strategy is of another kind or exceeds a given option."""
  if not isinstance(strategy, kind(name).strategy):
    raise ValueError(f'the strategy of {name} is not a {type(strategy).__name__}.')
  for option in kind(name).options:
    limit, value = given.get(option.name), option.read(strategy)
    if limit is not None and (value is None or value > limit):
      raise ValueError(f'{option.name} is {limit}, but the strategy given has {value}.')


_MAX_OVERLAPPING_BANDS = 512  # For toeplitz, in comparisons: takes some seconds.


def more_bands(limits: Limits) -> Optional[int]:
  """Number of bands for which columns of one client overlap, but the error may fall.

  They raise the sensitivity, and lower the error of Toeplitz strategies by 10%, 5%, 2%
  and 0.3% if the product of `max_participations` (2 to 10) and `min_separation` is 0.2,
  0.3, 0.4 and 0.5 of the rounds. The number is twice that product, at most 512 or twice
  the separation, whichever is more. `None` where more bands do not help.
  """
  if not are_done_early(limits):
    return None
  span = limits.possible_participations * limits.min_separation
  max_bands = max(_MAX_OVERLAPPING_BANDS, 2 * limits.min_separation)
  bands = min(2 * span, limits.num_rounds, max_bands, participation_lib.MAX_BANDS)
  return bands if bands > participation_lib.free_bands(limits) else None


def are_done_early(limits: Limits) -> bool:
  """Whether clients take part repeatedly, all within less than 0.6 of the rounds.

  Then it is better to lower the noise of later rounds than to shorten their columns.
  """
  span = limits.possible_participations * limits.min_separation
  return limits.possible_participations > 1 and 5 * span < 3 * limits.num_rounds

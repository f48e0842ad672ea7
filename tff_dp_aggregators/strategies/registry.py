"""Every kind of strategy under its name: how it is made, told apart and spoken of.

The module of a strategy registers its kind. Mechanisms, flags, plans, reports, their
JSON and simulations follow from `KINDS`: nothing else needs to know of a new kind.
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
  """A whole number, at least 1, that limits the strategy of a kind."""

  # As an argument of `accounting.Mechanism`, a flag, and a key of JSON, which kinds may
  # share.
  name: str
  help: str  # What it is and its default, to stand after 'For banded: '.
  # The number that a strategy has; `None` for none.
  read: Callable[[Any], Optional[int]]
  words: tuple[str, str]  # That number in a table, if it is 1, and if it is '{}'.
  title: str  # What that number is called in a report,
  meaning: str  # and what it means there.
  written: str = '{}'  # How it is written there, with '{}' for it.
  is_compared: bool = True  # Whether a comparison of kinds passes it on to this one.
  is_within_rounds: bool = False  # Whether there can be no more than there are rounds.

  def in_words(self, value: int) -> str:
    """A number of this option, as a table has it."""
    one, several = self.words
    return (one if value == 1 else several).format(value)


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of strategy."""

  name: str  # The name of the mechanism with such a strategy.
  strategy: type[strategy_lib.Strategy]  # The class.
  # The strategy with the least RMSE, from limits on participation and options; and from
  # `workload` if it `adapts`.
  build: Callable[..., strategy_lib.Strategy]
  words: str  # What its noise is like, for readers of a report.
  citations: tuple[str, ...] = ()  # Papers that it is from.
  options: tuple[Option, ...] = ()  # What it can be told.
  # About how long `build` takes on one core (benchmarks/planning_seconds.py).
  seconds: Callable[..., float] = lambda limits, **options: 0.0
  quicker_with: Optional[str] = None  # What else than waiting helps, if that is long.
  # Options of each row of a comparison, from limits and what was asked for.
  variants: Callable[[Limits, Options], Iterable[Options]] = lambda _, given: [given]
  # Why a comparison does without it, if it should, from limits and options.
  why_skip: Callable[[Limits, Options], Optional[str]] = lambda limits, options: None
  # The option that bounds the bands of C; with as many groups of clients, cyclic
  # sampling may be used.
  bands: Optional[str] = None
  # Whether no rounds share noise, so that any sampling may be used.
  is_independent: bool = False
  # Whether the strategy depends on the limits on participation, and on the workload.
  adapts: bool = False
  # Whether, with these options, one client changes C X by just as much as if noise were
  # independent, so that a guarantee is known before it is built.
  is_free: Callable[..., bool] = lambda limits, **options: False
  # The kind for clients that are sampled, where of all columns the longest counts.
  unscaled: Optional[str] = None

  def build_for(
    self, limits: Limits, workload: workload_lib.WorkloadLike, **options: int
  ) -> strategy_lib.Strategy:
    """The strategy with the least RMSE of a workload, so far as its kind adapts."""
    workload = workload_lib.check(limits.num_rounds, workload)
    if not self.adapts or workload_lib.is_prefix_sums(workload):
      return self.build(limits, **options)
    return self.build(limits, workload=workload, **options)

  def option(self, name: str) -> Optional[Option]:
    """Its option of this name, if it has one."""
    return next((each for each in self.options if each.name == name), None)

  def compared(self, limits: Limits, given: Mapping[str, int]) -> list[Options]:
    """Options of each row of a comparison."""
    strategy_lib.check_rounds(limits.num_rounds)
    names = [each.name for each in self.options if each.is_compared]
    own = {name: given[name] for name in names if name in given}
    return list(self.variants(limits, own))


# All kinds by name, in the order in which tables list them: these, then as registered.
KINDS: dict[str, Kind] = {}
_FIRST = ('gaussian', 'tree', 'banded', 'toeplitz', 'blt', 'banded_inverse')


def register(registered: Kind) -> None:
  """Makes a kind known: mechanisms, flags, plans and reports have it from now on."""
  KINDS[registered.name] = registered
  first = [name for name in _FIRST if name in KINDS]
  for name in [*first, *(name for name in KINDS if name not in _FIRST)]:
    KINDS[name] = KINDS.pop(name)


def optimizing(
  optimize: Callable[..., strategy_lib.Strategy], **defaults: Callable[[Limits], int]
) -> Callable[..., strategy_lib.Strategy]:
  """Makes the `build` of a kind from its optimiser, and options that are not given."""

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
  """The kind of a name; raises ValueError if there is none."""
  if name not in KINDS:
    raise ValueError(f'unknown mechanism {name!r}; known: {", ".join(KINDS)}.')
  return KINDS[name]


def kind_of(strategy: Union[strategy_lib.Strategy, str]) -> Optional[Kind]:
  """The kind of a strategy, or of its `kind` in files; `None` if it has no name."""
  saved_as = strategy if isinstance(strategy, str) else strategy.kind
  return next((k for k in KINDS.values() if k.strategy.kind == saved_as), None)


def name_of(strategy: strategy_lib.Strategy) -> str:
  """The name of a strategy's kind, or what files call it if it is of no kind."""
  found = kind_of(strategy)
  return strategy.kind if found is None else found.name


def options_of(strategy: strategy_lib.Strategy) -> Options:
  """The numbers that tell strategies of one kind apart, by option."""
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
  """What is said of an option by several kinds, once for those that say the same."""
  names: dict[str, list[str]] = {}
  for name, text in texts.items():
    names.setdefault(text, []).append(name)
  said = []
  for text, having in names.items():
    *most, last = having
    listed = f'{", ".join(most)} and {last}' if most else last
    said.append(f'For {listed}: {text}.')
  return ' '.join(said)


def check_numbers(given: Mapping[str, Optional[int]]) -> Options:
  """The options that are not `None`, by name; TypeError or ValueError for bad ones."""
  known = options()
  for name in given:
    if name not in known:
      raise TypeError(f'there is no option {name!r}; known: {", ".join(known)}.')
  values = {name: given[name] for name in known if given.get(name) is not None}
  return {name: checks.check_positive_int(name, each) for name, each in values.items()}


def check_options(name: str, given: Mapping[str, Optional[int]]) -> Options:
  """The options that are given to the kind of a name, which must have them."""
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
  """Refuses a strategy of another kind, or with more of something than is given."""
  if not isinstance(strategy, kind(name).strategy):
    raise ValueError(f'the strategy of {name} is not a {type(strategy).__name__}.')
  for option in kind(name).options:
    asked, has = given.get(option.name), option.read(strategy)
    if asked is not None and (has is None or has > asked):
      raise ValueError(f'{option.name} is {asked}, but the strategy given has {has}.')


_MORE_BANDS = 512  # For toeplitz, in comparisons: they take some seconds.


def more_bands(limits: Limits) -> Optional[int]:
  """How many bands to try that cost sensitivity, as columns of one client overlap.

  They lower the error of Toeplitz strategies by 10%, 5%, 2% and 0.3% if the product of
  `max_participations` (2 to 10) and `min_separation` is 0.2, 0.3, 0.4 and 0.5 of the
  rounds. This is twice that product, up to 512 or, if these are not more, twice the
  separation. `None` where more bands are of no use.
  """
  if not are_done_early(limits):
    return None
  done = limits.possible_participations * limits.min_separation
  most = max(_MORE_BANDS, 2 * limits.min_separation)
  bands = min(2 * done, limits.num_rounds, most, participation_lib.MAX_BANDS)
  return bands if bands > participation_lib.free_bands(limits) else None


def are_done_early(limits: Limits) -> bool:
  """Whether clients who come back have all their rounds in less than 0.6 of all.

  Then it pays to lower the noise after that, and not to have shorter columns later.
  """
  done = limits.possible_participations * limits.min_separation
  return limits.possible_participations > 1 and 5 * done < 3 * limits.num_rounds

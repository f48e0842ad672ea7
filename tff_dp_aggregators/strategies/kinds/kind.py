"""What a kind of strategy is, and an option of it."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib

_Limits = participation_lib.Participation


@dataclasses.dataclass(frozen=True)
class Option:
  """A whole number, at least 1, that limits the strategy of a kind.

  Attributes:
    name: As an argument of `accounting.Mechanism`, a flag, and a key of JSON. Kinds may
      share it: it is one flag then, with the help of each.
    help: What it is and its default, to stand after 'For banded: '.
    read: The number that a strategy has; `None` for none.
    words: That number in a table, if it is 1, and if it is '{}'.
    title: That number in a report: what it is called,
    written: how it is written, with '{}' for it,
    meaning: and what it means.
    is_compared: Whether a comparison of kinds passes it on to this one.
    is_within_rounds: Whether there can be no more than there are rounds.
  """

  name: str
  help: str
  read: Callable[[Any], Optional[int]]
  words: tuple[str, str]
  title: str
  meaning: str
  written: str = '{}'
  is_compared: bool = True
  is_within_rounds: bool = False

  def in_words(self, value: int) -> str:
    """A number of this option, as a table has it."""
    one, several = self.words
    return (one if value == 1 else several).format(value)


def _as_given(limits: _Limits, given: dict[str, int]) -> Iterable[dict[str, int]]:
  return [given]


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of strategy.

  Attributes:
    name: Of the mechanism with such a strategy.
    strategy: The class.
    build: The strategy with the least RMSE, from limits on participation and options;
      and from `workload` if it `adapts`.
    words: What its noise is like, for readers of a report who never saw this package.
    citations: Papers that it is from.
    options: What it can be told.
    seconds: About how long `build` takes on one core, from the same arguments.
    quicker_with: What else than waiting helps, if that is long.
    variants: Options of each row of a comparison, from limits and what was asked for.
    needless: Why a comparison does without it, if it should, from limits and options.
    bands: The option that bounds the bands of C. With as many groups of clients as
      bands, the rounds of one client share no noise, and cyclic sampling may be used.
    is_independent: Whether no rounds share noise, so that any sampling may be used.
    adapts: Whether the strategy depends on the limits on participation, and on the
      workload. A log of what happened does not tell which one ran.
    is_free: Whether, with these options, one client changes C X by just as much as if
      noise were independent, so that a guarantee is known before it is built.
    unscaled: The kind to be taken instead where clients are sampled, if this one's
      columns are of different lengths: the longest of them counts there.
  """

  name: str
  strategy: type[strategy_lib.Strategy]
  build: Callable[..., strategy_lib.Strategy]
  words: str
  citations: tuple[str, ...] = ()
  options: tuple[Option, ...] = ()
  seconds: Callable[..., float] = lambda limits, **options: 0.0
  quicker_with: Optional[str] = None
  variants: Callable[[_Limits, dict[str, int]], Iterable[dict[str, int]]] = _as_given
  needless: Callable[[_Limits, dict[str, int]], Optional[str]] = (
    lambda limits, options: None
  )
  bands: Optional[str] = None
  is_independent: bool = False
  adapts: bool = False
  is_free: Callable[..., bool] = lambda limits, **options: False
  unscaled: Optional[str] = None

  def build_for(
    self, limits: _Limits, workload: workload_lib.WorkloadLike, **options: int
  ) -> strategy_lib.Strategy:
    """The strategy with the least RMSE of a workload; of its kind, so far as it adapts.

    `workload`: `None` for prefix sums.
    """
    workload = workload_lib.check(limits.num_rounds, workload)
    if not self.adapts or workload_lib.is_prefix_sums(workload):
      return self.build(limits, **options)
    return self.build(limits, workload=workload, **options)

  def option(self, name: str) -> Optional[Option]:
    """Its option of this name, if it has one."""
    return next((each for each in self.options if each.name == name), None)

  def compared(self, limits: _Limits, given: Mapping[str, int]) -> list[dict[str, int]]:
    """Options of each row of a comparison."""
    size.check_rounds(limits.num_rounds)
    names = [each.name for each in self.options if each.is_compared]
    own = {name: given[name] for name in names if name in given}
    return list(self.variants(limits, own))

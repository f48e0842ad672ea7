"""Every kind of strategy under its name: how it is made, told apart and spoken of.

`KINDS` has one entry for each. Mechanisms, flags, plans, reports, the schema of their
JSON and simulations follow from it: a kind that is added here is in all of them, with
the options that it brings.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import tree
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.epoch_scaled import banded as epoch_banded
from tff_dp_aggregators.strategies.epoch_scaled import banded_inverse as epoch_inverse
from tff_dp_aggregators.strategies.epoch_scaled import toeplitz as epoch_toeplitz
from tff_dp_aggregators.strategies.epoch_scaled import windowed_blt as epoch_windowed
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import toeplitz_problem

_Limits = participation_lib.Participation
_INVERSE_BANDS = 16  # Of banded_inverse, where nothing is asked for.
_MORE_BANDS = 512  # Of toeplitz, in comparisons: they take some seconds.


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
    adapts: Whether the strategy with the least error depends on the workload.
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

  def build_for(
    self, limits: _Limits, workload: workload_lib.WorkloadLike, **options: int
  ) -> strategy_lib.Strategy:
    """The strategy with the least RMSE of a workload; of its kind, so far as it adapts.

    Args:
      limits: Who may take part when.
      workload: `None` for prefix sums.
      **options: As for `build`.

    Raises:
      ValueError: If an argument is out of range, the workload for other rounds, or of
        a form for which this kind is not optimised.
    """
    workload = workload_lib.check(limits.num_rounds, workload)
    if not self.adapts or workload_lib.is_prefix_sums(workload):
      return self.build(limits, **options)
    return self.build(limits, workload=workload, **options)

  def option(self, name: str) -> Optional[Option]:
    """Its option of this name, if it has one."""
    return next((each for each in self.options if each.name == name), None)

  def compared(self, limits: _Limits, given: Mapping[str, int]) -> list[dict[str, int]]:
    """Options of each row of a comparison.

    Args:
      limits: Who may take part when.
      given: What was asked for, of this kind or others.

    Raises:
      ValueError: If there are more rounds than fit into memory.
    """
    size.check_rounds(limits.num_rounds)
    names = [each.name for each in self.options if each.is_compared]
    own = {name: given[name] for name in names if name in given}
    return list(self.variants(limits, own))


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
    >>> kind_of(tree.BinaryTree(8)).name
    'tree'
  """
  saved_as = strategy if isinstance(strategy, str) else strategy.kind
  return next((k for k in KINDS.values() if k.strategy.kind == saved_as), None)


def options_of(strategy: strategy_lib.Strategy) -> dict[str, int]:
  """The numbers that tell strategies of one kind apart, by option.

  Example:
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


def free_bands(limits: _Limits) -> int:
  """How many bands cost no sensitivity, as columns of one client share no row.

  A single participation is hidden by any number; 4096 are the most that are optimised.

  Example:
    >>> free_bands(participation_lib.Participation(64, min_separation=8))
    8
  """
  bands = limits.num_rounds
  if limits.possible_participations > 1:
    bands = min(bands, limits.min_separation)
  return min(bands, toeplitz_problem.MAX_BANDS)


def more_bands(limits: _Limits) -> Optional[int]:
  """How many bands to try that cost sensitivity, as columns of one client overlap.

  They lower the error of Toeplitz strategies where clients are done early: in trials
  with 2 to 10 participations, by 10%, 5%, 2% and 0.3% if `max_participations *
  min_separation` is 0.2, 0.3, 0.4 and 0.5 of the rounds, and by less than 0.1% from
  0.6 on. The more bands the better; this is twice that product, up to 512 or, if these
  are not more, twice the separation.

  Returns:
    The number; `None` where more bands than `free_bands` are of no use.

  Example:
    >>> more_bands(participation_lib.Participation(2000, 50, 4))
    400
    >>> more_bands(participation_lib.Participation(2000, 50)) is None
    True
  """
  done = limits.possible_participations * limits.min_separation
  if limits.possible_participations == 1 or 5 * done >= 3 * limits.num_rounds:
    return None
  most = max(_MORE_BANDS, 2 * limits.min_separation)
  bands = min(2 * done, limits.num_rounds, most, toeplitz_problem.MAX_BANDS)
  return bands if bands > free_bands(limits) else None


def _gaussian(limits: _Limits) -> strategy_lib.Strategy:
  return toeplitz.Identity(limits.num_rounds)


def _tree(
  limits: _Limits, restart_every: Optional[int] = None
) -> strategy_lib.Strategy:
  size.check_rounds(limits.num_rounds)  # Sensitivities alone have no need of it.
  return tree.BinaryTree(limits.num_rounds, restart_every=restart_every)


def _trees(limits: _Limits, given: dict[str, int]) -> Iterable[dict[str, int]]:
  """Without restarts, and with those asked for or the best, if they help."""
  restart_every = given.get('restart_every') or tree.best_restart(limits)
  return [{}] if restart_every is None else [{}, {'restart_every': restart_every}]


def _banded(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  if num_bands is None:
    num_bands = free_bands(limits)
  return banded.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def _banded_seconds(limits: _Limits, num_bands: Optional[int] = None) -> float:
  """Steps, of which the mean error takes up to about 150."""
  if num_bands is None:
    num_bands = free_bands(limits)
  step = 6e-6 + 0.11e-6 * num_bands + 0.0007e-6 * num_bands**2
  return 150 * step * limits.num_rounds


def _toeplitz(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  if num_bands is None:
    num_bands = free_bands(limits)
  return toeplitz.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def _toeplitz_seconds(limits: _Limits, num_bands: Optional[int] = None) -> float:
  """Bands that cost sensitivity are constrained, which takes many steps."""
  if num_bands is None or num_bands <= free_bands(limits):
    return 0.0
  return 8e-9 * num_bands**3 + 8e-7 * num_bands * limits.num_rounds


def _free_bands_and_more(
  limits: _Limits, given: dict[str, int]
) -> Iterable[dict[str, int]]:
  """As many bands as cost no sensitivity, and more if they may help."""
  free = list(_free_bands_unless_given(limits, given))
  more = None if given else more_bands(limits)
  return free if more is None else [*free, {'num_bands': more}]


def _free_bands_unless_given(
  limits: _Limits, given: dict[str, int]
) -> Iterable[dict[str, int]]:
  return [{'num_bands': free_bands(limits), **given}]


def _needless_bands(limits: _Limits, given: dict[str, int]) -> Optional[str]:
  if given.get('num_bands', free_bands(limits)) > 1:
    return None
  return 'with one band, the most that costs nothing, it is the gaussian mechanism.'


def _blt(
  limits: _Limits,
  num_buffers: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  return blt.optimize(
    limits.num_rounds, num_buffers=num_buffers, participation=limits, workload=workload
  )


def _banded_inverse(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  if num_bands is None:
    num_bands = min(_INVERSE_BANDS, limits.num_rounds)
  return banded_inverse.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def _banded_inverse_seconds(limits: _Limits, num_bands: int = _INVERSE_BANDS) -> float:
  """It looks for the best constraints if clients come back within its bands."""
  often = limits.possible_participations > 1 and limits.min_separation < num_bands
  return 1e-3 * limits.num_rounds if often else 0.0


def _windowed_blt(
  limits: _Limits,
  num_decays: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  if limits.possible_participations > 1:
    return windowed_blt.optimize(
      limits.num_rounds, num_decays=num_decays, participation=limits, workload=workload
    )
  # Nobody comes back, so nothing is to be cut off: the window is all rounds.
  uncut = blt.optimize(
    limits.num_rounds, num_buffers=num_decays, participation=limits, workload=workload
  )
  return windowed_blt.WindowedBLT(
    limits.num_rounds, limits.num_rounds, uncut.output_scales, uncut.buffer_decays
  )


def _windowed_blt_seconds(limits: _Limits, num_decays: Optional[int] = None) -> float:
  return 0.3 + 8e-5 * limits.num_rounds


def _by_epochs(
  unscaled: Callable[..., strategy_lib.Strategy],
  scaled: Callable[..., strategy_lib.Strategy],
  never_scaled: Callable[[Any], strategy_lib.Strategy],
  defaults: Callable[[_Limits], dict[str, int]] = lambda limits: {},
) -> Callable[..., strategy_lib.Strategy]:
  """Builds a variant with scales of epochs; without any where nobody comes back.

  Args:
    unscaled: Builds the kind that it is a variant of.
    scaled: Optimises the variant; `defaults` are options that have to be given.
    never_scaled: Makes one of what `unscaled` builds.
    defaults: Of limits.
  """

  def build(
    limits: _Limits, workload: workload_lib.WorkloadLike = None, **given: int
  ) -> strategy_lib.Strategy:
    if limits.possible_participations == 1:
      return never_scaled(unscaled(limits, workload=workload, **given))
    options = {**defaults(limits), **given}
    return scaled(limits.num_rounds, participation=limits, workload=workload, **options)

  return build


def _epoch_seconds(limits: _Limits, **options: int) -> float:
  """Steps with a few transforms of all rounds for each scale."""
  scales = min(limits.possible_participations, epoch_problem.MAX_SCALES)
  return 0.5 + 2e-4 * limits.num_rounds + 2e-5 * scales * limits.num_rounds


def _needless_epochs(
  unscaled: Callable[[_Limits, dict[str, int]], Optional[str]],
) -> Callable[[_Limits, dict[str, int]], Optional[str]]:
  """Why a comparison does without a variant, if it does without its kind or scales."""

  def needless(limits: _Limits, given: dict[str, int]) -> Optional[str]:
    if limits.possible_participations == 1:
      return 'a client takes part only once, so that no epoch has a scale of its own.'
    return unscaled(limits, given)

  return needless


def _needless_window(limits: _Limits, given: dict[str, int]) -> Optional[str]:
  if limits.possible_participations == 1:
    return 'a client takes part only once, so that nothing is cut off: it is blt.'
  if limits.min_separation == 1:
    return 'with min_separation=1 the window is a round: it is the gaussian mechanism.'
  return None


_BANDS = Option(
  'num_bands',
  help='bands of the matrix, by default as many as cost no sensitivity: the separation',
  read=lambda strategy: strategy.num_bands,
  words=('1 band', '{} bands'),
  title='bands of C',
  meaning='diagonals that are not 0',
  is_within_rounds=True,
)

_INVERSE = Option(
  'num_bands',
  help=f'bands of the inverse of the matrix, by default {_INVERSE_BANDS}',
  read=lambda strategy: strategy.num_inverse_bands,
  words=('1 band', '{} bands'),
  title='bands of the inverse of C',
  meaning='diagonals that are not 0',
  # What is asked of all is bands of C; those of the inverse are another thing.
  is_compared=False,
  is_within_rounds=True,
)

_DECAYS = Option(
  'num_decays',
  help='the most exponential decays, by default as many as are worth it',
  read=lambda strategy: len(strategy.buffer_decays),
  words=('1 decay', '{} decays'),
  title='decays',
  meaning='exponential decays that C adds, and cuts off after a window',
)

_SHORTER = ', whose columns get shorter from epoch to epoch'

# All kinds by name. Seconds are measured by benchmarks/planning_seconds.py, for 100 to
# 20000 rounds; where none are said, they hardly count (toeplitz with 4096 bands that
# cost no sensitivity, the most there can be: 9).
KINDS: dict[str, Kind] = {
  each.name: each
  for each in (
    Kind(
      'gaussian',
      toeplitz.Identity,
      _gaussian,
      words='independent Gaussian noise in each round, as in DP-FedAvg',
      citations=('arXiv:1710.06963',),
      is_independent=True,
    ),
    Kind(
      'tree',
      tree.BinaryTree,
      _tree,
      words='noise of a binary tree over the rounds, as in DP-FTRL',
      citations=('arXiv:2103.00039',),
      options=(
        Option(
          'restart_every',
          help='rounds after which the tree begins anew, by default never; a plan has '
          'one tree without, and one with the best restarts unless they are given',
          read=lambda strategy: strategy.restart_every,
          words=('a new one each round', 'a new one every {}'),
          title='restarts',
          written='every {} rounds',
          meaning='the tree begins anew',
        ),
      ),
      variants=_trees,
    ),
    Kind(
      'banded',
      banded.Banded,
      _banded,
      adapts=True,
      words='noise correlated over rounds by a banded matrix',
      citations=('arXiv:2306.08153',),
      options=(_BANDS,),
      seconds=_banded_seconds,
      quicker_with='fewer bands',
      variants=_free_bands_unless_given,
      needless=_needless_bands,
      bands='num_bands',
    ),
    Kind(
      'toeplitz',
      toeplitz.BandedToeplitz,
      _toeplitz,
      adapts=True,
      words='noise correlated over rounds by a banded Toeplitz matrix',
      citations=('arXiv:2405.15913',),
      options=(_BANDS,),
      seconds=_toeplitz_seconds,
      quicker_with='fewer bands',
      variants=_free_bands_and_more,
      needless=_needless_bands,
      bands='num_bands',
    ),
    Kind(
      'blt',
      blt.BLT,
      _blt,
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix',
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(
        Option(
          'num_buffers',
          help='the most buffers, by default as many as are worth it',
          read=lambda strategy: strategy.num_buffers,
          words=('1 buffer', '{} buffers'),
          title='buffers',
          meaning='exponential decays that C adds',
        ),
      ),
    ),
    Kind(
      'banded_inverse',
      banded_inverse.BandedInverse,
      _banded_inverse,
      adapts=True,
      words='noise correlated over rounds by a matrix whose inverse is banded',
      citations=('arXiv:2405.13763', 'arXiv:2505.12128'),
      options=(_INVERSE,),
      seconds=_banded_inverse_seconds,
    ),
    Kind(
      'windowed_blt',
      windowed_blt.WindowedBLT,
      _windowed_blt,
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix that is '
      'cut off where a client may come back',
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(_DECAYS,),
      seconds=_windowed_blt_seconds,
      needless=_needless_window,
    ),
    Kind(
      'epoch_banded',
      banded.Banded,
      _by_epochs(
        _banded,
        epoch_banded.optimize,
        lambda strategy: strategy,
        lambda limits: {'num_bands': free_bands(limits)},
      ),
      adapts=True,
      words='noise correlated over rounds by a banded matrix' + _SHORTER,
      citations=('arXiv:2306.08153',),
      options=(_BANDS,),
      # The best unit columns first, and about as many steps from there.
      seconds=lambda limits, **given: 1.5 * _banded_seconds(limits, **given),
      quicker_with='fewer bands',
      variants=_free_bands_unless_given,
      needless=_needless_epochs(_needless_bands),
    ),
    Kind(
      'epoch_toeplitz',
      epoch_toeplitz.EpochToeplitz,
      _by_epochs(
        _toeplitz,
        epoch_toeplitz.optimize,
        epoch_toeplitz.EpochToeplitz.of,
        lambda limits: {'num_bands': free_bands(limits)},
      ),
      adapts=True,
      words='noise correlated over rounds by a banded Toeplitz matrix' + _SHORTER,
      citations=('arXiv:2405.15913',),
      options=(_BANDS,),
      seconds=_epoch_seconds,
      variants=_free_bands_unless_given,
      needless=_needless_epochs(_needless_bands),
    ),
    Kind(
      'epoch_banded_inverse',
      epoch_inverse.EpochBandedInverse,
      _by_epochs(
        _banded_inverse,
        epoch_inverse.optimize,
        epoch_inverse.EpochBandedInverse.of,
        lambda limits: {'num_bands': min(_INVERSE_BANDS, limits.num_rounds)},
      ),
      adapts=True,
      words='noise correlated over rounds by a matrix whose inverse is banded'
      + _SHORTER,
      citations=('arXiv:2405.13763', 'arXiv:2505.12128'),
      options=(_INVERSE,),
      seconds=lambda limits, **given: 2.5 * _epoch_seconds(limits),
      needless=_needless_epochs(lambda limits, given: None),
    ),
    Kind(
      'epoch_windowed_blt',
      epoch_windowed.EpochWindowedBLT,
      _by_epochs(
        _windowed_blt, epoch_windowed.optimize, epoch_windowed.EpochWindowedBLT.of
      ),
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix that is '
      'cut off where a client may come back' + _SHORTER,
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(_DECAYS,),
      seconds=_epoch_seconds,
      needless=_needless_epochs(_needless_window),
    ),
  )
}

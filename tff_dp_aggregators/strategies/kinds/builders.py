"""How the strategies of kinds are made, for whom, and in what time."""

from collections.abc import Iterable
from typing import Any, Callable, Optional

from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import tailed_blt
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import tree
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import toeplitz_problem

_Limits = participation_lib.Participation
INVERSE_BANDS = 16  # Of banded_inverse, where nothing is asked for.
_MORE_BANDS = 512  # Of toeplitz, in comparisons: they take some seconds.


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


def is_free(limits: _Limits, num_bands: Optional[int] = None) -> bool:
  """Whether columns of norm 1 with so many bands never overlap for one client."""
  return num_bands is None or num_bands <= free_bands(limits)


def more_bands(limits: _Limits) -> Optional[int]:
  """How many bands to try that cost sensitivity, as columns of one client overlap.

  They lower the error of Toeplitz strategies where clients are done early: in trials
  with 2 to 10 participations, by 10%, 5%, 2% and 0.3% if `max_participations *
  min_separation` is 0.2, 0.3, 0.4 and 0.5 of the rounds, and by less than 0.1% from
  0.6 on. The more bands the better; this is twice that product, up to 512 or, if these
  are not more, twice the separation.

  Returns the number; `None` where more bands than `free_bands` are of no use.

  Example:
    >>> more_bands(participation_lib.Participation(2000, 50, 4))
    400
    >>> more_bands(participation_lib.Participation(2000, 50)) is None
    True
  """
  if not are_done_early(limits):
    return None
  done = limits.possible_participations * limits.min_separation
  most = max(_MORE_BANDS, 2 * limits.min_separation)
  bands = min(2 * done, limits.num_rounds, most, toeplitz_problem.MAX_BANDS)
  return bands if bands > free_bands(limits) else None


def are_done_early(limits: _Limits) -> bool:
  """Whether clients who come back have all their rounds in less than 0.6 of all.

  Then it pays to lower the noise of the rounds after that, at the cost of sensitivity
  (`more_bands`, `tailed_blt`); and not to have shorter columns later (`epoch_scaled`).
  """
  done = limits.possible_participations * limits.min_separation
  return limits.possible_participations > 1 and 5 * done < 3 * limits.num_rounds


def build_gaussian(limits: _Limits) -> strategy_lib.Strategy:
  """Independent noise."""
  return toeplitz.Identity(limits.num_rounds)


def build_tree(
  limits: _Limits, restart_every: Optional[int] = None
) -> strategy_lib.Strategy:
  """A tree, fresh after so many rounds."""
  size.check_rounds(limits.num_rounds)  # Sensitivities alone have no need of it.
  return tree.BinaryTree(limits.num_rounds, restart_every=restart_every)


def tree_variants(limits: _Limits, given: dict[str, int]) -> Iterable[dict[str, int]]:
  """Without restarts, and with those asked for or the best, if they help."""
  restart_every = given.get('restart_every') or tree.best_restart(limits)
  return [{}] if restart_every is None else [{}, {'restart_every': restart_every}]


def build_banded(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best banded strategy, with `free_bands` unless told."""
  if num_bands is None:
    num_bands = free_bands(limits)
  return banded.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def banded_seconds(limits: _Limits, num_bands: Optional[int] = None) -> float:
  """Steps, of which the mean error takes up to about 150."""
  if num_bands is None:
    num_bands = free_bands(limits)
  step = 6e-6 + 0.11e-6 * num_bands + 0.0007e-6 * num_bands**2
  return 150 * step * limits.num_rounds


def build_toeplitz(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best banded Toeplitz strategy, with `free_bands` unless told."""
  if num_bands is None:
    num_bands = free_bands(limits)
  return toeplitz.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def toeplitz_seconds(limits: _Limits, num_bands: Optional[int] = None) -> float:
  """Bands that cost sensitivity are constrained, which takes many steps."""
  if num_bands is None or is_free(limits, num_bands):
    return 2e-5 * limits.num_rounds
  return 8e-9 * num_bands**3 + 8e-7 * num_bands * limits.num_rounds


def free_bands_and_more(
  limits: _Limits, given: dict[str, int]
) -> Iterable[dict[str, int]]:
  """As many bands as cost no sensitivity, and more if they may help."""
  free = list(free_bands_unless_given(limits, given))
  more = None if given else more_bands(limits)
  return free if more is None else [*free, {'num_bands': more}]


def free_bands_unless_given(
  limits: _Limits, given: dict[str, int]
) -> Iterable[dict[str, int]]:
  """Options of the row of a comparison."""
  return [{'num_bands': free_bands(limits), **given}]


def needless_bands(limits: _Limits, given: dict[str, int]) -> Optional[str]:
  """Why a comparison does without a banded strategy, if it should."""
  if given.get('num_bands', free_bands(limits)) > 1:
    return None
  return 'with one band, the most that costs nothing, it is the gaussian mechanism.'


def build_blt(
  limits: _Limits,
  num_buffers: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best BLT."""
  return blt.optimize(
    limits.num_rounds, num_buffers=num_buffers, participation=limits, workload=workload
  )


def build_banded_inverse(
  limits: _Limits,
  num_bands: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best banded inverse, with `INVERSE_BANDS` unless told."""
  if num_bands is None:
    num_bands = min(INVERSE_BANDS, limits.num_rounds)
  return banded_inverse.optimize(
    limits.num_rounds, num_bands=num_bands, participation=limits, workload=workload
  )


def banded_inverse_seconds(limits: _Limits, num_bands: int = INVERSE_BANDS) -> float:
  """It looks for the best constraints if clients come back within its bands."""
  often = limits.possible_participations > 1 and limits.min_separation < num_bands
  return (1e-3 if often else 2e-5) * limits.num_rounds


def build_windowed_blt(
  limits: _Limits,
  num_decays: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best windowed BLT; the best BLT where nobody comes back."""
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


def build_tailed_blt(
  limits: _Limits,
  num_decays: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> strategy_lib.Strategy:
  """The best tailed BLT; the best BLT where nobody comes back."""
  if limits.possible_participations > 1:
    return tailed_blt.optimize(
      limits.num_rounds, num_decays=num_decays, participation=limits, workload=workload
    )
  uncut = build_windowed_blt(limits, num_decays, workload)
  return tailed_blt.TailedBLT(**uncut.parameters(), tail_scale=0.0, tail_decay=0.0)


def windowed_blt_seconds(limits: _Limits, num_decays: Optional[int] = None) -> float:
  """About how long `build_windowed_blt` takes."""
  return 0.3 + 8e-5 * limits.num_rounds


def by_epochs(
  unscaled: Callable[..., strategy_lib.Strategy],
  scaled: Callable[..., strategy_lib.Strategy],
  never_scaled: Callable[[Any], strategy_lib.Strategy],
  defaults: Callable[[_Limits], dict[str, int]] = lambda limits: {},
) -> Callable[..., strategy_lib.Strategy]:
  """Builds a variant with scales of epochs; without any where nobody comes back."""

  def build(
    limits: _Limits, workload: workload_lib.WorkloadLike = None, **given: int
  ) -> strategy_lib.Strategy:
    if limits.possible_participations == 1:
      return never_scaled(unscaled(limits, workload=workload, **given))
    options = {**defaults(limits), **given}
    return scaled(limits.num_rounds, participation=limits, workload=workload, **options)

  return build


def tailed_blt_seconds(limits: _Limits, num_decays: Optional[int] = None) -> float:
  """Two searches, one of which looks at the coefficients of all rounds."""
  return 1.0 + 3e-4 * limits.num_rounds


def epoch_seconds(limits: _Limits, **options: int) -> float:
  """Steps with a few transforms of all rounds for each scale."""
  scales = min(limits.possible_participations, epoch_problem.MAX_SCALES)
  return 0.5 + 2e-4 * limits.num_rounds + 2e-5 * scales * limits.num_rounds


def needless_epochs(
  unscaled: Callable[[_Limits, dict[str, int]], Optional[str]] = (
    lambda limits, given: None
  ),
) -> Callable[[_Limits, dict[str, int]], Optional[str]]:
  """Why a comparison does without a variant, if it does without its kind or scales."""

  def needless(limits: _Limits, given: dict[str, int]) -> Optional[str]:
    if limits.possible_participations == 1:
      return 'a client takes part only once, so that no epoch has a scale of its own.'
    if are_done_early(limits):
      return 'clients are done early, and scales of epochs gain next to nothing.'
    return unscaled(limits, given)

  return needless


def needless_window(limits: _Limits, given: dict[str, int]) -> Optional[str]:
  """Why a comparison does without a windowed BLT, if it should."""
  if limits.possible_participations == 1:
    return 'a client takes part only once, so that nothing is cut off: it is blt.'
  if limits.min_separation == 1:
    return 'with min_separation=1 the window is a round: it is the gaussian mechanism.'
  return None


def needless_tail(limits: _Limits, given: dict[str, int]) -> Optional[str]:
  """Why a comparison does without a tailed BLT, if it should."""
  if limits.possible_participations == 1:
    return 'a client takes part only once, so that nothing is cut off: it is blt.'
  if not are_done_early(limits):
    return 'clients take part until the end or nearly so: its tail is of no use.'
  return None

"""What strategies whose columns are scaled from epoch to epoch have in common."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import real
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import scaled_errors

_Scaled = TypeVar('_Scaled', bound='EpochScaled')


@dataclasses.dataclass(frozen=True, eq=False)
class EpochScaled(toeplitz.ScaledToeplitz):
  """C[i, j] = T[i, j] * (scale of round j), T lower-triangular and Toeplitz.

  A subclass says what `T` is.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    epoch_starts: The rounds in which another scale begins, in rising order from 0.
    epoch_scales: The scale from each of them on, positive.

  Raises:
    TypeError: If a number is not one.
    ValueError: If `epoch_starts` are not rounds in rising order from 0, or there is not
      one scale for each, positive and finite.
  """

  epoch_starts: tuple[int, ...]
  epoch_scales: tuple[float, ...]

  def __post_init__(self) -> None:
    super().__post_init__()
    starts = recursion_lib.check_starts('epoch_starts', self.epoch_starts)
    if starts[-1] >= self.num_rounds:
      raise ValueError(
        f'epoch_starts must be less than num_rounds={self.num_rounds}, got '
        f'{starts[-1]}.'
      )
    object.__setattr__(self, 'epoch_starts', starts)
    scales = real.array('epoch_scales', self.epoch_scales)
    if scales.shape != (len(starts),):
      raise ValueError(
        f'epoch_scales must be one for each of {len(starts)} epoch_starts, got shape '
        f'{scales.shape}.'
      )
    if not (np.all(np.isfinite(scales)) and np.all(scales > 0)):
      wrong = int(np.argmin(np.isfinite(scales) & (scales > 0)))
      raise ValueError(
        f'epoch_scales must be positive and finite, but the one from round '
        f'{starts[wrong]} on is {scales[wrong]}.'
      )
    object.__setattr__(self, 'epoch_scales', tuple(scales.tolist()))

  @classmethod
  def of(
    cls: type[_Scaled],
    unscaled: toeplitz.LowerToeplitz,
    epoch_starts: Iterable[int] = (0,),
    epoch_scales: Iterable[float] = (1.0,),
  ) -> _Scaled:
    """The strategy with these scales; without any, the unscaled one as this kind.

    Args:
      unscaled: What is scaled, of the kind that this one is a variant of.
      epoch_starts: The rounds in which another scale begins, in rising order from 0.
      epoch_scales: The scale from each of them on.

    Raises:
      TypeError: If `unscaled` is of another kind.
      ValueError: As for the class.
    """
    return cls(
      epoch_starts=tuple(epoch_starts),
      epoch_scales=tuple(epoch_scales),
      **unscaled.parameters(),
    )

  @functools.cached_property
  def _scales(self) -> np.ndarray:
    """The scale of each round, float64 of shape [n]."""
    return np.repeat(self.epoch_scales, np.diff([*self.epoch_starts, self.num_rounds]))

  def recursion(self) -> recursion_lib.Recursion:
    """That of the unscaled strategy, whose noise is divided by the scales."""
    factors = 1.0 / np.array(self.epoch_scales)
    return recursion_lib.Scaled(self.unscaled.recursion(), factors, self.epoch_starts)

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Variance of each workload row's noise for unit-variance z.

    O(n log n) for each scale, without a matrix. Where learning rates change, or for a
    workload given as an array, dense.
    """
    workload = workload_lib.check(self.num_rounds, workload)
    errors = scaled_errors.of_workload(workload, self.epoch_starts)
    column = self.unscaled.inverse_coefficients()
    return errors(column, 1.0 / np.array(self.epoch_scales))[0]


def check_several(
  participation: participation_lib.Participation, otherwise: str
) -> None:
  """Refuses a participation that leaves nothing to scale.

  Args:
    participation: Who may take part when.
    otherwise: The module whose `optimize` is to be used then.

  Raises:
    ValueError: If it allows one participation only.
  """
  if participation.possible_participations == 1:
    raise ValueError(
      'scales of epochs are of no use if a client takes part only once; use '
      f'{otherwise}.optimize, or give a participation that allows more than '
      f'{participation}.'
    )

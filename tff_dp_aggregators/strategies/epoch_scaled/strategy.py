"""What strategies whose columns are scaled from epoch to epoch have in common."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Optional, TypeVar

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import real
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import scaled_errors

_Scaled = TypeVar('_Scaled', bound='EpochScaled')


@dataclasses.dataclass(frozen=True, eq=False)
class EpochScaled(toeplitz.ScaledToeplitz):
  """C[i, j] = T[i, j] * (scale of j's epoch), T lower-triangular and Toeplitz.

  A subclass says what `T` is.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    epoch_rounds: Rounds that have one scale, at most n.
    epoch_scales: The scale of each epoch, positive. The last one is that of all later
      epochs, too.

  Raises:
    TypeError: If a number is not one.
    ValueError: If `epoch_rounds` is not between 1 and `num_rounds`, or there are no
      scales, more than there are epochs, or one that is not positive and finite.
  """

  epoch_rounds: int
  epoch_scales: tuple[float, ...]

  def __post_init__(self) -> None:
    super().__post_init__()
    rounds = checks.check_positive_int('epoch_rounds', self.epoch_rounds)
    if rounds > self.num_rounds:
      raise ValueError(
        f'epoch_rounds must be at most num_rounds={self.num_rounds}, got {rounds}.'
      )
    object.__setattr__(self, 'epoch_rounds', rounds)
    scales = real.array('epoch_scales', self.epoch_scales)
    epochs = -(-self.num_rounds // rounds)
    if scales.ndim != 1 or not 1 <= len(scales) <= epochs:
      raise ValueError(
        f'epoch_scales must be 1 to {epochs} numbers, for epochs of {rounds} rounds in '
        f'num_rounds={self.num_rounds}, got shape {scales.shape}.'
      )
    if not (np.all(np.isfinite(scales)) and np.all(scales > 0)):
      wrong = int(np.argmin(np.isfinite(scales) & (scales > 0)))
      raise ValueError(
        f'epoch_scales must be positive and finite, but that of epoch {wrong} is '
        f'{scales[wrong]}.'
      )
    object.__setattr__(self, 'epoch_scales', tuple(scales.tolist()))

  @classmethod
  def of(
    cls: type[_Scaled],
    unscaled: toeplitz.LowerToeplitz,
    epoch_rounds: Optional[int] = None,
    epoch_scales: Iterable[float] = (1.0,),
  ) -> _Scaled:
    """The strategy with these scales; without any, the unscaled one as this kind.

    Args:
      unscaled: What is scaled, of the kind that this one is a variant of.
      epoch_rounds: Rounds that have one scale; all of them by default.
      epoch_scales: The scale of each epoch.

    Raises:
      TypeError: If `unscaled` is of another kind.
      ValueError: As for the class.
    """
    if epoch_rounds is None:
      epoch_rounds = unscaled.num_rounds
    return cls(
      epoch_rounds=epoch_rounds,
      epoch_scales=tuple(epoch_scales),
      **unscaled.parameters(),
    )

  @functools.cached_property
  def _scales(self) -> np.ndarray:
    """The scale of each round, float64 of shape [n]."""
    epochs = np.arange(self.num_rounds) // self.epoch_rounds
    return np.array(self.epoch_scales)[np.minimum(epochs, len(self.epoch_scales) - 1)]

  def recursion(self) -> recursion_lib.Recursion:
    """That of the unscaled strategy, whose noise is divided by the scales."""
    factors = 1.0 / np.array(self.epoch_scales)
    return recursion_lib.Scaled(self.unscaled.recursion(), factors, self.epoch_rounds)

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Variance of each workload row's noise for unit-variance z.

    O(n log n) for each epoch with a scale of its own, without a matrix. Where learning
    rates change, or for a workload given as an array, dense.
    """
    workload = workload_lib.check(self.num_rounds, workload)
    starts = [number * self.epoch_rounds for number in range(len(self.epoch_scales))]
    errors = scaled_errors.of_workload(workload, starts)
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

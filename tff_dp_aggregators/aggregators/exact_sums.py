"""What may add up records inside a mechanism: only what is known to return the sum.

The sensitivity is that of the exact sum of integers (`queries.grid`). An aggregation of
the right type may return something else: one that quantizes or compresses draws numbers
of its own or follows the values, one that wraps, clips or samples is no sum at all, and
then a client moves the result by more than its clip norm, and no noise pays for that.

Neither the type of an aggregation nor a trial tells: a process may lose what the trial
does not try, and one that sums securely runs nowhere but where it is deployed. So the
classes that are exact are listed here, with what they have to be made with, and for all
others a caller gives their word, which the code then shows: `ExactSum`.
"""

from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import nonfinite
from tff_dp_aggregators.queries import grid


class ExactSum(tff.aggregators.UnweightedAggregationFactory):
  """Says of a factory that what it returns is the exact sum of the clients' integers.

  For sums that this package does not know, such as those of a system's own secure
  aggregation. What has to be true of the inner one, or privacy is not what is stated:

  * The result is the sum over all clients that report, in int64, of integers of
    magnitude at most `queries.grid.LARGEST_ENTRY`, for up to `queries.grid.MAX_CLIENTS`
    clients: nothing is rounded, clipped, wrapped, compressed, sampled or weighted.
  * No noise is added, and none is needed: what it measures and remembers depends on no
    client. (`extract_dp_event` refuses a sum that remembers anything.)

  Example:
    >>> from tff_dp_aggregators import aggregators
    >>> measured = tff.aggregators.add_measurements(
    ...   tff.aggregators.SumFactory(), server_measurement_fn=lambda total: {}
    ... )
    >>> factory = aggregators.gaussian(
    ...   clip_norm=1.0,
    ...   noise_multiplier=1.0,
    ...   clients_per_round=100,
    ...   record_aggregation_factory=ExactSum(measured),
    ... )
  """

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    """Initializes the factory.

    Args:
      inner: What returns the exact sum.

    Raises:
      TypeError: If it is not an unweighted aggregation factory.
    """
    nonfinite.check_unweighted('inner', inner)
    self._inner = inner

  @property
  def inner(self) -> tff.aggregators.UnweightedAggregationFactory:
    """What returns the exact sum."""
    return self._inner

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the inner factory's process.

    Args:
      value_type: Type of a client's value: a structure of int64 tensors.
    """
    return self._inner.create(value_type)


def check_exact_sum(name: str, value: Any) -> None:
  """Refuses what is not known, or said, to return the exact sum of the integers."""
  nonfinite.check_unweighted(name, value)
  # Not their subclasses, which may do as they like.
  if type(value) in (tff.aggregators.SumFactory, ExactSum):
    return
  if type(value) is tff.aggregators.SecureSumFactory:
    _check_thresholds(name, value)
    return
  reason = _REASONS.get(type(value), 'nothing here knows that it does')
  raise ValueError(
    f'{name} must return the exact sum of the integers that clients send; '
    f'{type(value).__qualname__}: {reason}. Use tff.aggregators.SumFactory() or '
    'aggregators.secure_sum(). What is to happen to values before they are clipped, '
    'such as zeroing, rotation or compression, goes around the factory of the '
    'mechanism. If it does return the sum, bit for bit, say so: '
    'aggregators.ExactSum(...).'
  )


def for_counts_beside(
  record_aggregation_factory: tff.aggregators.UnweightedAggregationFactory,
) -> tff.aggregators.UnweightedAggregationFactory:
  """What sums 0s and 1s of clients as records are summed: securely, or plainly."""
  if isinstance(record_aggregation_factory, tff.aggregators.SecureSumFactory):
    return tff.aggregators.SecureSumFactory(1, 0)
  return tff.aggregators.SumFactory()


_REASONS: dict[type, str] = {
  tff.aggregators.EncodedSumFactory: 'it returns what an encoding leaves of the sum',
  tff.aggregators.SecureModularSumFactory: 'it returns the sum modulo its modulus',
  tff.aggregators.UnweightedMeanFactory: 'it divides by the number of clients',
  tff.aggregators.UnweightedReservoirSamplingFactory: 'it returns some of the values',
  tff.aggregators.DifferentiallyPrivateFactory: 'it clips, and adds noise of its own',
  tff.aggregators.HadamardTransformFactory: 'it rotates values, and rounds',
  tff.aggregators.DiscreteFourierTransformFactory: 'it rotates values, and rounds',
}


def _check_thresholds(name: str, secure_sum: tff.aggregators.SecureSumFactory) -> None:
  """Refuses a secure sum that clips what it sums."""
  # TFF, of which this package takes one version alone, has no public way to ask.
  upper: Any = secure_sum._upper_bound_threshold
  lower: Optional[Any] = secure_sum._lower_bound_threshold
  if isinstance(upper, (int, np.integer)):
    lowest = -int(upper) if lower is None else int(lower)
    if int(upper) >= grid.LARGEST_ENTRY and lowest <= -grid.LARGEST_ENTRY:
      return
    found = f'has the integer thresholds {lowest} and {int(upper)}'
  else:
    found = 'has thresholds for floats, or that follow the values'
  raise ValueError(
    f'{name} is a tff.aggregators.SecureSumFactory that {found}, and clips what it '
    'sums to them; the integers that clients send have magnitudes up to '
    f'{grid.LARGEST_ENTRY}. Use aggregators.secure_sum(), which takes them all.'
  )

"""How loud clients are beside the noise, measured: exact, and so not private.

`accounting.noise_to_signal` tells before training how loud the noise is beside the most
that clients can say. This is what they said, in a round or in several: for simulations,
as pfl-research's `SNRMetric`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class SignalToNoise:
  """The signal and the noise of one round, or of several that are added up.

  A sum is that of both in any order and grouping: norms of signals add up, as if they
  pointed the same way, and so do squares of noise, as independent noise does. So the
  ratio of n like rounds is sqrt(n) times that of one. With independent noise that is
  the most the sum of these rounds can have, for signals may disagree; noise that is
  correlated cancels in sums, of which `accounting.noise_to_signal` knows.

  **Not private**: `signal_norm` is exact and of clients.

  Attributes:
    signal_norm: L2 norm of the mean before noise, summed over rounds.
    squared_noise_norm: Expected square of the L2 norm of the noise in the mean, summed
      over rounds: number of coordinates times variance.

  Example:
    >>> first = SignalToNoise(signal_norm=3.0, squared_noise_norm=4.0)
    >>> second = SignalToNoise(signal_norm=1.0, squared_noise_norm=12.0)
    >>> first.ratio, (first + second).ratio
    (1.5, 1.0)
    >>> sum([second, first], SignalToNoise()) == first + second
    True
  """

  signal_norm: float = 0.0
  squared_noise_norm: float = 0.0

  def __post_init__(self) -> None:
    for name in ('signal_norm', 'squared_noise_norm'):
      value = float(getattr(self, name))
      if not value >= 0:
        raise ValueError(f'{name} must not be negative or NaN; got {value}.')
      object.__setattr__(self, name, value)

  @classmethod
  def of_measurements(cls, measurements: Mapping[str, Any]) -> 'SignalToNoise':
    """That of a round.

    Args:
      measurements: Of a process of
        `DPMeanFactory.with_not_private_signal_to_noise()`.

    Raises:
      ValueError: If they are of another.
    """
    metrics = measurements.get('dp_query_metrics', measurements)
    try:
      return cls(metrics['not_private_signal_norm'], metrics['squared_noise_norm'])
    except KeyError as e:
      raise ValueError(
        f'the measurements lack {e}: make the process of '
        'factory.with_not_private_signal_to_noise().'
      ) from e

  def __add__(self, other: Any) -> 'SignalToNoise':
    if not isinstance(other, SignalToNoise):
      return NotImplemented
    return SignalToNoise(
      self.signal_norm + other.signal_norm,
      self.squared_noise_norm + other.squared_noise_norm,
    )

  @property
  def ratio(self) -> float:
    """Signal over the root of the mean square of the noise; NaN if there is neither."""
    if self.squared_noise_norm == 0:
      return math.inf if self.signal_norm else math.nan
    return self.signal_norm / math.sqrt(self.squared_noise_norm)

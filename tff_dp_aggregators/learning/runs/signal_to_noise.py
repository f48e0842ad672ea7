"""The signal-to-noise ratio of a run's rounds, of exact sums: it is not private."""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_dp_aggregators.aggregators import signal_to_noise

_SIGNAL, _NOISE = 'signal_norm', 'squared_noise_norm'


def signal_and_noise(of_query: Mapping[str, Any]) -> Optional[tuple[float, float]]:
  """Norm of the signal and squared norm of the noise; `None` if not measured."""
  if 'not_private_signal_norm' not in of_query:
    return None
  return float(of_query['not_private_signal_norm']), float(of_query[_NOISE])


class SignalToNoiseColumns:
  """Columns of metrics: the signal-to-noise ratio by round, and of all rounds so far.

  They are of the exact sums of clients, and so not private.
  """

  def __init__(self, prefix: str):
    """Initializes it, before any round."""
    self._signal, self._noise = f'{prefix}{_SIGNAL}', _NOISE
    self._ratio = f'{prefix}signal_to_noise'
    self._so_far = signal_to_noise.SignalToNoise()

  @property
  def columns(self) -> list[str]:
    """Their names."""
    return [self._signal, self._noise, self._ratio, f'{self._ratio}_so_far']

  def take_up(self, rows: Sequence[Mapping[str, str]]) -> None:
    """Adds up the rounds of a run that goes on."""
    for row in rows:
      self._so_far += signal_to_noise.SignalToNoise(
        float(row[self._signal]), float(row[self._noise])
      )

  def after(self, measured: Sequence[float]) -> dict[str, float]:
    """The columns of the next round."""
    this_round = signal_to_noise.SignalToNoise(*measured)
    self._so_far += this_round
    values = (*measured, this_round.ratio, self._so_far.ratio)
    return dict(zip(self.columns, values))

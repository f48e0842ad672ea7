"""What a run does with clients' updates, besides what its mechanism says.

Knows nothing of TensorFlow, so that what does not go together is refused at once.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Optional

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.base import checks


class Inner(NamedTuple):
  """What sums the clipped values of a round.

  Attributes:
    help: What that is, for the help of a flag.
    is_secure: Whether the sum is to be secure, which is simulated here.
  """

  help: str
  is_secure: bool


SUM, SECURE, MODULAR = 'sum', 'secure_sum', 'secure_modular_sum'
INNER = {
  SUM: Inner('a plain sum', is_secure=False),
  SECURE: Inner(
    'a secure sum, with bounds that nothing exceeds; of everything but integer noise',
    is_secure=True,
  ),
  MODULAR: Inner(
    'a secure sum modulo two to the --bits; of integer noise alone', is_secure=True
  ),
}


@dataclasses.dataclass(frozen=True)
class Aggregation:
  """What is done with clients' updates.

  Attributes:
    inner_aggregator: A key of `INNER`: what sums the clipped updates.
    zeroing_norm: Updates of a larger L2 norm count as zeros; `None` for all of them.
    coordinate_bound: Largest magnitude of a coordinate; `None` for any.
    clip_order: Without a mechanism, in which p-norm updates are clipped, if they are;
      with one it is that of its noise, and this is `None`.
    target_quantile: Of adaptive clipping; `None` for its default.
    clip_learning_rate: Of adaptive clipping; `None` for its default.
    not_private_signal_to_noise: Whether it is measured how loud the exact sum of each
      round is beside its noise.
  """

  inner_aggregator: str = SUM
  zeroing_norm: Optional[float] = None
  coordinate_bound: Optional[float] = None
  clip_order: Optional[float] = None
  target_quantile: Optional[float] = None
  clip_learning_rate: Optional[float] = None
  not_private_signal_to_noise: bool = False

  @property
  def inner(self) -> Inner:
    """What sums the clipped updates."""
    return INNER[self.inner_aggregator]

  def check(
    self,
    mechanism: Optional[joint_mechanism.AnyMechanism],
    clip_norm: Optional[float],
  ) -> None:
    """Refuses what does not go with a mechanism.

    `mechanism`: Of the run; `None` for none.
    `clip_norm`: Bound of one client's update; `None` for none.
    """
    for name in ('zeroing_norm', 'coordinate_bound'):
      value = getattr(self, name)
      if value is not None:
        checks.check_number(name, value)
        if not 0 < value < math.inf:
          raise ValueError(f'{name} must be positive and finite; got {value}.')
    self._check_clip_order(mechanism, clip_norm)
    self._check_inner(mechanism, clip_norm)
    if self.not_private_signal_to_noise:
      _check_signal(mechanism)
    for name in ('target_quantile', 'clip_learning_rate'):
      value = getattr(self, name)
      if value is not None and (
        mechanism is None or mechanism.clipped_count_stddev is None
      ):
        raise ValueError(
          f'{name}={value:g} is for adaptive clipping, and this clip norm is fixed; '
          'leave it out.'
        )

  def _check_clip_order(
    self, mechanism: Optional[joint_mechanism.AnyMechanism], clip_norm: Optional[float]
  ) -> None:
    order = self.clip_order
    if order is None:
      return
    checks.check_number('clip_order', order)
    if not order >= 1:
      raise ValueError(f'clip_order must be at least 1, or infinite; got {order}.')
    if mechanism is not None:
      raise ValueError(
        f'clip_order={order:g} is for clipping without noise; {mechanism.name} clips '
        f'{mechanism.clips_in_words()}, which its noise is for. Leave it out.'
      )
    if clip_norm is None:
      raise ValueError(f'clip_order={order:g} needs a clip_norm.')

  def _check_inner(
    self, mechanism: Optional[joint_mechanism.AnyMechanism], clip_norm: Optional[float]
  ) -> None:
    name = self.inner_aggregator
    if name not in INNER:
      raise ValueError(f'unknown inner_aggregator {name!r}; known: {", ".join(INNER)}.')
    if name == SUM:
      return
    if mechanism is None and clip_norm is None:
      raise ValueError(
        f'inner_aggregator={name} does not go with updates that are not clipped: a '
        'secure sum is of bounded integers. Give a mechanism or a clip_norm.'
      )
    has_integers = mechanism is not None and mechanism.has_integer_noise
    if mechanism is not None and has_integers and name == SECURE:
      raise ValueError(
        f'inner_aggregator={name} does not go with {mechanism.name} noise, whose '
        f'sums are modulo two to the bits; take {MODULAR}, or {SUM}.'
      )
    if not has_integers and name == MODULAR:
      raise ValueError(
        f'inner_aggregator={name} is for integer noise (skellam, discrete_gaussian), '
        f'whose sums may wrap around; take {SECURE}, or {SUM}.'
      )

  def why_one_by_one(
    self, mechanism: Optional[joint_mechanism.AnyMechanism]
  ) -> Optional[str]:
    """Why clients cannot be packed; `None` if they can.

    `mechanism`: Of the run; `None` for none.
    """
    if mechanism is not None and mechanism.has_integer_noise:
      return (
        f'each client draws its share of {mechanism.name} noise with a key of its own'
      )
    if self.inner.is_secure:
      return f'inner_aggregator={self.inner_aggregator} sums what each client sends'
    return None

  def not_covered(self) -> tuple[str, ...]:
    """What it computes of clients' data without noise, a sentence each."""
    if not self.not_private_signal_to_noise:
      return ()
    return (
      "The norm of the clients' exact sum was measured in every round, beside the "
      'noise: columns of metrics.csv, which are not private.',
    )

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values."""
    values = dataclasses.asdict(self)
    if self.clip_order is not None and math.isinf(self.clip_order):
      values['clip_order'] = 'infinity'  # JSON has none.
    return values


def _check_signal(mechanism: Optional[joint_mechanism.AnyMechanism]) -> None:
  """Refuses to measure where there is no noise, or no sum without it."""
  if mechanism is None:
    raise ValueError(
      'not_private_signal_to_noise needs a mechanism: without one there is no noise.'
    )
  if mechanism.noise_site != 'server':
    raise ValueError(
      'not_private_signal_to_noise does not go with noise_site='
      f'{mechanism.noise_site}: what clients send has its noise already, and their '
      'exact sum is nowhere. Measure with noise of the server, or leave it out.'
    )

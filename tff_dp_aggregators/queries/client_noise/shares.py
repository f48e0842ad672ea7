"""Central Gaussian noise that clients make in shares."""

from typing import Any, Optional

import dp_accounting

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries.client_noise import base


class GaussianSharesSumQuery(base.ClientNoiseSumQuery):
  """Sums records whose noise adds up to the central Gaussian mechanism's.

  Each client adds Gaussian noise of standard deviation
  `clip_norm * noise_multiplier / sqrt(min_clients)`. The sum of `min_clients` clients
  has the noise of `GaussianSumQuery`, that of more has more. With fewer there is too
  little, so such a sum must not be released; who counts clients sees to it
  (`aggregators.DPMeanFactory`).

  Nobody has to be trusted with making noise, but what a single client sends is hardly
  hidden: sums have to be secure, or the server to forget. A client of the round knows
  its own share: against it the noise is sqrt((m - 1) / m) times as large, m being
  `min_clients` (`accounting.local.central_event` with `known_shares`). Clients that add
  less than they should take from the privacy of all.

  Example:
    >>> import tensorflow as tf
    >>> query = GaussianSharesSumQuery(
    ...   clip_norm=1.0,
    ...   noise_multiplier=2.0,
    ...   min_clients=100,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> query.client_noise_multiplier, query.noise_multiplier
    (0.2, 2.0)
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    clip_norm: float,
    noise_multiplier: float,
    min_clients: int,
    record_specs: Any,
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds. `None` assumes
        that a client may take part in every round, and serves any number of them.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of the noise of a sum of `min_clients`
        records over `clip_norm`; 0 adds none.
      min_clients: How many clients report at least.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise, for packed simulations alone; `None` for secret noise.
        An int takes the seed's next stream in this process; a `noise.Seed` says which.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, or a shape is not fully defined.
    """
    self._min_clients = checks.check_positive_int('min_clients', min_clients)
    super().__init__(
      participation,
      noise=noises.GAUSSIAN.name,
      clip_norm=clip_norm,
      client_noise_multiplier=local.share(noise_multiplier, self._min_clients),
      record_specs=record_specs,
      seed=seed,
      generator=generator,
    )
    self._noise_multiplier = float(noise_multiplier)

  @property
  def noise_site(self) -> str:
    """'clients': the noise of all of them hides each."""
    return 'clients'

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of the noise of `min_clients` clients over the clip norm."""
    return self._noise_multiplier

  @property
  def min_clients(self) -> int:
    """How many clients have to report."""
    return self._min_clients

  def _event(self) -> dp_accounting.DpEvent:
    if not self._noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.GaussianDpEvent(self._noise_multiplier)

  def _more_facts(self) -> dict[str, Any]:
    # Of equal shares more make more noise, and say that they spent less.
    return {'min_clients': self._min_clients}

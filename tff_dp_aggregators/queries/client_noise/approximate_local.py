"""What local privacy comes to, simulated with noise of the server. Protects nobody."""

from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries.client_noise import base


class ApproximateSample(NamedTuple):
  """What is summed of a client in the approximation; that of a sum is its sum.

  Attributes:
    record: The clipped record in steps of the grid, structure of int64.
    clients: 1, int64.
  """

  record: Any
  clients: Any


class ApproximateLocalSumQuery(base.ClientNoiseSumQuery):
  """SIMULATION ONLY: sums with Gaussian noise of the error that local noise has.

  A sum of m records with noise of m clients has m times the variance of one client's.
  Here the server adds Gaussian noise of that variance to the sum, for as many clients
  as reported: drawn once and not m times. Sums have the mean and covariance of those
  that they stand for (`LocalGaussianSumQuery`, `LocalLaplaceSumQuery`); of Gaussian
  noise the distribution, but for how it is rounded; of Laplace noise that of large m.

  What clients send has no noise at all, so none is hidden from the server, and `spent`
  and the events say that: `NonPrivateDpEvent`. What the real thing would spend says
  `accounting.local.local_event`.

  Example:
    >>> query = ApproximateLocalSumQuery(
    ...   noise='laplace',
    ...   clip_norm=1.0,
    ...   noise_multiplier=2.0,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> query.spent(query.initial_global_state()).to_event()
    NoOpDpEvent()
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise: str,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds. `None` assumes
        that a client may take part in every round, and serves any number of them.
      noise: What is approximated: 'gaussian', with records clipped in L2 norm, or
        'laplace', in L1 norm.
      clip_norm: Bound of one record.
      noise_multiplier: Scale of one client's noise over `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise; `None` for noise that nobody can make again. An int
        takes the seed's next stream in this process; a `noise.Seed` says which.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, the noise of another kind, or a shape is
        not fully defined.
    """
    super().__init__(
      participation,
      noise=noise,
      clip_norm=clip_norm,
      client_noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      seed=seed,
      generator=generator,
    )

  @property
  def noise_site(self) -> str:
    """'local_approximate': the server, in place of clients. Simulation only."""
    return 'local_approximate'

  @property
  def noise_multiplier(self) -> float:
    """Scale of the noise of one client that is stood for, over its clip norm."""
    return self._client_noise_multiplier

  @property
  def clients_add_noise(self) -> bool:
    """False."""
    return False

  def _event(self) -> dp_accounting.DpEvent:
    return dp_accounting.NonPrivateDpEvent()

  def _server_adds_noise(self) -> bool:
    return self._client_noise_multiplier > 0

  def initial_sample_state(self, template: Any = None) -> ApproximateSample:
    """Returns the sum of no records: int64 zeros.

    Args:
      template: As for other queries.

    Raises:
      TypeError: As for other queries.
      ValueError: As for other queries.
    """
    return ApproximateSample(
      super().initial_sample_state(template), tf.constant(0, tf.int64)
    )

  def encode_record(
    self, params: Any, record: Any
  ) -> tuple[ApproximateSample, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, *without noise*, and a count.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: As for other queries.
      ValueError: As for other queries.
    """
    clipped, finite = self.clip_record(params, record)
    return ApproximateSample(clipped, tf.constant(1, tf.int64)), finite

  def _add_server_noise(
    self,
    sums: ApproximateSample,
    state: base.ClientNoiseState,
    this_round: tf.Tensor,
    steps: tf.Tensor,
  ) -> Any:
    if not self._server_adds_noise():
      return sums.record
    of_one = self._client_noise_multiplier * self._noise.stddev
    of_all = of_one * tf.sqrt(tf.cast(sums.clients, tf.float64))
    return self._add_gaussian(sums.record, of_all, state, this_round, steps)

"""Local privacy: each client hides itself, from the server too."""

from typing import Any, Optional

import dp_accounting

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.queries.client_noise import base


class _LocalSumQuery(base.ClientNoiseSumQuery):
  """What both kinds of noise have in common."""

  @property
  def noise_site(self) -> str:
    """'local': a client's noise hides it, whatever others do."""
    return 'local'

  @property
  def noise_multiplier(self) -> float:
    """Scale of one client's noise over its clip norm."""
    return self._client_noise_multiplier

  def _event(self) -> dp_accounting.DpEvent:
    return local.local_event(
      self._client_noise_multiplier, noise=self.noise, adjacency='zero_out'
    )


class LocalGaussianSumQuery(_LocalSumQuery):
  """Sums records each of which has Gaussian noise of its client's.

  What a client sends is clipped in L2 norm and has noise of standard deviation
  `clip_norm * noise_multiplier` in each coordinate; a sum of m of them has sqrt(m)
  times that. Whether a client's record was finite is not told.

  Events and what a state says was `spent` are of what one client sent, against
  everybody: `accounting.local.local_event` under zero-out neighbours. For any two
  records of a client, which local privacy is mostly stated for, divide the noise
  multiplier by two (`adjacency='replace_one'`). Against those who see sums only there
  is more privacy, `accounting.local.central_event`.

  With `server_noise_multiplier` the server adds Gaussian noise to the sum (as NbAFL
  does, arXiv:1911.00222): it counts for the central guarantee alone.

  Example:
    >>> import tensorflow as tf
    >>> query = LocalGaussianSumQuery(
    ...   clip_norm=1.0, noise_multiplier=5.0, record_specs=tf.TensorSpec([3])
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> for _ in range(4):  # Each with noise of a key of its own.
    ...   sample = query.accumulate_record(params, sample, tf.constant([0.5, 0.0, 0.0]))
    >>> noised, state, event = query.get_noised_result(sample, state)
    >>> float(event.noise_multiplier), float(query.spent(state)[1])
    (5.0, 5.0)
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    clip_norm: float,
    noise_multiplier: float,
    server_noise_multiplier: float = 0.0,
    record_specs: Any,
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds. `None` assumes
        that a client may take part in every round, and serves any number of them.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of one client's noise over `clip_norm`; 0
        adds none.
      server_noise_multiplier: Standard deviation of the server's noise over
        `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise, for packed simulations alone; `None` for secret noise.
        An int takes the seed's next stream in this process; a `noise.Seed` says which.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, or a shape is not fully defined.
    """
    super().__init__(
      participation,
      noise=noises.GAUSSIAN.name,
      clip_norm=clip_norm,
      client_noise_multiplier=noise_multiplier,
      server_noise_multiplier=server_noise_multiplier,
      record_specs=record_specs,
      seed=seed,
      generator=generator,
    )

  @property
  def noise_site(self) -> str:
    """'local', or 'clients_and_server' where the server adds noise on top."""
    return 'clients_and_server' if self._server_adds_noise() else 'local'


class LocalLaplaceSumQuery(_LocalSumQuery):
  """Sums records each of which has Laplace noise of its client's.

  What a client sends is clipped in L1 norm and has noise of scale
  `clip_norm * noise_multiplier` in each coordinate: epsilon is 1 / `noise_multiplier`
  under zero-out neighbours, twice that for any two records of a client, with delta = 0,
  against everybody. Whether a record was finite is not told.

  Example:
    >>> import tensorflow as tf
    >>> query = LocalLaplaceSumQuery(
    ...   clip_norm=1.0, noise_multiplier=2.0, record_specs=tf.TensorSpec([3])
    ... )
    >>> query.spent(query.initial_global_state()).to_event()
    NoOpDpEvent()
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
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
      clip_norm: L1 bound of one record.
      noise_multiplier: Scale of one client's noise over `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise, for packed simulations alone; `None` for secret noise.
        An int takes the seed's next stream in this process; a `noise.Seed` says which.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, or a shape is not fully defined.
    """
    super().__init__(
      participation,
      noise=noises.LAPLACE.name,
      clip_norm=clip_norm,
      client_noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      seed=seed,
      generator=generator,
    )

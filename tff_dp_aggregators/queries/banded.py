"""Banded matrix factorization: noise that later rounds partly take back."""

from typing import Any, Optional, Union

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import matrix_mechanism


class BandedMatrixFactorizationQuery(matrix_mechanism.MatrixMechanismQuery):
  """Sums with the noise `C^-1 z` of a banded strategy (2306.08153).

  Example:
    >>> import tensorflow as tf
    >>> strategy = strategies.BandedToeplitz.square_root(num_rounds=100, num_bands=20)
    >>> query = BandedMatrixFactorizationQuery(
    ...   strategy,
    ...   strategies.Participation(num_rounds=100, min_separation=20),
    ...   clip_norm=1.0,
    ...   noise_multiplier=3.0,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> round(query.effective_noise_multiplier, 4)  # Five participations: 3 / sqrt(5).
    1.3416
  """

  def __init__(
    self,
    strategy: Union[strategies.Banded, strategies.BandedToeplitz],
    participation: strategies.Participation,
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    workload: Optional[strategies.Workload] = None,
    storage: noise_lib.Storage = 'auto',
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      strategy: Banded strategy matrix C, for a number of rounds that cannot be
        exceeded.
      participation: Who may take part when, in as many rounds.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of z over `clip_norm`; 0 adds no noise.
      record_specs: Structure of float tensor specs like a record.
      workload: `None` to release the sum of each round; a `Workload` to release its
        rows applied to all sums so far.
      storage: Where the noise of earlier rounds is: see `noise.build`.
      seed: Reproducible noise, for simulations; `None` for secret noise: see
        `noise.Seed`.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      OSError: If `storage` names a directory that cannot be used.
      RuntimeError: If another process uses it.
      TypeError: If the strategy is not banded, or another argument not of its type;
        `participation` may not be `None`.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        participation or workload is for other rounds than the strategy.
    """
    if not isinstance(strategy, (strategies.Banded, strategies.BandedToeplitz)):
      raise TypeError(
        'strategy must be a Banded or BandedToeplitz, got '
        f'{type(strategy).__name__}; use MatrixMechanismQuery for others.'
      )
    super().__init__(
      strategy,
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      workload=workload,
      storage=storage,
      seed=seed,
      generator=generator,
    )

"""Tree aggregation (DP-FTRL), releasing prefix sums or what each round adds.

TF Privacy's queries of the same names return an event that no accountant reads, keep
a seed made from the clock, and cannot tell how many rounds they were planned for;
these agree with them in distribution (the tests compare).
"""

from typing import Any, Optional

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import matrix_mechanism


class TreeResidualSumQuery(matrix_mechanism.MatrixMechanismQuery):
  """Sums of each round, with noise that cancels in their prefix sums (2103.00039).

  Example:
    >>> import tensorflow as tf
    >>> query = TreeResidualSumQuery(
    ...   strategies.Participation.from_rounds_between(2000, 313, 6),
    ...   clip_norm=1.0,
    ...   noise_multiplier=7.0,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> round(query.effective_noise_multiplier, 4)  # 7 / sqrt(79)
    0.7876
  """

  def __init__(
    self,
    participation: strategies.Participation,
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    honaker: bool = True,
    restart_every: Optional[int] = None,
    workload: Optional[strategies.Workload] = None,
    storage: noise_lib.Storage = 'auto',
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds; one more is an
        error.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of a node's noise over `clip_norm`; 0 adds
        no noise.
      record_specs: Structure of float tensor specs like a record.
      honaker: Whether to use Honaker's estimator, with less noise, or the plain one,
        with no noise in the state.
      restart_every: Rounds after which a fresh tree begins; `None` for a single one.
      workload: `None` to release the sum of each round; a `Workload` to release its
        rows applied to all sums so far.
      storage: Where the noise of earlier rounds is: see `noise.build`.
      seed: Reproducible noise, for simulations; `None` for secret noise: see
        `noise.Seed`.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      OSError: If `storage` names a directory that cannot be used.
      RuntimeError: If another process uses it.
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type; `participation` may not be `None`.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        workload is for other rounds.
    """
    strategies.participation.require(participation)
    super().__init__(
      strategies.BinaryTree(participation.num_rounds, honaker, restart_every),
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      workload=workload,
      storage=storage,
      seed=seed,
      generator=generator,
    )


class TreeCumulativeSumQuery(TreeResidualSumQuery):
  """Prefix sums over rounds, each with the noise of the tree's estimate.

  The residual sums of the rounds, added up.
  """

  def __init__(
    self,
    participation: strategies.Participation,
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    honaker: bool = True,
    restart_every: Optional[int] = None,
    workload: Optional[strategies.Workload] = None,
    storage: noise_lib.Storage = 'auto',
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds; one more is an
        error.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of a node's noise over `clip_norm`; 0 adds
        no noise.
      record_specs: Structure of float tensor specs like a record.
      honaker: Whether to use Honaker's estimator, with less noise, or the plain one,
        with no noise in the state.
      restart_every: Rounds after which a fresh tree begins; `None` for a single one.
      workload: Whose rows to release, applied to all sums so far; `None` for prefix
        sums.
      storage: Where the noise of earlier rounds is: see `noise.build`.
      seed: Reproducible noise, for simulations; `None` for secret noise: see
        `noise.Seed`.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      OSError: If `storage` names a directory that cannot be used.
      RuntimeError: If another process uses it.
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type; `participation` may not be `None`.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        workload is for other rounds.
    """
    strategies.participation.require(participation)
    if workload is None:
      workload = strategies.Workload(participation.num_rounds)
    super().__init__(
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      honaker=honaker,
      restart_every=restart_every,
      workload=workload,
      storage=storage,
      seed=seed,
      generator=generator,
    )

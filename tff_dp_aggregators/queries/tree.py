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
    seed: Optional[int] = None,
  ):
    """Initializes the query; arguments and errors as for `MatrixMechanismQuery`.

    Args:
      participation: Who may take part when, and for how many rounds.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of a node's noise over `clip_norm`.
      record_specs: Structure of float tensor specs like a record.
      honaker: Whether to use Honaker's estimator, with less noise, or the plain one,
        with no noise in the state.
      restart_every: Rounds after which a fresh tree begins; `None` for a single one.
      workload: See `MatrixMechanismQuery`.
      storage: See `noise.build`.
      seed: Makes the noise reproducible, for simulations.
    """
    super().__init__(
      strategies.BinaryTree(participation.num_rounds, honaker, restart_every),
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      workload=workload,
      storage=storage,
      seed=seed,
    )


class TreeCumulativeSumQuery(TreeResidualSumQuery):
  """Prefix sums over rounds, each with the noise of the tree's estimate.

  The residual sums of the rounds, added up. Constructor as for `TreeResidualSumQuery`,
  with prefix sums as the default workload.
  """

  def __init__(
    self,
    participation: strategies.Participation,
    *,
    workload: Optional[strategies.Workload] = None,
    **kwargs: Any,
  ):
    """Initializes the query; see `TreeResidualSumQuery`."""
    if workload is None:
      workload = strategies.Workload(participation.num_rounds)
    super().__init__(participation, workload=workload, **kwargs)

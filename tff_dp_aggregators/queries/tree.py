"""Tree aggregation (DP-FTRL), releasing prefix sums or what each round adds.

TF Privacy's queries of the same names return an event that no accountant reads, keep
a seed made from the clock, and cannot tell how many rounds they were planned for;
these agree with them in distribution (the tests compare).
"""

from typing import Any, Optional

import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import matrix_mechanism


class TreeResidualSumQuery(matrix_mechanism.MatrixMechanismQuery):
  """Sums of each round, with noise that cancels in their prefix sums (2103.00039).

  Example:
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
      seed: Makes the noise reproducible, for simulations.
    """
    super().__init__(
      strategies.BinaryTree(participation.num_rounds, honaker),
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      seed=seed,
    )


class TreeCumulativeSumQuery(TreeResidualSumQuery):
  """Prefix sums over rounds, each with the noise of the tree's estimate.

  Constructor as for `TreeResidualSumQuery`. The state holds the prefix sum without
  noise.
  """

  def _build_noise(self) -> noise_lib.StreamingNoise:
    assert isinstance(self._strategy, strategies.BinaryTree)
    return noise_lib.TreeNoise(self._strategy, self._rows, cumulative=True)

  def initial_global_state(self) -> matrix_mechanism.GlobalState:
    """Returns the state before round 0, with a key of its own."""
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), self._rows.record_specs
    )
    return super().initial_global_state()._replace(cumulative_sum=zeros)

  def _release(
    self, sample_state: Any, state: matrix_mechanism.GlobalState
  ) -> tuple[Any, matrix_mechanism.GlobalState]:
    # Not tf.add, which would broadcast a sample of another shape.
    one = tf.constant(1.0, tf.float64)
    total = matrix_mechanism.add_scaled(sample_state, state.cumulative_sum, one)
    result, state = super()._release(total, state)
    return result, state._replace(cumulative_sum=total)

"""The query that all mechanisms share: clip, sum, add correlated noise, say so.

A matrix mechanism is told apart from another only by its strategy and by how its
noise is streamed; each has a small module of its own beside this one.
"""

import collections
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.queries import clipping
from tff_dp_aggregators.queries import dp_query


class GlobalState(NamedTuple):
  """State of a query between rounds.

  Attributes:
    noise: `noise.NoiseState`; secret, because it holds the key.
    clip_norm: L2 bound of a record, float32 scalar.
    cumulative_sum: Sum of all samples so far *without* noise, a structure like a
      record, where the query releases prefix sums; empty where it releases the sum
      of each round. As sensitive as the data.
  """

  noise: Any
  clip_norm: Any
  cumulative_sum: Any


class MatrixMechanismQuery(dp_query.SumAggregationDPQuery):
  """Sums of clipped records with the correlated noise of a strategy.

  In round t the query releases the sum of the round's clipped records plus
  `clip_norm * noise_multiplier * (D z)[t]`, with `D` the strategy's noise matrix and z
  iid standard Gaussian. All rounds together are one Gaussian mechanism with
  effective noise multiplier `noise_multiplier / sens(C)`.

  The sensitivity belongs to the strategy and the participation that the query was
  made from and cannot be given otherwise. That clients really take part no more
  often than the participation says is the caller's to enforce
  (`learning.sampling` does).

  Records are structures of float32 or float64 tensors. One with an entry that is NaN
  or infinite counts as zero.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    participation: Optional[strategies.Participation],
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    seed: Optional[int] = None,
  ):
    """Initializes the query.

    Args:
      strategy: Strategy matrix C, for a number of rounds that cannot be exceeded.
      participation: Who may take part when; `None` means a single participation.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of z over `clip_norm`; 0 adds no noise.
      record_specs: Structure of float tensor specs like a record.
      seed: Makes the noise reproducible, for simulations. `None` draws a secret key
        from the operating system's entropy at each `initial_global_state`.

    Raises:
      TypeError: If a record tensor is neither float32 nor float64.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        participation is for other rounds than the strategy.
    """
    self._clip_norm = check_clip_norm(clip_norm)
    self._noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    if noise_multiplier > 0 and not _is_normal_float32(clip_norm * noise_multiplier):
      raise ValueError(
        'clip_norm * noise_multiplier, the standard deviation of the noise, must be '
        f'a normal float32 number; got {clip_norm} * {noise_multiplier}.'
      )
    self._strategy = strategy
    self._participation = participation or strategies.Participation.single(
      strategy.num_rounds
    )
    self._round_noise_multipliers = events.round_noise_multipliers(
      strategy, self._participation, self._noise_multiplier
    )
    self._rows = noise_lib.GaussianRows(record_specs, seed)
    self._noise = self._build_noise()

  def _build_noise(self) -> noise_lib.StreamingNoise:
    return noise_lib.build(self._strategy, self._rows)

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C."""
    return self._strategy

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    return self._participation

  @property
  def clip_norm(self) -> float:
    """L2 bound of one record."""
    return self._clip_norm

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of z over the clip norm: how loud the noise is."""
    return self._noise_multiplier

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)`: how private all rounds together are."""
    return float(self._round_noise_multipliers[1][-1])

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return events.run_event(self._strategy, self._participation, self._noise_multiplier)

  # TF Privacy's interface.

  def initial_global_state(self) -> GlobalState:
    """Returns the state before round 0, with a key of its own."""
    return GlobalState(
      noise=self._noise.initialize(),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      cumulative_sum=(),
    )

  def derive_sample_params(self, global_state: GlobalState) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know."""
    return global_state.clip_norm

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros like `template`, by default like the query's records."""
    if template is None:
      template = self._rows.record_specs
    return super().initial_sample_state(template)

  def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
    """Returns the record clipped to norm `params`; zeros if it is not finite."""
    clipped, _ = clipping.clip_by_l2_norm(record, params)
    return clipped

  def get_noised_result(
    self, sample_state: Any, global_state: GlobalState
  ) -> tuple[Any, GlobalState, dp_accounting.DpEvent]:
    """Returns the noised sum, the next state and the round's event.

    Args:
      sample_state: Sum of the round's preprocessed records.
      global_state: State before the round.

    Returns:
      The sum with noise; the state after the round; and a `GaussianDpEvent` such
      that the events of all rounds so far compose to what they really spent (its
      noise multiplier is infinite in rounds that add nothing to the worst case).

    Raises:
      tf.errors.InvalidArgumentError: If all rounds of the strategy were used.
    """
    this_round = self._check_round(global_state.noise.round)
    state = global_state._replace(noise=global_state.noise._replace(round=this_round))
    result, state = self._release(sample_state, state)
    event = dp_accounting.GaussianDpEvent(self._noise_multiplier_of(this_round))
    return result, state, event

  def _check_round(self, this_round: tf.Tensor) -> tf.Tensor:
    """Returns the round, after making sure that the strategy has it."""
    in_time = tf.debugging.assert_less(
      this_round,
      tf.constant(self._strategy.num_rounds, tf.int64),
      message=(
        f'This query was built for {self._strategy.num_rounds} rounds and has '
        'served them all; another round would spend privacy that was not '
        'accounted for. Build a query for more rounds.'
      ),
    )
    with tf.control_dependencies([] if in_time is None else [in_time]):
      return tf.identity(this_round)

  def _noise_multiplier_of(self, this_round: tf.Tensor) -> tf.Tensor:
    """Noise multiplier of one round's event."""
    return tf.gather(self._round_noise_multipliers[0], this_round)

  def _effective_noise_multiplier_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """Effective noise multiplier of the first `rounds` rounds together."""
    so_far = np.concatenate([[math.inf], self._round_noise_multipliers[1]])
    return tf.gather(so_far, rounds)

  def _release(self, sample_state: Any, state: GlobalState) -> tuple[Any, GlobalState]:
    noise, noise_state = self._noise.next(state.noise)
    result = add_scaled(sample_state, noise, self._stddev(state))
    return result, state._replace(noise=noise_state)

  def _stddev(self, state: GlobalState) -> tf.Tensor:
    """Standard deviation of z, float64."""
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def derive_metrics(
    self, global_state: GlobalState
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns rounds served, clip norm, noise and what has been spent.

    Nothing of it depends on data or on the key. `effective_noise_multiplier` is that
    of all rounds so far together (infinite before the first): epsilon follows from it.
    """
    rounds = global_state.noise.round
    return collections.OrderedDict(
      rounds=rounds,
      clip_norm=global_state.clip_norm,
      noise_multiplier=tf.constant(self._noise_multiplier, tf.float64),
      effective_noise_multiplier=self._effective_noise_multiplier_after(rounds),
    )

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self._strategy.kind}, {self._participation}, '
      f'clip_norm={self._clip_norm}, noise_multiplier={self._noise_multiplier})'
    )


def check_clip_norm(clip_norm: float) -> float:
  """Returns it as a float, or raises ValueError unless positive and finite.

  Numbers that float32 does not hold, as the state does, count as zero or infinite.
  """
  if not (clip_norm > 0 and math.isfinite(clip_norm)):
    raise ValueError(f'clip_norm must be positive and finite; got {clip_norm}.')
  if not _is_normal_float32(clip_norm):
    raise ValueError(
      f'clip_norm must be a normal float32 number, 1.2e-38 to 3.4e38; got {clip_norm}.'
    )
  return float(clip_norm)


def _is_normal_float32(number: float) -> bool:
  limits = np.finfo(np.float32)
  return float(limits.tiny) <= number <= float(limits.max)


def add_scaled(sample_state: Any, noise: Any, stddev: tf.Tensor) -> Any:
  """`sample_state + stddev * noise`, tensor by tensor.

  Raises:
    ValueError: If the two are not alike in structure or shapes.
  """

  def add(total: tf.Tensor, unit_noise: tf.Tensor) -> tf.Tensor:
    total = tf.convert_to_tensor(total)
    if total.shape != unit_noise.shape or total.dtype != unit_noise.dtype:
      raise ValueError(
        f'the sum to be noised has a {total.dtype.name} tensor of shape '
        f'{total.shape} where record_specs has {unit_noise.dtype.name} of shape '
        f'{unit_noise.shape}.'
      )
    return total + tf.cast(stddev, total.dtype) * unit_noise

  tf.nest.assert_same_structure(sample_state, noise)
  return tf.nest.map_structure(add, sample_state, noise)

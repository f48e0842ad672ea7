"""The query that all mechanisms share: clip, sum, add correlated noise, say so.

A matrix mechanism is told apart from another only by its strategy and by how its
noise is streamed; each has a small module of its own beside this one.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.queries import belonging
from tff_dp_aggregators.queries import clipping
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries import spent as spent_lib


class GlobalState(NamedTuple):
  """State of a query between rounds.

  Attributes:
    noise: `noise.NoiseState`; secret, because it holds the key.
    clip_norm: L2 bound of a record, float32 scalar.
    released: Where the query releases the rows of a workload, what it released last, a
      structure like a record, and before it a second one if there is momentum. Empty
      where it releases the sum of each round.
    belongs_to: The mechanism, as `belonging` writes it; string scalar.
    adaptation: What the next clip norm depends on; empty if it is always the same.
  """

  noise: Any
  clip_norm: Any
  released: Any
  belongs_to: Any
  adaptation: Any = ()


class MatrixMechanismQuery(records.GridSumQuery):
  """Sums of clipped records with the correlated noise of a strategy.

  In round t the query releases the sum of the round's clipped records plus
  `clip_norm * noise_multiplier * (D z)[t]`, with `D` the strategy's noise matrix and z
  iid standard Gaussian. All rounds together are one Gaussian mechanism with
  effective noise multiplier `noise_multiplier / sens(C)`. With a workload it releases
  row t of the workload applied to these sums, which is the same information.

  The sensitivity belongs to the strategy and the participation that the query was
  made from and cannot be given otherwise. That clients really take part no more
  often than the participation says is the caller's to enforce
  (`sampling` does).

  Records are structures of float tensors; half precision is summed, and released, in
  float32. A record with an entry that is NaN or infinite counts as zero.

  Example:
    >>> strategy = strategies.BLT(8, output_scales=(0.3, 0.1), buffer_decays=(0.9, 0.5))
    >>> query = MatrixMechanismQuery(
    ...   strategy,
    ...   strategies.Participation(8, min_separation=4),
    ...   clip_norm=1.0,
    ...   noise_multiplier=2.0,
    ...   record_specs=tf.TensorSpec([3]),
    ...   workload=strategies.Workload(8),
    ... )
    >>> round(query.effective_noise_multiplier, 4)
    1.0471
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
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
      strategy: Strategy matrix C, for a number of rounds that cannot be exceeded.
      participation: Who may take part when, in as many rounds.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of z over `clip_norm`; 0 adds no noise.
      record_specs: Structure of float tensor specs like a record.
      workload: `None` to release the sum of each round (the residual of a prefix sum);
        `Workload(num_rounds)` for prefix sums, with momentum, learning rates or weight
        decay if it has them.
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
        participation or workload is for other rounds than the strategy.
    """
    super().__init__(record_specs)
    strategies.strategy.require(strategy)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    grid.check_noise_multiplier(noise_multiplier)
    self._strategy = strategy
    self._participation = strategies.participation.require(participation)
    self._round_noise_multipliers = events.round_noise_multipliers(
      strategy, self._participation, self._noise_multiplier
    )
    self._workload = _check_workload(workload, strategy.num_rounds)
    self._rows = noise_lib.GaussianRows(self._sum_specs(), seed, generator)
    self._noise = noise_lib.build(strategy, self._rows, storage)

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C."""
    return self._strategy

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    return self._participation

  @property
  def workload(self) -> Optional[strategies.Workload]:
    """Whose rows are released; `None` if it is the sum of each round."""
    return self._workload

  @property
  def storage(self) -> str:
    """Where the noise of earlier rounds is: 'state', 'redraw' or 'files'."""
    return self._noise.storage

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._rows.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return self._rows.seed_identity

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
      released=self._nothing_released(),
      belongs_to=tf.constant(belonging.text_of(self._mechanism())),
    )

  def _mechanism(self) -> dict[str, Any]:
    """What a state belongs to; JSON."""
    return {
      'strategy': f'{self._strategy.kind} {self._strategy.checksum}',
      'num_rounds': self._participation.num_rounds,
      'min_separation': self._participation.min_separation,
      'max_participations': self._participation.max_participations,
      'clip_norm': self._clip_norm,
      'noise_multiplier': self._noise_multiplier,
      'noise': f'{self.generator}, {self.seed_identity}',
      # Of other vectors, rows that are drawn again would be other ones.
      'vectors': self._rows.layout.vectors,
      'released': 'sums' if self._workload is None else repr(self._workload),
    }

  def _sum_specs(self) -> Any:
    """Specs of the sum of preprocessed records."""
    return self._record_specs

  def _nothing_released(self) -> Any:
    if self._workload is None:
      return ()
    zeros = self._rows.layout.zeros
    return (zeros(), zeros()) if self._workload.momentum else (zeros(),)

  def derive_sample_params(self, global_state: GlobalState) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know.

    Args:
      global_state: State before the round.
    """
    return global_state.clip_norm

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, and whether it was finite.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    clipped = clipping.clip_to_grid(self._check(record), params, self._steps(params))
    return clipped.integers, clipped.finite

  def add_without_noise(
    self, params: Any, sample_state: Any, several: Sequence[Any]
  ) -> tuple[Any, tf.Tensor]:
    """Returns a sum with some more records, and which of these were finite.

    Args:
      params: The clip norm, from `derive_sample_params`.
      sample_state: Sum of what `encode_record` returns of records.
      several: The records, structures of float tensors.

    Raises:
      TypeError: As `encode_record`.
      ValueError: As `encode_record`.
    """
    if not self._encodes_as(MatrixMechanismQuery):
      return super().add_without_noise(params, sample_state, several)
    several = [self._check(record) for record in several]
    added = clipping.add_clipped(sample_state, several, params, self._steps(params))
    return added.integers, added.finite

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of records that are stacked, and which of them were finite.

    Args:
      params: The clip norm, from `derive_sample_params`.
      stacked: Structure like a record, with an entry of each tensor for each record.
    """
    if not self._encodes_as(MatrixMechanismQuery):
      return super().sum_without_noise(params, stacked)
    added = clipping.sum_clipped(stacked, params, self._steps(params))
    return added.integers, added.finite

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    """Steps of the grid in 1, for a clip norm."""
    return grid.steps_per_unit(clip_norm, self._noise_multiplier)

  def get_noised_result(
    self, sample_state: Any, global_state: GlobalState
  ) -> tuple[Any, GlobalState, dp_accounting.DpEvent]:
    """Returns the noised sum, the next state and the round's event.

    Args:
      sample_state: Sum of the round's preprocessed records, integers.
      global_state: State before the round.

    Returns:
      The sum with noise; the state after the round; and a `GaussianDpEvent` such
      that the events of all rounds so far compose to what they really spent (its
      noise multiplier is infinite in rounds that add nothing to the worst case).

    Raises:
      tf.errors.InvalidArgumentError: If all rounds of the strategy were used, or the
        state belongs to another mechanism.
    """
    this_round = belonging.check(
      global_state.belongs_to,
      belonging.text_of(self._mechanism()),
      global_state.noise.round,
    )
    this_round = self._check_round(this_round)
    state = global_state._replace(noise=global_state.noise._replace(round=this_round))
    result, state = self._release(sample_state, state)
    event = dp_accounting.GaussianDpEvent(self._noise_multiplier_of(this_round))
    return result, state, event

  def _check_round(self, this_round: tf.Tensor) -> tf.Tensor:
    """Returns the round, after making sure that the strategy has it."""
    return check_round(this_round, self._strategy.num_rounds)

  def _noise_multiplier_of(self, this_round: tf.Tensor) -> tf.Tensor:
    """Noise multiplier of one round's event."""
    return tf.gather(self._round_noise_multipliers[0], this_round)

  def _effective_noise_multiplier_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """Effective noise multiplier of the first `rounds` rounds together."""
    so_far = np.concatenate([[math.inf], self._round_noise_multipliers[1]])
    return tf.gather(so_far, rounds)

  def _release(self, sample_state: Any, state: GlobalState) -> tuple[Any, GlobalState]:
    noise, noise_state = self._noise.next(state.noise)
    noised = self._add_noise(sample_state, noise, state)
    result, state = self._publish(noised, state)
    return result, state._replace(noise=noise_state)

  def _add_noise(self, sample_state: Any, noise: Any, state: GlobalState) -> Any:
    """Their sum in floating point, of which the grid is as exact as the dtype."""
    steps = self._steps(state.clip_norm)
    noised = grid.add_noise(sample_state, noise, self._stddev(state) * steps)
    return grid.to_floats(noised, self._record_specs, steps)

  def _publish(self, noised_sum: Any, state: GlobalState) -> tuple[Any, GlobalState]:
    """The result that follows from the noised sum, and what else does in the state."""
    if self._workload is None:
      return noised_sum, state
    released = self._apply_workload(noised_sum, state)
    return released[-1], state._replace(released=released)

  def _apply_workload(self, noised_sum: Any, state: GlobalState) -> Any:
    """Total and, before it, velocity: what was released last, with one more round."""
    workload = self._workload
    assert workload is not None
    step, total = noised_sum, state.released[-1]
    if workload.momentum:
      momentum = tf.constant(workload.momentum, tf.float64)
      step = _add_scaled(noised_sum, state.released[0], momentum)
    rate = tf.constant(1.0, tf.float64)
    if workload.learning_rates is not None:
      rates = tf.constant(workload.learning_rates, tf.float64)
      rate = tf.gather(rates, state.noise.round)
    if workload.weight_decay:
      lost = tf.constant(-workload.weight_decay, tf.float64)
      total = _add_scaled(total, total, lost)
    total = _add_scaled(total, step, rate)
    return (step, total) if workload.momentum else (total,)

  def _stddev(self, state: GlobalState) -> tf.Tensor:
    """Standard deviation of z, float64."""
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def signal_and_noise(
    self, sample_state: Any, global_state: GlobalState
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the norm of a round's exact sum, and the mean square of its noise's.

    That of the noise is d stddev^2 ||row t of C^-1||^2, for d coordinates. With a
    workload both are still of the sum of the round alone.

    Args:
      sample_state: Sum of the round's preprocessed records; the norm is not private.
      global_state: State before the round.
    """
    row_norms = self._strategy.noise_row_norms()
    # A Gaussian sum without a plan repeats its one round.
    this_round = tf.minimum(global_state.noise.round, len(row_norms) - 1)
    stddev = self._stddev(global_state) * tf.gather(row_norms, this_round)
    signal = grid.norm(sample_state, self._steps(global_state.clip_norm))
    return signal, self._num_coordinates() * tf.square(stddev)

  def spent(self, global_state: GlobalState) -> spent_lib.GaussianSpent:
    """Returns the noise multipliers of all rounds together, and of the last.

    Args:
      global_state: State after some rounds.
    """
    rounds = global_state.noise.round
    last = self._noise_multiplier_of(tf.maximum(rounds - 1, 0))
    infinite = tf.constant(math.inf, tf.float64)
    return spent_lib.GaussianSpent(
      tf.where(rounds > 0, tf.cast(last, tf.float64), infinite),
      self._effective_noise_multiplier_after(rounds),
    )

  def derive_metrics(
    self, global_state: GlobalState
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns rounds served, clip norm, noise and what has been spent.

    Nothing of it depends on data. `effective_noise_multiplier` is that of all rounds so
    far together (infinite before the first): epsilon follows from it. `noise_storage`
    and `noise_generator` are string tensors, `storage` and `generator`; so is
    `noise_key_tag`, which differs where secret keys do, and from which no key follows:
    of two runs with the same one nothing is known together. It is empty with a seed.

    Args:
      global_state: State after some rounds.
    """
    rounds = global_state.noise.round
    return collections.OrderedDict(
      rounds=rounds,
      clip_norm=global_state.clip_norm,
      noise_multiplier=tf.constant(self._noise_multiplier, tf.float64),
      effective_noise_multiplier=self._effective_noise_multiplier_after(rounds),
      noise_storage=tf.constant(self.storage),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=self._rows.key_tag(global_state.noise.key),
    )

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self._strategy.kind}, {self._participation}, '
      f'clip_norm={self._clip_norm}, noise_multiplier={self._noise_multiplier})'
    )


def check_round(this_round: tf.Tensor, num_rounds: int) -> tf.Tensor:
  """Returns the round, after making sure that it is one of those planned."""
  in_time = tf.debugging.Assert(
    this_round < tf.constant(num_rounds, tf.int64),
    [
      f'This query was built for {num_rounds} rounds and has served them all; another '
      'round would spend privacy that was not accounted for. What comes after them is '
      'a run of its own: begin one with `initialize`, and add up what both spend.'
    ],
  )
  with tf.control_dependencies([] if in_time is None else [in_time]):
    return tf.identity(this_round)


def _check_workload(
  workload: Optional[strategies.Workload], num_rounds: int
) -> Optional[strategies.Workload]:
  if workload is None:
    return None
  if not isinstance(workload, strategies.Workload):
    raise TypeError(
      'workload must be a strategies.Workload or None, got '
      f'{type(workload).__name__}: only these can be applied round by round.'
    )
  if workload.num_rounds != num_rounds:
    raise ValueError(
      f'workload is for {workload.num_rounds} rounds, but the strategy for '
      f'{num_rounds}.'
    )
  return workload


def _add_scaled(one: Any, other: Any, factor: tf.Tensor) -> Any:
  """`one + factor * other`, tensor by tensor."""
  return tf.nest.map_structure(
    lambda x, y: x + tf.cast(factor, x.dtype) * y, one, other
  )

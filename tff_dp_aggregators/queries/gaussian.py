"""The Gaussian sum: independent noise in every round (DP-FedAvg)."""

import math
from typing import Any, Optional

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import matrix_mechanism
from tff_dp_aggregators.queries import participations as participations_lib


class GaussianSumQuery(matrix_mechanism.MatrixMechanismQuery):
  """Clips records, sums them and adds independent Gaussian noise (1710.06963).

  The identity strategy: with `participation`, rounds in which a client cannot take
  part cost it nothing.

  Example:
    >>> query = GaussianSumQuery(
    ...   strategies.Participation(num_rounds=10, min_separation=5),
    ...   clip_norm=1.0,
    ...   noise_multiplier=2.0,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> for record in [[3.0, 0.0, 4.0], [0.0, 0.5, 0.0]]:
    ...   sample = query.accumulate_record(params, sample, tf.constant(record))
    >>> (sample / 2**34).numpy().round(3).tolist()  # In steps: 2^34 are 1 here.
    [0.6, 0.5, 0.8]
    >>> noised, state, event = query.get_noised_result(sample, state)
    >>> float(event.noise_multiplier)
    2.0
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
        that a client may take part in every round, and serves any number of them;
        there is no event of a whole run then, only of each round.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of the noise over `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise, for simulations; `None` for secret noise: see
        `noise.Seed`.
      generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, or a shape is not fully defined.
    """
    self._unlimited = participation is None
    planned = planned_rounds(participation)
    super().__init__(
      strategies.Identity(planned.num_rounds),
      planned,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      seed=seed,
      generator=generator,
    )

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients.

    Raises:
      ValueError: If the number of rounds is not limited.
    """
    self._check_limited()
    return super().participation

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)` of all rounds together.

    Raises:
      ValueError: If the number of rounds is not limited.
    """
    self._check_limited()
    return super().effective_noise_multiplier

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together.

    Raises:
      ValueError: If the number of rounds is not limited.
    """
    self._check_limited()
    return super().run_event()

  def _check_limited(self) -> None:
    if self._unlimited:
      raise participations_lib.unlimited()

  def _mechanism(self) -> dict[str, Any]:
    return {**super()._mechanism(), **({'num_rounds': None} if self._unlimited else {})}

  def _check_round(self, this_round: tf.Tensor) -> tf.Tensor:
    return this_round if self._unlimited else super()._check_round(this_round)

  def _noise_multiplier_of(self, this_round: tf.Tensor) -> tf.Tensor:
    if not self._unlimited:
      return super()._noise_multiplier_of(this_round)
    return tf.constant(self._noise_multiplier, tf.float64)

  def _effective_noise_multiplier_after(self, rounds: tf.Tensor) -> tf.Tensor:
    if not self._unlimited:
      return super()._effective_noise_multiplier_after(rounds)
    # Infinite before the first round, also without noise.
    return tf.where(
      rounds > 0,
      self._noise_multiplier / tf.sqrt(tf.cast(rounds, tf.float64)),
      tf.constant(math.inf, tf.float64),
    )


def planned_rounds(
  participation: Optional[strategies.Participation],
) -> strategies.Participation:
  """What is planned for: without a participation one round, and that again and again.

  Args:
    participation: Who may take part when, or `None` for everybody in every round.

  Raises:
    TypeError: If it is neither a participation nor `None`.
  """
  if participation is None:
    return strategies.Participation(num_rounds=1)
  return strategies.participation.require(participation)

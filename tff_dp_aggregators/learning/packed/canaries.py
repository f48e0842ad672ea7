"""Inserts canaries (`accounting.canaries`) into rounds of packed simulation.

Canaries are numbered after all clients and take part as clients do. Depending on a coin
flip, a canary's update is either a random direction of the whole model, with a norm of
ten clip norms, so that clipping is tested as well; or zeros.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import canaries as canaries_lib
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.sampling import draws

# Norm of a canary's update, in clip norms.
_NORM = 10.0
_COINS, _DIRECTIONS = 0, 1  # Keys of the generators for coins and directions.
_ROUND, _TOOK_PART = 'round', 'took_part'


@dataclasses.dataclass(frozen=True)
class Canaries:
  """The canaries of a run, which are determined by its seed."""

  number: int  # How many canaries there are.
  seed: int  # The run's seed, which coins and directions do not reveal.
  confidence: float = canaries_lib.CONFIDENCE  # Probability that all bounds are right.

  @functools.cached_property
  def own_seed(self) -> str:
    """Seed of coins and directions, in hex; a slow hash of the run's seed."""
    return ledger.tag_of_seed('canaries', self.seed).partition(':')[2]

  @functools.cached_property
  def inserted(self) -> np.ndarray:
    """The coins: bool of shape [canaries]."""
    return self._generator(_COINS).integers(2, size=self.number).astype(bool)

  def _generator(self, *key: int) -> np.random.Generator:
    return draws.generator(int(self.own_seed, 16), *key)

  def directions(self, size: int) -> np.ndarray:
    """Independent directions of norm 1: float32 of shape [canaries, size]."""
    directions = np.empty([self.number, size], np.float32)
    for i, direction in enumerate(directions):
      self._generator(_DIRECTIONS, i).standard_normal(dtype=np.float32, out=direction)
      direction /= np.linalg.norm(direction.astype(np.float64))
    return directions

  def ids_after(self, ids: Sequence[Any]) -> Sequence[Any]:
    """Appends the canaries' ids to those by which clients are drawn."""
    if ids == range(len(ids)):
      return range(len(ids) + self.number)
    return [*ids, *(f'audit canary {i}' for i in range(self.number))]

  # A run has a file with each round's release projected onto each direction, and the
  # bits of the canaries that took part.

  def row(
    self, number: int, took_part: np.ndarray, projections: np.ndarray
  ) -> dict[str, Any]:
    """Returns a round's row of the file; `took_part` has the numbers of canaries."""
    is_in_round = np.zeros(self.number, bool)
    is_in_round[took_part] = True
    return {
      _ROUND: number,
      _TOOK_PART: np.packbits(is_in_round).tobytes().hex(),
      **{str(i): f'{each:.9g}' for i, each in enumerate(projections.tolist())},
    }

  def record(
    self, rows: Sequence[Mapping[str, str]], mechanism: accounting.Mechanism
  ) -> canaries_lib.Record:
    """Computes an attacker's scores from the rows of the file."""
    took_part = np.zeros([len(rows), self.number], bool)
    for of_round, each in zip(took_part, rows):
      packed = np.frombuffer(bytes.fromhex(each[_TOOK_PART]), np.uint8)
      of_round[:] = np.unpackbits(packed, count=self.number)
    names = list(map(str, range(self.number)))
    projections = [[float(each[name]) for name in names] for each in rows]
    scores = canaries_lib.scores(np.array(projections), took_part, mechanism)
    return canaries_lib.Record(self.inserted, scores, len(rows), self.confidence)

  def to_json(self) -> dict[str, Any]:
    """The canaries' entry in a run's configuration."""
    return {
      'num_canaries': self.number,
      'confidence': self.confidence,
      'seed': self.own_seed,
      'inserted': canaries_lib.coins(self.inserted),
    }


class Insertion:
  """Adds canaries to the graph of a round."""

  def __init__(self, canaries: Canaries, clip_norm: float, server: server_lib.Server):
    self._server = server
    self._sizes = [spec.shape.num_elements() for spec in server.specs]
    self._norms = (_NORM * clip_norm * canaries.inserted).astype(np.float32)
    self.directions = tf.constant(canaries.directions(sum(self._sizes)))
    # Additional arguments of a round: directions, and numbers of canaries.
    self.specs = (
      tf.TensorSpec(self.directions.shape, tf.float32),
      tf.TensorSpec([None], tf.int32),
    )

  def add(
    self, state: Any, sums: Any, directions: tf.Tensor, numbers: tf.Tensor
  ) -> Any:
    """Adds the updates of a round's canaries, clipped and encoded, to its sums."""
    _, params = self._server.for_clients(state)
    norms = tf.constant(self._norms)
    no_metrics = tf.nest.map_structure(
      lambda zero: zero[tf.newaxis], self._server.zeros()[2]
    )

    def body(place: tf.Tensor, sums: Any) -> Any:  # One by one, as each is large.
      number = numbers[place]
      split = tf.split(norms[number] * directions[number], self._sizes)
      update = tuple(
        tf.cast(tf.reshape(each, [1, *spec.shape]), spec.dtype)
        for each, spec in zip(split, self._server.specs)
      )
      added = self._server.sum(params, training_lib.Trained(update, no_metrics))
      return tf.nest.map_structure(tf.add, sums, added)

    return training_lib.fold(body, tf.shape(numbers)[0], sums)

"""Noise whose past is kept in files; the state is a key and a round."""

import abc
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_dp_aggregators.noise import file_cache
from tff_dp_aggregators.noise import interpreters
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming

_numbers = itertools.count(1)


class PersistentNoise(streaming.StreamingNoise):
  """Keeps what a round needs of earlier ones in files.

  If something is not there, all rounds so far are computed again.
  """

  storage = 'files'

  def __init__(
    self,
    rows: rows_lib.GaussianRows,
    num_slots: int,
    files: file_cache.Files,
    identity: str,
  ):
    """Initializes the noise; `num_slots` model-sized vectors are kept."""
    super().__init__(rows)
    directory = files.open(num_slots * rows.layout.num_bytes)
    # Noise in one temporary directory shares no file, even if it shares a seed.
    number = next(_numbers) if files.directory is None else 0
    vectors = rows.layout.vectors
    made_by = f'{identity} {rows.generator} {vectors} {num_slots} {number} 1'
    self._cache = file_cache.Cache(directory, made_by)

  def names(self, key: tf.Tensor, this_round: tf.Tensor) -> file_cache.Names:
    """The files that are there when a round begins.

    Args:
      key: Of the rows of z.
      this_round: An int64 scalar.
    """
    return self._cache.names(key, this_round)

  @abc.abstractmethod
  def needs(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What a round reads: slots and stamps, int64 of shape [reads]."""

  @abc.abstractmethod
  def _attempt(
    self, names: file_cache.Names, key: tf.Tensor, this_round: tf.Tensor
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Serves a round if what it needs is there.

    Returns:
      Whether it was, and the round's noise, of no meaning if it was not.
    """

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """Makes the round's noise of its row of z and the files, and changes these.

    Args:
      state: From `initialize` or the round before.

    Returns:
      The noise, a structure like a record, and the next state.

    Raises:
      tf.errors.OpError: If a file cannot be written or read.
    """

    def advance(
      this_round: tf.Tensor, again: tf.Tensor, noise: Any
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
      del noise
      names = self.names(state.key, this_round)
      found, noise = self._attempt(names, state.key, this_round)
      recovers = tf.debugging.Assert(
        found | ~again,
        ['The files of noise in', self._cache.directory, 'cannot be read back.'],
      )
      says = tf.cond(found, tf.no_op, lambda: self._say_lost(this_round))
      with tf.control_dependencies([op for op in (recovers, says) if op is not None]):
        return tf.where(found, this_round + 1, 0), again | ~found, noise

    zeros = [tf.zeros([size], tf.float64) for size in self._rows.layout.sizes]
    _, _, noise = tf.while_loop(
      lambda this_round, *_: this_round <= state.round,
      advance,
      (state.round, tf.constant(False), zeros),
      parallel_iterations=1,
    )
    after = state._replace(round=state.round + 1)
    return self._rows.layout.unflatten(noise), after

  def _say_lost(self, this_round: tf.Tensor) -> tf.Operation:
    return tf.print(
      'tff_dp_aggregators: noise that round',
      this_round,
      'needs is not in',
      self._cache.directory,
      '(any more); computing all rounds again.',
    )


class PersistentPastValues(PersistentNoise):
  """Has a file for each slot of `PastValues`."""

  def __init__(
    self,
    past: interpreters.PastValues,
    rows: rows_lib.GaussianRows,
    files: file_cache.Files,
    identity: str,
  ):
    """Initializes the noise.

    Args:
      past: Interprets the recursion.
      rows: Source of the rows of z.
      files: Where to keep what it remembers.
      identity: Of the strategy, so that no other one's files are used.

    Raises:
      OSError: As `file_cache.Files.open`.
      RuntimeError: As `file_cache.Files.open`.
    """
    super().__init__(rows, past.num_slots, files, identity)
    self._past = past

  def needs(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The slots with a weight in the round, and the rounds that wrote them."""
    step = self._past.step(this_round)
    slots = step.read_slots()
    return slots, tf.gather(step.stamps, slots)

  def _attempt(
    self, names: file_cache.Names, key: tf.Tensor, this_round: tf.Tensor
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Reads the slots with a weight, and writes the round's own."""
    step = self._past.step(this_round)
    slots = step.read_slots()
    noise, kept, found = [], [], []
    dtypes = self._rows.layout.dtypes
    for position, vector in enumerate(self._rows.row(key, this_round)):
      dtype = dtypes[position]
      is_there, sums = _weighted_sums(names, step, slots, position, vector, dtype)
      found.append(is_there)
      noise.append(sums[0])
      values = {'noise': sums[0], 'row': vector, 'other': sums[-1]}
      kept.append(tf.cast(values[self._past.keeps], dtype))

    def write() -> tf.Operation:
      return tf.group(
        [
          names.write(step.slot, position, this_round, vector)
          for position, vector in enumerate(kept)
        ]
      )

    return _once_written(tf.reduce_all(found), write, noise)


def _weighted_sums(
  names: file_cache.Names,
  step: interpreters.Step,
  slots: tf.Tensor,
  position: int,
  vector: tf.Tensor,
  dtype: tf.DType,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Whether all slots were found, and the outputs of a step for one vector of z."""
  outputs = range(step.fresh.shape[0])
  past = tf.cast(step.past, dtype)

  def add(
    number: tf.Tensor, found: tf.Tensor, sums: list[tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    slot = slots[number]
    is_there, value = names.read(
      slot, position, step.stamps[slot], vector.shape[0], dtype
    )
    sums = [total + past[output, slot] * value for output, total in zip(outputs, sums)]
    return number + 1, found & is_there, sums

  _, found, sums = tf.while_loop(
    lambda number, found, _: found & (number < tf.size(slots)),
    add,
    (tf.constant(0), tf.constant(True), [tf.zeros(vector.shape, dtype)] * len(outputs)),
    parallel_iterations=1,
  )
  return found, [
    step.fresh[output] * vector + tf.cast(sums[output], vector.dtype)
    for output in outputs
  ]


class PersistentDecays(PersistentNoise):
  """Has a file for each sum and each of the last rounds."""

  def __init__(
    self,
    past: interpreters.Decays,
    rows: rows_lib.GaussianRows,
    files: file_cache.Files,
    identity: str,
  ):
    """Initializes the noise.

    Args:
      past: Interprets the recursion.
      rows: Source of the rows of z.
      files: Where to keep what it remembers.
      identity: Of the strategy, so that no other one's files are used.

    Raises:
      OSError: As `file_cache.Files.open`.
      RuntimeError: As `file_cache.Files.open`.
    """
    self._num_generations = files.rewind + 1
    num_slots = past.num_slots * self._num_generations
    super().__init__(rows, num_slots, files, identity)
    self._past = past

  def needs(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The sums before the round, all of them."""
    slots = self._slots(this_round)
    return slots, tf.fill(tf.shape(slots), this_round)

  def _slots(self, this_round: tf.Tensor) -> tf.Tensor:
    """Where the sums before a round are."""
    num_sums = self._past.num_slots
    first = this_round % self._num_generations * num_sums
    return first + tf.range(num_sums, dtype=tf.int64)

  def _attempt(
    self, names: file_cache.Names, key: tf.Tensor, this_round: tf.Tensor
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Reads all sums and writes them anew; before the first round they are zeros."""
    layout = self._rows.layout
    vectors = list(zip(layout.sizes, layout.dtypes))
    num_sums = self._past.num_slots

    def read() -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
      found, sums = [], []
      slots = self._slots(this_round)
      for position, (size, dtype) in enumerate(vectors):
        each = [
          names.read(slots[number], position, this_round, size, dtype)
          for number in range(num_sums)
        ]
        found += [is_there for is_there, _ in each]
        sums.append([vector for _, vector in each])
      return tf.reduce_all(found), sums

    def none() -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
      zeros = [[tf.zeros([size], dtype)] * num_sums for size, dtype in vectors]
      return tf.constant(True), zeros

    found, sums = tf.cond(this_round > 0, read, none)
    noise, sums = self._past.advance(self._rows, key, this_round, sums)
    after = this_round + 1

    def write() -> tf.Operation:
      slots = self._slots(after)
      return tf.group(
        [
          names.write(slots[number], position, after, total[number])
          for position, total in enumerate(sums)
          for number in range(num_sums)
        ]
      )

    return _once_written(found, write, noise)


def _once_written(
  found: tf.Tensor, write: Callable[[], tf.Operation], noise: list[tf.Tensor]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Writes what is kept, if the round was made of what was found, and goes on."""
  written = tf.cond(found, write, tf.no_op)
  with tf.control_dependencies([] if written is None else [written]):
    return tf.identity(found), [tf.identity(vector) for vector in noise]

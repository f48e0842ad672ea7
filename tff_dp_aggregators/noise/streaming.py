"""Streaming noise: pure functions `initialize` and `next` of an explicit state.

For a mechanism with noise matrix `D` (`Strategy.noise_matrix`; `C^-1` for a square
strategy) the t-th call of `next` returns `(D z)[t]` with z of unit variance. The caller
scales it by clip norm and noise multiplier.

`strategies.recursion` describes as data how a round depends on earlier ones. An
interpreter (`_INTERPRETERS`) computes a round's noise as a weighted sum of its row of z
and of stored values, and updates these. `CarriedNoise` stores them in the state,
`files.FilesNoise` in files, and `RedrawnNoise` draws earlier rows again.
"""

import abc
import collections
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib

_logger = logging.getLogger(__name__)
# Limit of a state that stays in one process; computing a round needs two of them.
_MAX_STATE_BYTES = 4 * 2**30

# Recursions of up to this many rounds are checked against the matrix, in milliseconds.
_MAX_CHECKED_ROUNDS = 128


def hidden_buffers(vectors: Iterable[Any]) -> Any:
  """Returns the buffers of a state as a named tuple whose repr hides their values.

  TFF prints a part of a state that does not fit a process, and a plain list would print
  its numbers. TFF's checkpoints lose the type of other sequences.
  """
  vectors = tuple(vectors)
  return _buffers_class(len(vectors))(*vectors) if vectors else ()


@functools.cache
def _buffers_class(size: int) -> Any:
  fields = [f'vector_{number}' for number in range(size)]

  def show(values: Any) -> str:
    shown = (f'{name}={hidden(each)}' for name, each in zip(fields, values))
    return f'Buffers({", ".join(shown)})'

  def reduce(values: Any) -> tuple[Any, Any]:
    return hidden_buffers, (tuple(values),)

  # Methods are set, because checkpoints do not treat a subclass as a named tuple.
  kind = collections.namedtuple('Buffers', fields)  # type: ignore[misc]
  for name, method in (('__repr__', show), ('__reduce__', reduce)):
    setattr(kind, name, method)
  return kind


class NoiseState(NamedTuple):
  """State of the noise between rounds; key and buffers are secret, and never shown."""

  key: Any  # int64 [4].
  round: Any  # The next round, int64.
  buffers: Any  # [buffers, size] for each vector of the layout.

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(key={hidden(self.key)}, round={self.round!r}, '
      f'buffers={hidden_buffers(self.buffers)!r})'
    )


def hidden(secret: Any) -> str:
  """Returns a text with the dtype and shape of a secret tensor or array."""
  dtype = getattr(secret, 'dtype', None)
  if dtype is None:
    return '<secret>'
  return f'<secret {tf.as_dtype(dtype).name}, shape {tuple(secret.shape)}>'


class StreamingNoise(abc.ABC):
  """Correlated noise, one round after the other, as two pure functions.

  Equal states give equal noise, bit by bit in each of eager mode, `tf.function` and TFF
  computations, and up to rounding between them.
  """

  storage: str  # Where values of earlier rounds are: one of `options.STORAGES`.

  def __init__(
    self,
    rows: rows_lib.GaussianRows,
    scaling: Sequence[recursion_lib.Scaled] = (),
  ):
    """Initializes the noise, which is multiplied by `scaling`, in this order."""
    self._rows = rows
    self._scaling = scaling

  def initialize(self) -> NoiseState:
    """Returns the state before round 0."""
    zeros = [
      tf.zeros([self.num_buffers, size], dtype)
      for dtype, size in zip(self._rows.layout.dtypes, self._rows.layout.sizes)
    ]
    return NoiseState(
      self._rows.new_key(),
      tf.constant(0, tf.int64),
      hidden_buffers(zeros if self.num_buffers else ()),
    )

  @property
  def num_buffers(self) -> int:
    """Number of model-sized buffers in the state."""
    return 0

  @abc.abstractmethod
  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Returns the round's noise, a structure like a record, and the next state."""

  def _emitted(self, vectors: list[tf.Tensor], this_round: tf.Tensor) -> Any:
    """Returns the round's noise like a record, scaled; stored values are not scaled."""
    noise = self._rows.layout.unflatten(vectors)
    for scaled in self._scaling:
      factor = _factor(scaled, this_round)
      noise = tf.nest.map_structure(
        lambda tensor, factor=factor: tf.cast(factor, tensor.dtype) * tensor, noise
      )
    return noise


class Step(NamedTuple):
  """Weights of one round of `PastValues`.

  Outputs are the noise and the value to store, unless it is the noise or the row of z.
  """

  fresh: tf.Tensor  # Weights of the round's row of z, float64 of shape [outputs].
  past: tf.Tensor  # Weights of the stored values, float64 of shape [outputs, slots].
  # Round in which the value of a slot was written, int64 of shape [slots]; without
  # meaning where the weights are 0.
  stamps: tf.Tensor
  slot: tf.Tensor  # The slot for this round's value, an int64 scalar.

  def read_slots(self) -> tf.Tensor:
    """Returns the slots with nonzero weights, int64 of shape [reads], latest first."""
    slots = tf.where(tf.reduce_any(tf.not_equal(self.past, 0.0), axis=0))[:, 0]
    # In this order no sum depends on the number of slots.
    stamps = tf.gather(self.stamps, slots)
    return tf.gather(slots, tf.argsort(stamps, direction='DESCENDING'))


class Memory:
  """Values that a round reads and writes, in slots for each vector of the layout.

  Reads return the values from before the round; written values are for later rounds.
  Here they are in buffers of shape [slots, size]; `after` has those after the round.
  """

  def __init__(self, buffers: Iterable[tf.Tensor]):
    self._buffers = list(buffers)
    self.after = list(self._buffers)

  def weighted(self, position: int, step: Step) -> tf.Tensor:
    """Returns the weighted sums of a vector's slots, of shape [outputs, size]."""
    buffer = self._buffers[position]
    return tf.linalg.matmul(tf.cast(step.past, buffer.dtype), buffer)

  def read(
    self, position: int, slots: list[tf.Tensor], stamp: tf.Tensor
  ) -> list[tf.Tensor]:
    """Returns the values that round `stamp` wrote to slots; zeros before round 0."""
    del slots, stamp  # This class always returns all slots.
    return tf.unstack(self._buffers[position])

  def write(
    self, position: int, slots: list[tf.Tensor], vectors: list[tf.Tensor]
  ) -> None:
    """Stores vectors of the round, one for each slot, of shape [size]."""
    before = self._buffers[position]
    if len(vectors) == before.shape[0]:
      self.after[position] = tf.stack(vectors)  # In the order of the slots.
    else:
      indices = tf.stack(slots)[:, tf.newaxis]
      self.after[position] = tf.tensor_scatter_nd_update(before, indices, vectors)


# Function that returns row t of z, as the vectors of the layout.
Draw = Callable[[tf.Tensor], list[tf.Tensor]]


class Interpreter(abc.ABC):
  """Base class of the interpreters of recursions."""

  num_slots: int  # Number of slots of a `Memory` that it uses.

  @abc.abstractmethod
  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Returns the noise of a round, and updates the memory."""


class PastValues(Interpreter):
  """Stores one value of each round, in a slot that a later round overwrites."""

  # The stored value: 'noise', 'row', or 'other', the second output of `step`.
  keeps: str

  @abc.abstractmethod
  def step(self, this_round: tf.Tensor) -> Step:
    """Returns the weights of a round, an int64 scalar."""

  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Adds weighted stored values to the row of z, and stores one value."""
    step = self.step(this_round)
    noise = []
    for position, row in enumerate(draw(this_round)):
      sums = memory.weighted(position, step)
      outputs = step.fresh[:, tf.newaxis] * row + tf.cast(sums, row.dtype)
      noise.append(outputs[0])
      kept = {'noise': outputs[0], 'row': row, 'other': outputs[-1]}[self.keeps]
      memory.write(position, [step.slot], [tf.cast(kept, sums.dtype)])
    return noise


class LastRounds(PastValues):
  """Interprets `recursion.LastRounds`; round t writes slot t modulo `num_slots`."""

  def __init__(self, recursion: recursion_lib.LastRounds, rewind: int):
    self.keeps = 'other' if recursion.remembers == 'sum' else recursion.remembers
    self.num_slots = recursion.num_lags + rewind
    self._recursion = recursion

  def step(self, this_round: tf.Tensor) -> Step:
    """Converts the round's weights from order by lag to order by slot."""
    weights, sums = self._recursion.weights, self._recursion.sums
    tables = [weights] if sums is None else [weights, sums]
    row = tf.minimum(this_round, len(weights) - 1)
    by_lag = [tf.gather(tf.constant(table, tf.float64), row) for table in tables]
    last = this_round - 1
    slots = tf.range(self.num_slots, dtype=tf.int64)
    # Slot s holds the value of the latest round that is s modulo `num_slots`.
    stamps = last - (last - slots) % max(self.num_slots, 1)
    lag = this_round - stamps
    known = (stamps >= 0) & (lag <= self._recursion.num_lags)
    fresh = tf.stack([each[0] for each in by_lag])
    past = tf.stack([tf.gather(each, tf.where(known, lag, 0)) for each in by_lag])
    slot = this_round % max(self.num_slots, 1)
    return Step(fresh, tf.where(known, past, 0.0), stamps, slot)


class TreeNodes(PastValues):
  """Interprets `recursion.TreeNodes`; the nodes of a level take turns in its slots."""

  def __init__(self, recursion: recursion_lib.TreeNodes, rewind: int):
    self.keeps = 'row' if recursion.combination is None else 'other'
    self._recursion = recursion
    levels = np.arange(recursion.num_levels)
    # Number of values of a level that the last `rewind` rounds may need: one, and one
    # for each time that these rounds write it, every 2^(level + 1) rounds of a tree.
    written = -(-rewind // (2 << levels))
    if recursion.tree_rounds is not None:
      written += -(-rewind // recursion.tree_rounds)
    self._versions = 1 + np.minimum(rewind, written)
    self._first_slots = np.cumsum(self._versions) - self._versions
    self.num_slots = int(self._versions.sum())

  def step(self, this_round: tf.Tensor) -> Step:
    """Weights the left children on the levels below that of the round's node."""
    recursion = self._recursion
    levels = tf.range(recursion.num_levels, dtype=tf.int64)
    weights = tf.constant(recursion.weights, tf.float64)
    in_tree = this_round
    if recursion.tree_rounds is not None:
      in_tree = this_round % recursion.tree_rounds
    ending_ones = tf.bitwise.bitwise_xor(in_tree, in_tree + 1)
    height = tf.cast(tf.raw_ops.PopulationCount(x=ending_ones), tf.int64) - 1
    replaced = levels < height
    # The left child of a level was completed 2^level rounds ago.
    stamps = tf.where(
      replaced, this_round - tf.bitwise.left_shift(tf.ones_like(levels), levels), -1
    )
    own_weight = tf.gather(weights, height)
    if recursion.combination is None:
      outputs, fresh = [-weights], [own_weight]
    else:
      combination = tf.gather(tf.constant(recursion.combination, tf.float64), height)
      own = combination[height]
      outputs = [own_weight * combination - weights, combination]
      fresh = [own_weight * own, own]
    past = tf.where(replaced[:, tf.newaxis], tf.stack(outputs, axis=1), 0.0)
    shape = tf.constant([self.num_slots, len(outputs)], tf.int64)
    indices = self._slots(levels, stamps)[:, tf.newaxis]
    return Step(
      tf.stack(fresh),
      tf.transpose(tf.scatter_nd(indices, past, shape)),
      tf.scatter_nd(indices, stamps, shape[:1]),
      self._slots(levels, tf.fill(tf.shape(levels), this_round))[height],
    )

  def _slots(self, levels: tf.Tensor, stamps: tf.Tensor) -> tf.Tensor:
    """Returns the slots of the values that these rounds wrote on these levels."""
    half = tf.bitwise.left_shift(tf.ones_like(levels), levels)
    tree_rounds = self._recursion.tree_rounds
    if tree_rounds is None:
      written = stamps // (2 * half)
    else:
      in_a_tree = (tree_rounds + half) // (2 * half)
      written = stamps // tree_rounds * in_a_tree + stamps % tree_rounds // (2 * half)
    return tf.constant(self._first_slots) + written % tf.constant(self._versions)


class Decays(Interpreter):
  """Interprets `recursion.DecayingSums`; each round writes all sums."""

  def __init__(self, recursion: recursion_lib.DecayingSums, rewind: int):
    self.num_slots = recursion.num_sums * (rewind + 1)
    self._recursion = recursion

  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Computes noise and sums for each copy, vector by vector."""
    newest = draw(this_round)
    drawn = [newest]
    for copy in range(1, self._recursion.copies):
      index = this_round - copy * self._recursion.delay
      drawn.append(  # Before the first row there are zeros.
        tf.cond(
          index >= 0,
          functools.partial(draw, index),
          lambda: [tf.zeros_like(vector) for vector in newest],
        )
      )
    slots, later = self._slots(this_round), self._slots(this_round + 1)
    # Vector by vector: products with matrices of few rows take three times as long.
    noise = []
    for position in range(len(newest)):
      before = memory.read(position, slots, this_round - 1)
      noises, after = self._advance([row[position] for row in drawn], before)
      noise.append(noises[0])
      memory.write(position, later, after)
    return noise

  def _slots(self, this_round: tf.Tensor) -> list[tf.Tensor]:
    """Returns the slots of the sums before a round."""
    num_sums = self._recursion.num_sums
    first = this_round % (self.num_slots // num_sums) * num_sums
    return tf.unstack(first + tf.range(num_sums, dtype=tf.int64))

  def _advance(
    self, drawn: list[tf.Tensor], sums: list[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the noise of each copy and the sums after the round, for one vector."""
    outputs, ends = self._recursion.outputs, self._recursion.ends
    size = len(outputs)
    by_copy = [sums[first : first + size] for first in range(0, len(sums), size)]
    noises = [
      row + tf.cast(_weighted_sum(list(outputs), before), row.dtype)
      for row, before in zip(drawn, by_copy)
    ]
    added = [tf.cast(noise, before[0].dtype) for noise, before in zip(noises, by_copy)]
    after = []
    for copy, before in enumerate(by_copy):
      for j, total in enumerate(before):
        weights, vectors = [self._recursion.decays[j], 1.0], [total, added[copy]]
        if ends is not None and copy + 1 < len(noises):
          weights.append(ends[j])
          vectors.append(added[copy + 1])
        after.append(_weighted_sum(weights, vectors))
    return noises, after


def _weighted_sum(weights: Sequence[float], vectors: list[tf.Tensor]) -> tf.Tensor:
  """Returns the sum without vectors of weight 0; a scalar 0 if none is left."""
  terms = [
    vector if weight == 1.0 else tf.constant(weight, vector.dtype) * vector
    for weight, vector in zip(weights, vectors)
    if weight
  ]
  return functools.reduce(tf.add, terms) if terms else tf.zeros([], vectors[0].dtype)


class CarriedNoise(StreamingNoise):
  """Stores the values of earlier rounds in the state, in a buffer for each slot."""

  storage = 'state'

  def __init__(
    self,
    interpreter: Interpreter,
    rows: rows_lib.GaussianRows,
    scaling: Sequence[recursion_lib.Scaled] = (),
  ):
    super().__init__(rows, scaling)
    self._interpreter = interpreter

  @property
  def num_buffers(self) -> int:
    """Number of model-sized buffers in the state: one for each slot."""
    return self._interpreter.num_slots

  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Computes the round's noise from its row of z and the buffers."""
    memory = Memory(state.buffers)
    draw = functools.partial(self._rows.row, state.key)
    noise = self._interpreter.advance(draw, state.round, memory)
    kept = hidden_buffers(memory.after)
    after = NoiseState(state.key, state.round + 1, kept)
    return self._emitted(noise, state.round), after


# Function that returns the rows of z in a round's noise: indices, int64, and weights,
# float64, both of shape [terms].
Terms = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class RedrawnNoise(StreamingNoise):
  """Draws earlier rows of z again in each round, and stores nothing."""

  storage = 'redraw'

  def __init__(self, terms: Terms, rows: rows_lib.GaussianRows):
    super().__init__(rows)
    self._terms = terms

  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Computes the round's noise as a weighted sum of rows of z."""
    indices, weights = self._terms(state.round)

    def weighted(term: tf.Tensor) -> list[tf.Tensor]:
      weight = weights[term]
      row = self._rows.row(state.key, indices[term])
      return [tf.cast(weight, vector.dtype) * vector for vector in row]

    def add(term: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, Any]:
      return term + 1, [t + v for t, v in zip(total, weighted(term))]

    noise = weighted(tf.constant(0))
    if indices.shape != [1]:
      _, noise = tf.while_loop(
        lambda term, _: term < tf.size(indices),
        add,
        (tf.constant(1), noise),
        parallel_iterations=1,
      )
    after = state._replace(round=state.round + 1)
    return self._rows.layout.unflatten(noise), after


def _factor(recursion: recursion_lib.Scaled, this_round: tf.Tensor) -> tf.Tensor:
  """Returns the factor of a round (an int64 scalar), float64."""
  starts = tf.constant(recursion.starts, tf.int64)
  part = tf.searchsorted(starts, this_round[tf.newaxis], side='right')[0] - 1
  return tf.gather(tf.constant(recursion.factors, tf.float64), part)


def _unscaled(
  recursion: recursion_lib.Recursion,
) -> tuple[recursion_lib.Recursion, list[recursion_lib.Scaled]]:
  """Returns the innermost recursion, and the scalings around it, outermost first."""
  scaling = []
  while isinstance(recursion, recursion_lib.Scaled):
    scaling.append(recursion)
    recursion = recursion.recursion
  return recursion, scaling


# Constructors of interpreters, by class of recursion. Their second argument, `rewind`,
# is the number of last rounds that can be computed again from the stored values.
_INTERPRETERS: dict[
  type[recursion_lib.Recursion], Callable[[Any, int], Interpreter]
] = {
  recursion_lib.LastRounds: LastRounds,
  recursion_lib.TreeNodes: TreeNodes,
  recursion_lib.DecayingSums: Decays,
}


def build(
  strategy: strategies.Strategy,
  rows: rows_lib.GaussianRows,
  storage: options.Storage = 'auto',
) -> StreamingNoise:
  """Returns the streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy; its `recursion` is interpreted.
    rows: Source of the rows of z.
    storage: Where values of earlier rounds are stored: see `Options`.

  Raises:
    OSError: If the directory for files cannot be used.
    RuntimeError: If another process uses this directory.
    TypeError: If `strategy` is not a strategy, or its recursion has no interpreter.
    ValueError: If `storage` is not available for the strategy; or if the strategy has
      up to 128 rounds, and its recursion does not agree with its noise matrix.
  """
  if not isinstance(strategy, strategies.Strategy):
    raise TypeError(
      f'strategy must be a strategies.Strategy, got {type(strategy).__name__}.'
    )
  recursion = strategy.recursion()
  if strategy.num_rounds <= _MAX_CHECKED_ROUNDS:
    recursion_lib.check(recursion, strategy.noise_matrix())
  options.check_storage(storage)
  chosen = storage
  if isinstance(storage, str):
    if storage == 'auto':
      costs = strategies.strategy.by_storage(
        strategy, rows.layout.num_bytes, rows.generator
      )
      chosen = strategies.strategy.cheapest(costs)  # Least time for a round inside TFF.
      _logger.info(
        'noise of a %s strategy for %d rounds: storage %r (seconds a round: %s)',
        strategy.kind,
        strategy.num_rounds,
        chosen,
        ', '.join(f'{name} {cost.seconds:.3g}' for name, cost in costs.items()),
      )
    elif storage == 'in_process':
      num_bytes = recursion.work.buffers * rows.layout.num_bytes
      chosen = 'state' if num_bytes <= _MAX_STATE_BYTES else 'files'
  if chosen == 'redraw' or not recursion.work.buffers:
    return RedrawnNoise(terms_of(strategy), rows)
  unscaled, scaling = _unscaled(recursion)
  if chosen == 'state':
    return CarriedNoise(interpret(unscaled), rows, scaling)
  location = chosen if isinstance(chosen, options.Files) else options.Files()
  interpreter = interpret(unscaled, location.rewind)
  from tff_dp_aggregators.noise import files  # It imports this module.

  return files.FilesNoise(
    interpreter, rows, scaling, location.directory, strategy.checksum
  )


def interpret(recursion: recursion_lib.Recursion, rewind: int = 0) -> Any:
  """Returns the interpreter of an unscaled recursion: `PastValues` or `Decays`."""
  for kind, interpreter in _INTERPRETERS.items():
    if isinstance(recursion, kind):
      return interpreter(recursion, rewind)
  names = ', '.join(kind.__name__ for kind in _INTERPRETERS)
  raise TypeError(
    f'a recursion must be one of {names} of strategies.recursion, or a Scaled one of '
    f'them; got {type(recursion).__name__}.'
  )


def terms_of(strategy: strategies.Strategy) -> Terms:
  """Returns the rows of z in a strategy's noise; ValueError if there are too many."""
  recursion = strategy.recursion()
  if recursion.max_terms is not None:
    return _terms_from_step(recursion, recursion.max_terms)
  if strategies.strategy.max_terms(strategy) is None:
    raise ValueError(
      f"storage 'redraw' would draw all rows of z so far for the noise of {strategy}. "
      f'It is available for up to {strategies.strategy.MAX_ROUNDS_WRITTEN_OUT} rounds, '
      "and not for Honaker's trees; use 'state' or 'files'."
    )
  matrix = strategy.noise_matrix()

  def entries(this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    row = tf.constant(matrix, tf.float64)[this_round]
    columns = tf.where(tf.not_equal(row, 0.0))[:, 0]
    return columns, tf.gather(row, columns)

  return entries


def _terms_from_step(recursion: recursion_lib.Recursion, max_terms: int) -> Terms:
  """Returns the round's own row, and the rows in the slots that it would read."""
  unscaled, scaling = _unscaled(recursion)
  interpreter = interpret(unscaled)

  def terms(this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    step = interpreter.step(this_round)
    indices, weights = this_round[tf.newaxis], step.fresh
    if max_terms > 1:
      slots = step.read_slots()
      indices = tf.concat([indices, tf.gather(step.stamps, slots)], axis=0)
      weights = tf.concat([weights, tf.gather(step.past[0], slots)], axis=0)
    for scaled in reversed(scaling):
      weights = _factor(scaled, this_round) * weights
    return indices, weights

  return terms

"""Streaming noise: pure `initialize` and `next` over an explicit state.

For a mechanism with noise matrix `D` (`Strategy.noise_matrix`; `C^-1` for a square
strategy) the t-th call of `next` emits `(D z)[t]` with z of unit variance. Scaling it
by clip norm and noise multiplier is the caller's.

`strategies.recursion` holds as data how a round follows from earlier ones. An
interpreter (`_FORMS`) says with which weights a round's noise is made of its row of z
and of what is remembered, and what is remembered in turn. `CarriedNoise` keeps that in
the state, `RedrawnNoise` draws it again, and `files` has the third way.
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
# Limit of a state that stays in one process; a round needs two while it is computed.
_MOST_STATE_BYTES = 4 * 2**30

# Rounds up to which a recursion is held against the noise matrix, in milliseconds.
_MAX_CHECKED_ROUNDS = 128


def hidden_buffers(vectors: Iterable[Any]) -> Any:
  """What a state remembers of the noise: a named tuple that does not show it.

  TFF prints a part of a state that does not fit a process, and a plain list would print
  its numbers. Of other sequences TFF's checkpoints lose the type.
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

  # Not of a subclass, which checkpoints would not take for a named tuple.
  kind = collections.namedtuple('Buffers', fields)  # type: ignore[misc]
  for name, method in (('__repr__', show), ('__reduce__', reduce)):
    setattr(kind, name, method)
  return kind


class NoiseState(NamedTuple):
  """Everything needed to continue; key and buffers are secret, and never shown."""

  key: Any  # int64 [4].
  round: Any  # The one that `next` will serve, int64.
  buffers: Any  # [buffers, size] for each vector of the layout.

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(key={hidden(self.key)}, round={self.round!r}, '
      f'buffers={hidden_buffers(self.buffers)!r})'
    )


def hidden(secret: Any) -> str:
  """What may be shown of a tensor or array that is secret: dtype and shape."""
  dtype = getattr(secret, 'dtype', None)
  if dtype is None:
    return '<secret>'
  return f'<secret {tf.as_dtype(dtype).name}, shape {tuple(secret.shape)}>'


class StreamingNoise(abc.ABC):
  """Correlated noise, one round after the other, by two pure functions.

  Equal states give equal noise, bit by bit in each of eager mode, `tf.function` and TFF
  computations, and up to rounding between them.
  """

  storage: str  # Where the past of the noise is kept: one of `options.STORAGES`.

  def __init__(
    self,
    rows: rows_lib.GaussianRows,
    scaling: Sequence[recursion_lib.Scaled] = (),
  ):
    """`scaling`: What a round's noise is scaled by as it is emitted, in this order."""
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
    """Model-sized buffers that the state carries."""
    return 0

  @abc.abstractmethod
  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Returns the round's noise, a structure like a record, and the next state."""

  def _emitted(self, vectors: list[tf.Tensor], this_round: tf.Tensor) -> Any:
    """The round's noise like a record, scaled; what is remembered of it is not."""
    noise = self._rows.layout.unflatten(vectors)
    for each in self._scaling:
      factor = _factor(each, this_round)
      noise = tf.nest.map_structure(
        lambda tensor, factor=factor: tf.cast(factor, tensor.dtype) * tensor, noise
      )
    return noise


class Step(NamedTuple):
  """One round of `PastValues`.

  Outputs are the noise and, unless it is the noise or the row of z, what is remembered.
  """

  fresh: tf.Tensor  # Weights of the round's row of z, float64 of shape [outputs].
  past: tf.Tensor  # Weights of what is remembered, float64 of shape [outputs, slots].
  # Round in which what is in a slot was written, int64 of shape [slots]; of no meaning
  # where the weights are 0.
  stamps: tf.Tensor
  slot: tf.Tensor  # Where this round's value goes, an int64 scalar.

  def read_slots(self) -> tf.Tensor:
    """The slots with a weight, int64 of shape [reads].

    The latest first, so that no sum depends on how many slots there are.
    """
    slots = tf.where(tf.reduce_any(tf.not_equal(self.past, 0.0), axis=0))[:, 0]
    stamps = tf.gather(self.stamps, slots)
    return tf.gather(slots, tf.argsort(stamps, direction='DESCENDING'))


class Memory:
  """What is remembered when a round begins: for each vector of the layout, its slots.

  What is read is what was there then, and what is written is there for later rounds.
  Here these are buffers of shape [slots, size], and `after` what follows the round.
  """

  def __init__(self, buffers: Iterable[tf.Tensor]):
    self._buffers = list(buffers)
    self.after = list(self._buffers)

  def weighted(self, position: int, step: Step) -> tf.Tensor:
    """The sums of what is in the slots, of shape [outputs, size], in its own dtype."""
    buffer = self._buffers[position]
    return tf.linalg.matmul(tf.cast(step.past, buffer.dtype), buffer)

  def read(
    self, position: int, slots: list[tf.Tensor], stamp: tf.Tensor
  ) -> list[tf.Tensor]:
    """What a round has written to slots; zeros before round 0."""
    del slots, stamp  # A round reads all of them, or `weighted`.
    return tf.unstack(self._buffers[position])

  def write(
    self, position: int, slots: list[tf.Tensor], vectors: list[tf.Tensor]
  ) -> None:
    """Remembers vectors of the round, one for each slot, of shape [size]."""
    before = self._buffers[position]
    if len(vectors) == before.shape[0]:
      self.after[position] = tf.stack(vectors)  # In the order of the slots.
    else:
      indices = tf.stack(slots)[:, tf.newaxis]
      self.after[position] = tf.tensor_scatter_nd_update(before, indices, vectors)


# The vectors of row t of z.
Draw = Callable[[tf.Tensor], list[tf.Tensor]]


class Past(abc.ABC):
  """Interprets a form of recursion."""

  num_slots: int  # How many slots of a `Memory` it takes.

  @abc.abstractmethod
  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Serves a round: makes its noise, and changes what is remembered."""


class PastValues(Past):
  """One value of each round is remembered, in a slot that a later one takes over."""

  # What the value is: 'noise', 'row', or 'other', the second output of `step`.
  keeps: str

  @abc.abstractmethod
  def step(self, this_round: tf.Tensor) -> Step:
    """The weights of a round, an int64 scalar."""

  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Adds what is remembered to the row of z, and remembers one value."""
    step = self.step(this_round)
    noise = []
    for position, row in enumerate(draw(this_round)):
      sums = memory.weighted(position, step)
      made = step.fresh[:, tf.newaxis] * row + tf.cast(sums, row.dtype)
      noise.append(made[0])
      kept = {'noise': made[0], 'row': row, 'other': made[-1]}[self.keeps]
      memory.write(position, [step.slot], [tf.cast(kept, sums.dtype)])
    return noise


class LastRounds(PastValues):
  """Interprets `recursion.LastRounds`; slots are taken in turn."""

  def __init__(self, recursion: recursion_lib.LastRounds, rewind: int):
    self.keeps = 'other' if recursion.remembers == 'sum' else recursion.remembers
    self.num_slots = recursion.num_lags + rewind
    self._recursion = recursion

  def step(self, this_round: tf.Tensor) -> Step:
    """Gathers the round's weights by slot, from those by lag."""
    weights, sums = self._recursion.weights, self._recursion.sums
    tables = [weights] if sums is None else [weights, sums]
    line = tf.minimum(this_round, len(weights) - 1)
    by_lag = [tf.gather(tf.constant(table, tf.float64), line) for table in tables]
    last = this_round - 1
    slots = tf.range(self.num_slots, dtype=tf.int64)
    # Slot s holds the value of the latest round that is s modulo the slots.
    stamps = last - (last - slots) % max(self.num_slots, 1)
    lag = this_round - stamps
    known = (stamps >= 0) & (lag <= self._recursion.num_lags)
    fresh = tf.stack([each[0] for each in by_lag])
    past = tf.stack([tf.gather(each, tf.where(known, lag, 0)) for each in by_lag])
    slot = this_round % max(self.num_slots, 1)
    return Step(fresh, tf.where(known, past, 0.0), stamps, slot)


class TreeNodes(PastValues):
  """Interprets `recursion.TreeNodes`; a level's nodes take its slots in turn."""

  def __init__(self, recursion: recursion_lib.TreeNodes, rewind: int):
    self.keeps = 'row' if recursion.combination is None else 'other'
    self._recursion = recursion
    levels = np.arange(recursion.num_levels)
    # Values of a level that the rounds to be served again may need: one, and one for
    # each time that it is written in them, every 2^(level + 1) rounds of a tree.
    written = -(-rewind // (2 << levels))
    if recursion.tree_rounds is not None:
      written += -(-rewind // recursion.tree_rounds)
    self._versions = 1 + np.minimum(rewind, written)
    self._first_slots = np.cumsum(self._versions) - self._versions
    self.num_slots = int(self._versions.sum())

  def step(self, this_round: tf.Tensor) -> Step:
    """Weights for the left child of each level below that of the round's node."""
    recursion = self._recursion
    levels = tf.range(recursion.num_levels, dtype=tf.int64)
    weights = tf.constant(recursion.weights, tf.float64)
    in_tree = this_round
    if recursion.tree_rounds is not None:
      in_tree = this_round % recursion.tree_rounds
    ending_ones = tf.bitwise.bitwise_xor(in_tree, in_tree + 1)
    height = tf.cast(tf.raw_ops.PopulationCount(x=ending_ones), tf.int64) - 1
    replaced = levels < height
    # The left child of a level ended 2^level rounds ago.
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
    """Where the values that nodes of these levels got in these rounds are."""
    half = tf.bitwise.left_shift(tf.ones_like(levels), levels)
    tree_rounds = self._recursion.tree_rounds
    if tree_rounds is None:
      written = stamps // (2 * half)
    else:
      in_a_tree = (tree_rounds + half) // (2 * half)
      written = stamps // tree_rounds * in_a_tree + stamps % tree_rounds // (2 * half)
    return tf.constant(self._first_slots) + written % tf.constant(self._versions)


class Decays(Past):
  """Interprets `recursion.DecayingSums`; all sums are written anew in each round."""

  def __init__(self, recursion: recursion_lib.DecayingSums, rewind: int):
    self.num_slots = recursion.num_sums * (rewind + 1)
    self._recursion = recursion

  def advance(
    self, draw: Draw, this_round: tf.Tensor, memory: Memory
  ) -> list[tf.Tensor]:
    """Makes noise and sums, copy by copy.

    Vector by vector: products with matrices of a few rows take three times as long.
    """
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
    noise = []
    for position in range(len(newest)):
      before = memory.read(position, slots, this_round - 1)
      noises, after = self._advance([row[position] for row in drawn], before)
      noise.append(noises[0])
      memory.write(position, later, after)
    return noise

  def _slots(self, this_round: tf.Tensor) -> list[tf.Tensor]:
    """Where the sums before a round are."""
    num_sums = self._recursion.num_sums
    first = this_round % (self.num_slots // num_sums) * num_sums
    return tf.unstack(first + tf.range(num_sums, dtype=tf.int64))

  def _advance(
    self, drawn: list[tf.Tensor], sums: list[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The noises of the copies and the sums after them, of one vector each."""
    outputs, ends = self._recursion.outputs, self._recursion.ends
    each = len(outputs)
    by_copy = [sums[first : first + each] for first in range(0, len(sums), each)]
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
  """The sum, without the vectors whose weight is 0; a single 0 if there are none."""
  terms = [
    vector if weight == 1.0 else tf.constant(weight, vector.dtype) * vector
    for weight, vector in zip(weights, vectors)
    if weight
  ]
  return functools.reduce(tf.add, terms) if terms else tf.zeros([], vectors[0].dtype)


class CarriedNoise(StreamingNoise):
  """Keeps what a round needs of earlier ones in the state, a buffer for each slot."""

  storage = 'state'

  def __init__(
    self,
    past: Past,
    rows: rows_lib.GaussianRows,
    scaling: Sequence[recursion_lib.Scaled] = (),
  ):
    super().__init__(rows, scaling)
    self._past = past

  @property
  def num_buffers(self) -> int:
    """One for each slot."""
    return self._past.num_slots

  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Makes the round's noise of its row of z and the buffers, and changes these."""
    memory = Memory(state.buffers)
    draw = functools.partial(self._rows.row, state.key)
    noise = self._past.advance(draw, state.round, memory)
    kept = hidden_buffers(memory.after)
    after = NoiseState(state.key, state.round + 1, kept)
    return self._emitted(noise, state.round), after


# Which rows of z a round's noise is made of: numbers, int64, and weights, float64, both
# of shape [terms].
Terms = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class RedrawnNoise(StreamingNoise):
  """Sums over rows of z that are drawn in each round."""

  storage = 'redraw'

  def __init__(self, terms: Terms, rows: rows_lib.GaussianRows):
    super().__init__(rows)
    self._terms = terms

  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Draws the rows that the round's noise is made of, and sums them up."""
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
  """The factor of a round, an int64 scalar; float64."""
  starts = tf.constant(recursion.starts, tf.int64)
  part = tf.searchsorted(starts, this_round[tf.newaxis], side='right')[0] - 1
  return tf.gather(tf.constant(recursion.factors, tf.float64), part)


def _unscaled(
  recursion: recursion_lib.Recursion,
) -> tuple[recursion_lib.Recursion, list[recursion_lib.Scaled]]:
  """The recursion that others scale, and these, the outermost first."""
  scaling = []
  while isinstance(recursion, recursion_lib.Scaled):
    scaling.append(recursion)
    recursion = recursion.recursion
  return recursion, scaling


# What interprets a recursion: made of it, and of how many of the rounds served last can
# be served again with what is kept.
_FORMS: dict[type[recursion_lib.Recursion], Callable[[Any, int], Past]] = {
  recursion_lib.LastRounds: LastRounds,
  recursion_lib.TreeNodes: TreeNodes,
  recursion_lib.DecayingSums: Decays,
}


def build(
  strategy: strategies.Strategy,
  rows: rows_lib.GaussianRows,
  storage: options.Storage = 'auto',
) -> StreamingNoise:
  """The streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy, whose `recursion` is followed.
    rows: Source of the rows of z.
    storage: Where what the noise remembers is: see `Options`.

  Raises:
    OSError: If the directory for files cannot be used.
    RuntimeError: If another process uses it.
    TypeError: If `strategy` is not one, or its recursion of no known form.
    ValueError: If `storage` is not offered for the strategy; or if, in up to 128
      rounds, its recursion makes other noise than its noise matrix says.
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
      chosen = 'state' if num_bytes <= _MOST_STATE_BYTES else 'files'
  if chosen == 'redraw' or not recursion.work.buffers:
    return RedrawnNoise(terms_of(strategy), rows)
  unscaled, scaling = _unscaled(recursion)
  if chosen == 'state':
    return CarriedNoise(interpret(unscaled), rows, scaling)
  where = chosen if isinstance(chosen, options.Files) else options.Files()
  past = interpret(unscaled, where.rewind)
  from tff_dp_aggregators.noise import files  # It builds on what is here.

  return files.FilesNoise(past, rows, scaling, where.directory, strategy.checksum)


def interpret(recursion: recursion_lib.Recursion, rewind: int = 0) -> Any:
  """The interpreter of a recursion that scales no other: `PastValues` or `Decays`."""
  for known, form in _FORMS.items():
    if isinstance(recursion, known):
      return form(recursion, rewind)
  names = ', '.join(known.__name__ for known in _FORMS)
  raise TypeError(
    f'a recursion must be one of {names} of strategies.recursion, or a Scaled one of '
    f'them; got {type(recursion).__name__}.'
  )


def terms_of(strategy: strategies.Strategy) -> Terms:
  """The rows of z that a strategy's noise is made of, unless there are thousands."""
  recursion = strategy.recursion()
  if recursion.max_terms is not None:
    return _terms_of_few(recursion, recursion.max_terms)
  if strategies.strategy.max_terms(strategy) is None:
    raise ValueError(
      f"storage 'redraw' would make the noise of {strategy} of all rows of z so far. "
      f'That is offered for up to {strategies.strategy.MAX_ROUNDS_WRITTEN_OUT} rounds, '
      "and not for Honaker's trees; use 'state' or 'files'."
    )
  matrix = strategy.noise_matrix()

  def entries(this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    row = tf.constant(matrix, tf.float64)[this_round]
    columns = tf.where(tf.not_equal(row, 0.0))[:, 0]
    return columns, tf.gather(row, columns)

  return entries


def _terms_of_few(recursion: recursion_lib.Recursion, max_terms: int) -> Terms:
  """The round's own row, and what would be read if rows were kept."""
  unscaled, scaling = _unscaled(recursion)
  past = interpret(unscaled)

  def terms(this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    step = past.step(this_round)
    indices, weights = this_round[tf.newaxis], step.fresh
    if max_terms > 1:
      slots = step.read_slots()
      indices = tf.concat([indices, tf.gather(step.stamps, slots)], axis=0)
      weights = tf.concat([weights, tf.gather(step.past[0], slots)], axis=0)
    for each in reversed(scaling):
      weights = _factor(each, this_round) * weights
    return indices, weights

  return terms

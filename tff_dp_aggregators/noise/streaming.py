"""From a strategy to its streaming noise: where what it remembers is.

`CarriedNoise` keeps it in the state, `RedrawnNoise` draws it again, and `files` has the
third way. Nothing here, nor in the rest of `noise`, knows strategies but by the
recursion that they return; `_FORMS` says what interprets each form of it.
"""

import abc
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import files
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.noise import recursions
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.strategies import noise_cost
from tff_dp_aggregators.strategies import recursion as recursion_lib

_logger = logging.getLogger(__name__)
KINDS = ('state', 'redraw', 'files')
# Of a state that stays in one process; two are there while a round is computed.
_MOST_STATE_BYTES = 4 * 2**30

# Rounds up to which a recursion is held against the noise matrix, in milliseconds.
_MAX_CHECKED_ROUNDS = 128


class CarriedNoise(recursions.StreamingNoise):
  """Keeps what a round needs of earlier ones in the state, a buffer for each slot."""

  storage = 'state'

  def __init__(self, past: recursions.Past, rows: rows_lib.GaussianRows):
    super().__init__(rows)
    self._past = past

  @property
  def num_buffers(self) -> int:
    """Buffers that the state carries, one for each slot."""
    return self._past.num_slots

  def next(self, state: recursions.NoiseState) -> tuple[Any, recursions.NoiseState]:
    """Makes the round's noise of its row of z and the buffers, and changes these."""
    memory = _Buffers(state.buffers)
    noise = self._past.advance(self._rows, state.key, state.round, memory)
    kept = recursions.hidden_buffers(memory.after)
    after = recursions.NoiseState(state.key, state.round + 1, kept)
    return self._rows.layout.unflatten(noise), after


class _Buffers(recursions.Memory):
  """Tensors of shape [slots, size].

  Attributes:
    after: Them after the round.
  """

  def __init__(self, buffers: Any):
    self._buffers = list(buffers)
    self.after = list(buffers)

  def weighted(self, position: int, step: recursions.Step) -> tf.Tensor:
    buffer = self._buffers[position]
    return tf.linalg.matmul(tf.cast(step.past, buffer.dtype), buffer)

  def read(
    self, position: int, slots: list[tf.Tensor], stamp: tf.Tensor
  ) -> list[tf.Tensor]:
    del slots, stamp  # A round reads all of them, or `weighted`.
    return tf.unstack(self._buffers[position])

  def write(
    self, position: int, slots: list[tf.Tensor], vectors: list[tf.Tensor]
  ) -> None:
    before = self._buffers[position]
    if len(vectors) == before.shape[0]:
      self.after[position] = tf.stack(vectors)  # In the order of the slots.
    else:
      indices = tf.stack(slots)[:, tf.newaxis]
      self.after[position] = tf.tensor_scatter_nd_update(before, indices, vectors)


class Terms(abc.ABC):
  """Which rows of z a round's noise is made of.

  Attributes:
    max_terms: How many there are at most.
  """

  max_terms: int

  @abc.abstractmethod
  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers of rows, int64, and their weights, float64, both of shape [terms]."""


class RecursionTerms(Terms):
  """Those of a recursion that remembers rows of z, or nothing."""

  def __init__(self, past: recursions.PastValues, max_terms: int):
    self._past = past
    self.max_terms = max_terms

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The round's own row, and what would be read if it were kept."""
    step = self._past.step(this_round)
    if self.max_terms == 1:
      return this_round[tf.newaxis], step.fresh
    slots = step.read_slots()
    indices = tf.concat([[this_round], tf.gather(step.stamps, slots)], axis=0)
    weights = tf.concat([step.fresh, tf.gather(step.past[0], slots)], axis=0)
    return indices, weights


class ScaledTerms(Terms):
  """Those of other terms, with weights times a factor of the round."""

  def __init__(self, terms: Terms, factor: Callable[[tf.Tensor], tf.Tensor]):
    self._terms = terms
    self._factor = factor
    self.max_terms = terms.max_terms

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same rows, with scaled weights."""
    indices, weights = self._terms.of(this_round)
    return indices, self._factor(this_round) * weights


class MatrixTerms(Terms):
  """The entries that are not 0 of a noise matrix that is written out."""

  def __init__(self, matrix: np.ndarray):
    self._matrix = matrix
    self.max_terms = len(matrix)

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Columns and entries of the round's line of the matrix."""
    row = tf.constant(self._matrix, tf.float64)[this_round]
    columns = tf.where(tf.not_equal(row, 0.0))[:, 0]
    return columns, tf.gather(row, columns)


class RedrawnNoise(recursions.StreamingNoise):
  """Sums over rows of z that are drawn in each round."""

  storage = 'redraw'

  def __init__(self, terms: Terms, rows: rows_lib.GaussianRows):
    super().__init__(rows)
    self._terms = terms

  def next(self, state: recursions.NoiseState) -> tuple[Any, recursions.NoiseState]:
    """Draws the rows that the round's noise is made of, and sums them up."""
    indices, weights = self._terms.of(state.round)

    def weighted(term: tf.Tensor) -> list[tf.Tensor]:
      weight = weights[term]
      row = self._rows.row(state.key, indices[term])
      return [tf.cast(weight, vector.dtype) * vector for vector in row]

    def add(term: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, Any]:
      return term + 1, [t + v for t, v in zip(total, weighted(term))]

    noise = weighted(tf.constant(0))
    if self._terms.max_terms > 1:
      _, noise = tf.while_loop(
        lambda term, _: term < tf.size(indices),
        add,
        (tf.constant(1), noise),
        parallel_iterations=1,
      )
    after = state._replace(round=state.round + 1)
    return self._rows.layout.unflatten(noise), after


def factor_of(recursion: recursion_lib.Scaled) -> Callable[[tf.Tensor], tf.Tensor]:
  """What makes of a round, an int64 scalar, its factor, a float64 scalar."""

  def factor(this_round: tf.Tensor) -> tf.Tensor:
    starts = tf.constant(recursion.starts, tf.int64)
    part = tf.searchsorted(starts, this_round[tf.newaxis], side='right')[0] - 1
    return tf.gather(tf.constant(recursion.factors, tf.float64), part)

  return factor


class ScaledNoise(recursions.StreamingNoise):
  """Other noise, scaled as it is emitted.

  The state is that of the other noise, which remembers its rounds unscaled; so a round
  is scaled by its own number, whenever it is served.
  """

  def __init__(
    self,
    unscaled: recursions.StreamingNoise,
    factor: Callable[[tf.Tensor], tf.Tensor],
  ):
    self.storage = unscaled.storage
    self._unscaled = unscaled
    self._factor = factor

  def initialize(self) -> recursions.NoiseState:
    """The state of the other noise before round 0."""
    return self._unscaled.initialize()

  @property
  def num_buffers(self) -> int:
    """Model-sized buffers that the state carries."""
    return self._unscaled.num_buffers

  def next(self, state: recursions.NoiseState) -> tuple[Any, recursions.NoiseState]:
    """Scales the round's noise."""
    factor = self._factor(state.round)
    noise, after = self._unscaled.next(state)
    scaled = tf.nest.map_structure(
      lambda tensor: tf.cast(factor, tensor.dtype) * tensor, noise
    )
    return scaled, after


# What interprets a recursion: made of it, and of how many of the rounds served last can
# be served again with what is kept: 0 in the state, since an old one has what it needs.
_FORMS: dict[type[recursion_lib.Recursion], Callable[[Any, int], recursions.Past]] = {
  recursion_lib.LastRounds: recursions.LastRounds,
  recursion_lib.TreeNodes: recursions.TreeNodes,
  recursion_lib.DecayingSums: recursions.Decays,
}


def build(
  strategy: strategies.Strategy,
  rows: rows_lib.GaussianRows,
  storage: options.Storage = 'auto',
) -> recursions.StreamingNoise:
  """The streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy, whose `recursion` is followed.
    rows: Source of the rows of z.
    storage: Where what the noise remembers is: see `Options`.

  Raises:
    OSError: If the directory for files cannot be used.
    RuntimeError: If another process uses it.
    TypeError: If `strategy` is not one, or its recursion of no known form.
    ValueError: If `storage` is unknown, or not offered for the strategy; or if its
      recursion makes other noise than its noise matrix says, which is looked at for up
      to 128 rounds.
  """
  if not isinstance(strategy, strategies.Strategy):
    raise TypeError(
      f'strategy must be a strategies.Strategy, got {type(strategy).__name__}.'
    )
  recursion = strategy.recursion()
  unscaled = recursion
  while isinstance(unscaled, recursion_lib.Scaled):
    unscaled = unscaled.recursion
  form = _form_of(unscaled)
  if strategy.num_rounds <= _MAX_CHECKED_ROUNDS:
    recursion_lib.check(recursion, strategy.noise_matrix())
  chosen = storage
  if isinstance(storage, str):
    if storage == 'auto':
      chosen = _cheapest(strategy, rows)
    elif storage == 'in_process':
      num_bytes = recursion.work.buffers * rows.layout.num_bytes
      chosen = 'state' if num_bytes <= _MOST_STATE_BYTES else 'files'
    elif storage not in KINDS:
      raise ValueError(
        f"storage must be 'auto', 'in_process', {', '.join(map(repr, KINDS))} or "
        f'noise.Files(...), got {storage!r}.'
      )
  elif not isinstance(storage, options.Files):
    raise TypeError(f'storage must be a string or a Files, got {storage!r}.')
  if chosen == 'redraw' or not recursion.work.buffers:
    return RedrawnNoise(terms_of(strategy), rows)
  made: recursions.StreamingNoise
  if chosen == 'state':
    made = CarriedNoise(form(unscaled, 0), rows)
  else:
    where = chosen if isinstance(chosen, options.Files) else options.Files()
    past = form(unscaled, where.rewind)
    made = files.FilesNoise(past, rows, where.directory, strategy.checksum)
  while isinstance(recursion, recursion_lib.Scaled):
    made = ScaledNoise(made, factor_of(recursion))
    recursion = recursion.recursion
  return made


def interpret(recursion: recursion_lib.Recursion, rewind: int = 0) -> Any:
  """The interpreter of a recursion that scales no other: `PastValues` or `Decays`.

  `rewind`: How many of the rounds served last can be served again with what is kept.
  """
  if isinstance(recursion, recursion_lib.Scaled):
    raise TypeError('of a Scaled recursion, interpret what it scales: its .recursion.')
  return _form_of(recursion)(recursion, rewind)


def terms_of(strategy: strategies.Strategy) -> Terms:
  """The rows of z that a strategy's noise is made of, unless there are thousands."""
  recursion = strategy.recursion()
  if recursion.max_terms is not None:
    return _terms_of_few(recursion, recursion.max_terms)
  if noise_cost.max_terms(strategy) is None:
    raise ValueError(
      f"storage 'redraw' would make the noise of {strategy} of all rows of z so far. "
      f'That is offered for up to {noise_cost.MAX_ROUNDS_WRITTEN_OUT} rounds, and '
      "not for Honaker's trees; use 'state' or 'files'."
    )
  return MatrixTerms(strategy.noise_matrix())


def _terms_of_few(recursion: recursion_lib.Recursion, max_terms: int) -> Terms:
  """The rows of z of a recursion whose noise is made of few of them."""
  if isinstance(recursion, recursion_lib.Scaled):
    terms = _terms_of_few(recursion.recursion, max_terms)
    return ScaledTerms(terms, factor_of(recursion))
  return RecursionTerms(interpret(recursion), max_terms)


def _form_of(
  recursion: recursion_lib.Recursion,
) -> Callable[[Any, int], recursions.Past]:
  for known, form in _FORMS.items():
    if isinstance(recursion, known):
      return form
  names = ', '.join(known.__name__ for known in _FORMS)
  raise TypeError(
    f'a recursion must be one of {names} and Scaled of '
    f'strategies.recursion, got {type(recursion).__name__}.'
  )


def _cheapest(strategy: strategies.Strategy, rows: rows_lib.GaussianRows) -> str:
  """The storage with the least time for a round inside TFF."""
  costs = noise_cost.by_storage(strategy, rows.layout.num_bytes, rows.generator)
  chosen = noise_cost.cheapest(costs)
  _logger.info(
    'noise of a %s strategy for %d rounds: storage %r (seconds a round, estimated: %s)',
    strategy.kind,
    strategy.num_rounds,
    chosen,
    ', '.join(f'{name} {cost.seconds:.3g}' for name, cost in costs.items()),
  )
  return chosen

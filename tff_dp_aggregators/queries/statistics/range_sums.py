"""Histograms whose sums over ranges have little noise, from noised trees.

A client's histogram becomes a tree: its bins are the leaves, and each node has the sum
of up to `arity` nodes below it. With noise on every node, a range of bins is a sum of
few nodes, where it would be one of many bins. Nodes say the same thing several times
over; of all histograms the result is the one that agrees best with all noised nodes, by
least squares (Hay et al., arXiv:0904.0942, section 4). So a range is simply a sum of
the result's bins, with the least noise that any unbiased sum of nodes has.

**Privacy** is that of the nodes: they are what is clipped, and least squares looks at
nothing but noised nodes. A client with one entry of 1 has one node of 1 on each level,
so the L2 norm of its tree is sqrt(levels) and the L1 norm levels.
"""

import math
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries.statistics import around


def tree_levels(num_bins: int, arity: int = 2) -> tuple[int, ...]:
  """Numbers of nodes by level, the leaves first and the root last.

  Args:
    num_bins: Of the histogram, at least 1.
    arity: How many nodes have their sum in one above, at least 2.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If one is out of range.

  Example:
    >>> tree_levels(10), tree_levels(10, arity=4), sum(tree_levels(10))
    ((10, 5, 3, 2, 1), (10, 3, 1), 21)
  """
  sizes = [checks.check_positive_int('num_bins', num_bins)]
  arity = checks.check_int('arity', arity, at_least=2)
  while sizes[-1] > 1:
    sizes.append(-(-sizes[-1] // arity))
  return tuple(sizes)


def num_bins_of(record_specs: Any) -> int:
  """How many bins a histogram has.

  Args:
    record_specs: Structure like a record, of tensor specs.

  Raises:
    ValueError: If it is not one vector.
  """
  specs = tf.nest.flatten(record_specs)
  if len(specs) != 1 or specs[0].shape.rank != 1 or not specs[0].shape[0]:
    raise ValueError(
      'a histogram is one vector of numbers; got records of shapes '
      f'{[tuple(spec.shape) for spec in specs]}.'
    )
  return int(specs[0].shape[0])


class RangeSumsQuery(around.QueryAround):
  """A histogram for sums over ranges of its bins, from a tree of noised sums.

  TF Privacy's `TreeRangeSumQuery`, whose result is the tree; here it is a histogram
  again, with the tree's accuracy in it.

  Example:
    >>> from tff_dp_aggregators import queries
    >>> query = RangeSumsQuery(
    ...   queries.GaussianSumQuery(
    ...     clip_norm=len(tree_levels(8)) ** 0.5,
    ...     noise_multiplier=0.0,
    ...     record_specs=tf.TensorSpec([sum(tree_levels(8))]),
    ...   ),
    ...   record_specs=tf.TensorSpec([8]),
    ... )
    >>> state = query.initial_global_state()
    >>> params, sample = query.derive_sample_params(state), query.initial_sample_state()
    >>> for bin_of_client in (1, 1, 6):
    ...   record = tf.one_hot(bin_of_client, 8)
    ...   sample = query.accumulate_record(params, sample, record)
    >>> histogram, _, _ = query.get_noised_result(sample, state)
    >>> round(float(tf.reduce_sum(histogram[:4])), 3)
    2.0
  """

  def __init__(
    self,
    node_query: records.GridSumQuery,
    *,
    record_specs: Any,
    arity: int = 2,
  ):
    """Initializes the query.

    Args:
      node_query: Clips and sums trees, with any noise that is the same for all nodes: a
        query for records that are one float32 vector of `sum(tree_levels(num_bins,
        arity))` numbers, that releases the sum of each round.
      record_specs: Structure like a record, of the spec of one float vector: the
        histogram, of `num_bins` numbers.
      arity: How many nodes have their sum in one above.

    Raises:
      TypeError: If `node_query` is no such query, or another argument not of its type.
      ValueError: If a record is not one vector, `node_query` is for other records or
        releases sums over rounds, or `arity` is below 2.
    """
    checks.check_int('arity', arity, at_least=2)
    super().__init__(_check_node_query(node_query), record_specs)
    self._arity = int(arity)
    self._levels = tree_levels(num_bins_of(self._record_specs), arity)
    num_nodes = sum(self._levels)
    try:
      node_query.initial_sample_state(tf.TensorSpec([num_nodes], tf.float32))
    except (TypeError, ValueError) as e:
      raise ValueError(
        f'node_query must be for records that are the {num_nodes} nodes of a tree over '
        f'{self._levels[0]} bins, record_specs=tf.TensorSpec([{num_nodes}]); got '
        f'{node_query!r}: {e}'
      ) from e
    self._variances = _variances(self._levels, self._arity)

  @property
  def node_query(self) -> records.GridSumQuery:
    """What clips and sums trees."""
    return self._inner

  @property
  def clip_norm(self) -> float:
    """Bound of the tree of one client's histogram, in the norm of `node_query`."""
    return self._inner.clip_norm

  def initial_global_state(self) -> Any:
    """Returns the state of `node_query` before round 0."""
    return self._inner.initial_global_state()

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns what clients have to know for `node_query`.

    Args:
      global_state: State before the round.
    """
    return self._inner.derive_sample_params(global_state)

  def _asked(self, params: Any, record: Any) -> tf.Tensor:
    """The nodes of a client's tree, the leaves first."""
    del params
    (bins,) = tf.nest.flatten(self._check(record))
    levels = [tf.cast(bins, tf.float64)]
    while len(levels) < len(self._levels):
      levels.append(tf.reduce_sum(self._in_groups(levels[-1]), axis=1))
    return tf.cast(tf.concat(levels, axis=0), tf.float32)

  def _in_groups(self, level: tf.Tensor) -> tf.Tensor:
    """Nodes in rows, each of those that have their sum in one above."""
    missing = -level.shape[0] % self._arity
    return tf.reshape(tf.pad(level, [[0, missing]]), [-1, self._arity])

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the histogram, the next state, and the event of the nodes.

    Args:
      sample_state: Sum of the round's trees, integers.
      global_state: State before the round.

    Raises:
      tf.errors.InvalidArgumentError: If `node_query` refuses the state.
    """
    nodes, state, event = self._inner.get_noised_result(sample_state, global_state)
    (spec,) = tf.nest.flatten(self._record_specs)
    bins = tf.cast(self._fitted(tf.cast(nodes, tf.float64)), spec.dtype)
    return tf.nest.pack_sequence_as(self._record_specs, [bins]), state, event

  def _fitted(self, nodes: tf.Tensor) -> tf.Tensor:
    """The histogram that agrees best with all nodes, by two passes over the tree."""
    noised = tf.split(nodes, self._levels)
    # Up: the best of each node that it and those below it say.
    fitted = [noised[0]]
    for level, (own, below) in zip(noised[1:], self._variances[1:]):
      from_below = tf.reduce_sum(self._in_groups(fitted[-1]), axis=1)
      fitted.append((level * below + from_below) * own / below)
    # Down: what those above know better is shared by variance.
    known = fitted[-1]
    for level, (own, _) in zip(fitted[-2::-1], self._variances[-2::-1]):
      variances = self._in_groups(tf.constant(own))
      children = self._in_groups(level)
      total = tf.reduce_sum(variances, axis=1, keepdims=True)
      more = known[:, tf.newaxis] - tf.reduce_sum(children, axis=1, keepdims=True)
      shared = children + more * variances / total
      known = tf.reshape(shared, [-1])[: level.shape[0]]
    return known

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self._inner!r}, arity={self._arity})'


def _variances(
  levels: tuple[int, ...], arity: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """By level: of the best of a node from it and below, and of what is below, summed.

  In variances of a node's noise; what is below a leaf is not known.
  """
  found = [(np.ones(levels[0]), np.full(levels[0], math.inf))]
  for size in levels[1:]:
    children = np.zeros(size * arity)
    own = found[-1][0]
    children[: len(own)] = own
    below = children.reshape([size, arity]).sum(axis=1)
    found.append((below / (1 + below), below))
  return found


def _check_node_query(query: Any) -> records.GridSumQuery:
  if not isinstance(query, records.GridSumQuery):
    raise TypeError(
      'node_query must be a query that bounds records and sums them exactly, such as '
      f'queries.GaussianSumQuery; got one of type {type(query).__name__}.'
    )
  if getattr(query, 'workload', None) is not None:
    raise ValueError(
      'node_query must release the sum of each round; this one releases sums over '
      f'rounds: {query!r}. Leave out the workload.'
    )
  return query

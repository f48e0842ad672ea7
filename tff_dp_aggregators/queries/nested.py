"""Queries that are composed of several queries, each for a part of a record.

They correspond to TF Privacy's `NestedQuery` and `NestedSumQuery` (arXiv:1812.06210),
for queries of this package. Their event is the composition of the queries' events.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.queries import matrix_mechanism


class NestedSumQuery(matrix_mechanism.GridSumQuery):
  """Sums each part of the records with a separate query.

  A record has the structure of the queries, and deeper structure where a query takes
  it: `[q1, q2]` takes `[t1, (t2, t3)]`. Clients take part in all of the queries, so
  the event of a round is the composition of their events. Two queries with the same
  stream of a seed are refused. Parts of a record that are not finite count as zero.

  Example:
    >>> from tff_dp_aggregators import queries
    >>> query = NestedSumQuery(
    ...   {
    ...     'model': queries.GaussianSumQuery(
    ...       clip_norm=1.0, noise_multiplier=2.0, record_specs=tf.TensorSpec([3])
    ...     ),
    ...     'votes': queries.LaplaceSumQuery(
    ...       clip_norm=1.0, noise_multiplier=8.0, record_specs=tf.TensorSpec([10])
    ...     ),
    ...   }
    ... )
    >>> state = query.initial_global_state()
    >>> sums = query.initial_sample_state()
    >>> noised, state, _ = query.get_noised_result(sums, state)
    >>> for event in query.spent(state).to_event().events:
    ...   print(event)
    LaplaceDpEvent(noise_multiplier=8.0)
    GaussianDpEvent(noise_multiplier=2.0)
  """

  def __init__(self, sub_queries: Any):
    """Initializes the query from a structure of queries that sum on the grid.

    Raises:
      TypeError: If a query does not sum on the grid.
      ValueError: If there is no query, or two have the same noise.
    """
    super().__init__(record_specs=None)
    # Structure of the queries of the parts.
    self.sub_queries = sub_queries
    self._flat = flat = tf.nest.flatten(sub_queries)
    if not flat:
      raise ValueError(f'sub_queries must have a query in it; got {sub_queries!r}.')
    for query in flat:
      matrix_mechanism.check_grid_sum('each of sub_queries', query)
    self.min_clients = max(query.min_clients for query in flat)
    self.clients_draw_keys = any(query.clients_draw_keys for query in flat)
    self.clients_add_noise = any(query.clients_add_noise for query in flat)
    noises = self.noise_identities
    for noise in noises:
      if noises.count(noise) > 1:
        raise ValueError(
          f'two of sub_queries have the noise of {noise}: it would cancel between '
          'them. Give each another seed, or an int, of which each takes its own stream.'
        )

  @property
  def generator(self) -> str:
    """Generators of the random words for the noise of the queries, each once."""
    return ', '.join(dict.fromkeys(query.generator for query in self._flat))

  @property
  def noise_identities(self) -> tuple[str, ...]:
    """Seeds and streams of the noise of the queries."""
    return tuple(each for query in self._flat for each in query.noise_identities)

  def initial_global_state(self) -> Any:
    """Returns the states of the queries before round 0."""
    return self._map(lambda query: query.initial_global_state())

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns the parameters of each query for clients."""
    return self._map(
      lambda query, state: query.derive_sample_params(state), state=global_state
    )

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records."""
    if template is None:
      return self._map(lambda query: query.initial_sample_state())
    return self._map(
      lambda query, part: query.initial_sample_state(part), template=template
    )

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record's parts on their grids, and whether all were finite."""
    return self._encoded(
      lambda query, param, part: query.encode_record(param, part), params, record
    )

  def _encoded(
    self, encode: Callable[..., Any], params: Any, record: Any
  ) -> tuple[Any, tf.Tensor]:
    """Returns the samples made by `encode`, and whether all parts were finite."""
    encoded, item = self._call(encode, params=params, record=record)
    return item(0), tf.reduce_all(tf.stack([finite for _, finite in encoded]))

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the result of `encode_record` without the clients' noise."""
    return self._encoded(
      lambda query, param, part: query.encode_without_noise(param, part), params, record
    )

  def round_key(self, global_state: Any) -> Any:
    """Returns the key of the noise of a round's clients, for each query."""
    return self._map(lambda query, state: query.round_key(state), state=global_state)

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns the sums with the noise of client `number` added to its parts."""
    return self._map(
      lambda query, *args: query.with_noise_of(*args, number),
      params=params,
      sample_state=sample_state,
      round_key=round_key,
    )

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the noised sums, the next states, and the composed event."""
    released, item = self._call(
      lambda query, total, state: query.get_noised_result(total, state),
      sample_state=sample_state,
      global_state=global_state,
    )
    event = dp_accounting.ComposedDpEvent([event for _, _, event in released])
    return item(0), item(1), event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the private mean of a round, for each query."""
    return self._map(
      lambda query, part: query.mean_of(part, clients_per_round), result=result
    )

  def signal_and_noise(
    self, sample_state: Any, global_state: Any
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the norm of the sum of all parts, and the mean square of the noise."""
    measured, _ = self._call(
      lambda query, total, state: query.signal_and_noise(total, state),
      sample_state=sample_state,
      global_state=global_state,
    )
    signal = tf.sqrt(tf.add_n([tf.square(norm) for norm, _ in measured]))
    return signal, tf.add_n([squared for _, squared in measured])

  def spent(self, global_state: Any) -> matrix_mechanism.ComposedSpent:
    """Returns the privacy spent by each query, to be composed."""
    parts, _ = self._call(lambda query, state: query.spent(state), state=global_state)
    return matrix_mechanism.ComposedSpent(tuple(parts))

  def derive_metrics(self, global_state: Any) -> matrix_mechanism.Metrics:
    """Returns the metrics of the queries, under `path/name`, as in TF Privacy."""
    metrics: collections.OrderedDict[str, tf.Tensor] = collections.OrderedDict()

    def add(path: str, query: matrix_mechanism.GridSumQuery, state: Any) -> None:
      for name, metric in query.derive_metrics(state).items():
        metrics[f'{path}{name}'] = metric

    _map_with_path(add, '', self.sub_queries, {'global_state': global_state})
    return metrics

  def _map(self, function: Callable[..., Any], **structures: Any) -> Any:
    """Returns the results of `function(query, *parts)`, in the queries' structure."""
    return _map_with_path(
      lambda unused_path, *parts: function(*parts), '', self.sub_queries, structures
    )

  def _call(
    self, function: Callable[..., Any], **structures: Any
  ) -> tuple[list[Any], Callable[[int], Any]]:
    """Calls a function for each query, which returns a tuple.

    Returns these tuples, and a function from i to items i in the queries' structure.
    """
    results: list[Any] = []

    def add(*parts: Any) -> int:
      results.append(function(*parts))
      return len(results) - 1

    indices = self._map(add, **structures)
    return results, lambda i: self._map(lambda _, j: results[j][i], indices=indices)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.sub_queries!r})'


def _map_with_path(
  function: Callable[..., Any], path: str, shallow: Any, structures: dict[str, Any]
) -> Any:
  """Returns the results of `function(path, leaf, *parts)`, in the shallow structure."""
  keys = _keys(shallow)
  if keys is None:
    return function(path, shallow, *structures.values())
  for name, value in structures.items():
    value_keys = _keys(value)
    if value_keys is None or set(value_keys) != set(keys):
      raise ValueError(  # The message must not contain values, which are clients' data.
        f'{name} must have the structure of the queries, with the parts {keys} at '
        f'{path or "the top"}; got a {type(value).__name__} with {value_keys}.'
      )
  names = getattr(shallow, '_fields', keys)
  mapped = [
    _map_with_path(
      function,
      f'{path}{name}/',
      shallow[key],
      {argument: value[key] for argument, value in structures.items()},
    )
    for key, name in zip(keys, names)
  ]
  if hasattr(shallow, '_fields'):
    return type(shallow)(*mapped)
  return type(shallow)(zip(keys, mapped) if isinstance(shallow, Mapping) else mapped)


def _keys(structure: Any) -> Optional[list[Any]]:
  """Returns the keys or indices of the parts of a structure; `None` for a leaf."""
  if isinstance(structure, Mapping):
    return list(structure)
  if isinstance(structure, (list, tuple)):
    return list(range(len(structure)))
  return None


class JointSumQuery(NestedSumQuery):
  """Sums records of any structure; each tensor belongs to the query of its part.

  It is a `NestedSumQuery` for records that are not structured by part, such as the
  weights of a model. The result has the structure of a record again.
  """

  def __init__(
    self,
    sub_queries: Mapping[str, matrix_mechanism.GridSumQuery],
    *,
    part_of: Sequence[str],
    record_specs: Any,
  ):
    """Initializes the query.

    Args:
      sub_queries: Each part's query by name; its records are tuples of its tensors.
      part_of: The part of each tensor, in the order of `tf.nest.flatten`.
      record_specs: Structure of float tensor specs like a record.

    Raises:
      TypeError: If a query does not sum on the grid.
      ValueError: If `part_of` does not fit, or two parts have the same noise.
    """
    super().__init__(collections.OrderedDict(sorted(sub_queries.items())))
    self._part_of = check_parts(part_of, sub_queries, record_specs)
    self._structure = record_specs

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records, by part."""
    return super().initial_sample_state(
      None if template is None else self._split(template)
    )

  def _encoded(
    self, encode: Callable[..., Any], params: Any, record: Any
  ) -> tuple[Any, tf.Tensor]:
    return super()._encoded(encode, params, self._split(record))

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the noised sum like a record, next states, and the composed event."""
    results, states, event = super().get_noised_result(sample_state, global_state)
    return self._join(results), states, event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the private mean of a round, like a record."""
    parts = super().mean_of(self._split(result), clients_per_round)
    return self._join(parts)

  def _join(self, parts: Mapping[str, Any]) -> Any:
    """Returns a structure like a record, given its tensors by part."""
    remaining = {name: iter(part) for name, part in parts.items()}
    flat = [next(remaining[name]) for name in self._part_of]
    return tf.nest.pack_sequence_as(self._structure, flat)

  def _split(self, record: Any) -> 'collections.OrderedDict[str, tuple[Any, ...]]':
    """Returns a record's tensors by part."""
    flat = tf.nest.flatten(record)
    if len(flat) != len(self._part_of):
      raise ValueError(
        f'a record has {len(self._part_of)} tensors, those of part_of; got {len(flat)}.'
      )
    return by_part(flat, self._part_of)


def by_part(
  flat: Sequence[Any], part_of: Sequence[str]
) -> 'collections.OrderedDict[str, tuple[Any, ...]]':
  """Returns the items of each part; parts are in the order of their names."""
  return collections.OrderedDict(
    (name, tuple(each for each, part in zip(flat, part_of) if part == name))
    for name in sorted(set(part_of))
  )


def check_parts(
  part_of: Sequence[str],
  parts: Mapping[str, Any],
  record_specs: Optional[Any] = None,
) -> tuple[str, ...]:
  """Returns the part of each tensor as a tuple, after checking the names and number."""
  if isinstance(part_of, str) or not all(isinstance(name, str) for name in part_of):
    raise TypeError(
      f'part_of must be a sequence of names, one for each tensor; got {part_of!r}.'
    )
  if set(part_of) != set(parts):
    raise ValueError(
      f'part_of must name each of the parts, {sorted(parts)}, and no other; got '
      f'{list(part_of)}.'
    )
  if record_specs is not None:
    specs = tf.nest.flatten(record_specs)
    if len(specs) != len(part_of):
      raise ValueError(
        f'part_of has {len(part_of)} names, and a value {len(specs)} tensors: '
        f'{[tuple(spec.shape) for spec in specs]}. Give the part of each.'
      )
  return tuple(part_of)

"""One record, whose tensors belong to parts that have queries of their own."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.queries import nested
from tff_dp_aggregators.queries import records


class JointSumQuery(nested.NestedSumQuery):
  """Sums records of any structure, each tensor by the query of its part.

  A `NestedSumQuery` for records that are not made of parts already, such as the weights
  of a model: what is released has the structure of a record again. Each part is clipped
  by itself, and a client takes part in all of them, so events compose.

  Example:
    >>> from tff_dp_aggregators import queries
    >>> body, head = tf.TensorSpec([3]), tf.TensorSpec([2])
    >>> query = JointSumQuery(
    ...   {
    ...     'body': queries.GaussianSumQuery(
    ...       clip_norm=1.0, noise_multiplier=0.0, record_specs=(body,)
    ...     ),
    ...     'head': queries.GaussianSumQuery(
    ...       clip_norm=0.5, noise_multiplier=0.0, record_specs=(head,)
    ...     ),
    ...   },
    ...   part_of=['body', 'head'],
    ...   record_specs=[body, head],
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sums = query.preprocess_record(params, [tf.fill([3], 4.0), tf.fill([2], 3.0)])
    >>> released, _, _ = query.get_noised_result(sums, state)
    >>> [float(tf.norm(tensor).numpy().round(4)) for tensor in released]
    [1.0, 0.5]
  """

  def __init__(
    self,
    sub_queries: Mapping[str, records.GridSumQuery],
    *,
    part_of: Sequence[str],
    record_specs: Any,
  ):
    """Initializes the query.

    Args:
      sub_queries: Of each part, by name, for records that are tuples of its tensors.
      part_of: The part of each tensor, in the order of `tf.nest.flatten`.
      record_specs: Structure of float tensor specs like a record.

    Raises:
      TypeError: If one of them is no query that sums on the grid.
      ValueError: If `part_of` does not fit the record or the parts, or two parts have
        the same noise.
    """
    super().__init__(collections.OrderedDict(sorted(sub_queries.items())))
    self._part_of = check_parts(part_of, sub_queries, record_specs)
    self._structure = record_specs

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records, by part.

    Args:
      template: Structure of float tensors or their specs like a record; `None` for the
        `record_specs` of the queries.

    Raises:
      TypeError: If a query refuses its part of the template.
      ValueError: If a query refuses it, or it has not the structure of a record.
    """
    return super().initial_sample_state(
      None if template is None else self._split(template)
    )

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record's parts on their grids, and whether all of them were finite.

    Args:
      params: From `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If a query refuses its part of the record.
      ValueError: If a query refuses it, or it has not the structure of a record.
    """
    return super().encode_record(params, self._split(record))

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the noise that clients add.

    Args:
      params: From `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If a query refuses its part of the record.
      ValueError: If a query refuses it, or it has not the structure of a record.
    """
    return super().encode_without_noise(params, self._split(record))

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the noised sum like a record, the next states, and the events composed.

    Args:
      sample_state: Sum of the round's preprocessed records, integers by part.
      global_state: State before the round.

    Raises:
      tf.errors.InvalidArgumentError: If a query refuses its state.
    """
    results, states, event = super().get_noised_result(sample_state, global_state)
    return self._together(results), states, event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns what a private mean releases of a round, of each part.

    Args:
      result: From `get_noised_result`.
      clients_per_round: What sums are divided by.
    """
    parts = super().mean_of(self._split(result), clients_per_round)
    return self._together(parts)

  def _together(self, parts: Mapping[str, Any]) -> Any:
    """A structure like a record, of its tensors by part."""
    remaining = {name: iter(part) for name, part in parts.items()}
    flat = [next(remaining[name]) for name in self._part_of]
    return tf.nest.pack_sequence_as(self._structure, flat)

  def _split(self, record: Any) -> 'collections.OrderedDict[str, tuple[Any, ...]]':
    """A record's tensors by part."""
    flat = tf.nest.flatten(record)
    if len(flat) != len(self._part_of):
      raise ValueError(
        f'a record has {len(self._part_of)} tensors, those of part_of; got {len(flat)}.'
      )
    return by_part(flat, self._part_of)


def by_part(
  flat: Sequence[Any], part_of: Sequence[str]
) -> 'collections.OrderedDict[str, tuple[Any, ...]]':
  """What belongs to each part, parts in the order of their names.

  Args:
    flat: Tensors, or what stands for them.
    part_of: The part of each.

  Example:
    >>> list(by_part([1, 2, 3], ['b', 'a', 'b']).items())
    [('a', (2,)), ('b', (1, 3))]
  """
  return collections.OrderedDict(
    (name, tuple(each for each, part in zip(flat, part_of) if part == name))
    for name in sorted(set(part_of))
  )


def check_parts(
  part_of: Sequence[str],
  parts: Mapping[str, Any],
  record_specs: Optional[Any] = None,
) -> tuple[str, ...]:
  """Returns the part of each tensor, if each is there and has tensors.

  Args:
    part_of: What the caller passed.
    parts: By name.
    record_specs: Structure like a record; `None` if that is not known yet.

  Raises:
    TypeError: If `part_of` is no sequence of names.
    ValueError: If a name is unknown, a part has no tensor, or there are more or fewer
      names than tensors.
  """
  if isinstance(part_of, str) or not all(isinstance(name, str) for name in part_of):
    raise TypeError(
      f'part_of must be a sequence of names, one for each tensor; got {part_of!r}.'
    )
  for name in part_of:
    if name not in parts:
      raise ValueError(f'part_of has {name!r}; the parts are {sorted(parts)}.')
  for name in parts:
    if name not in part_of:
      raise ValueError(
        f'the part {name!r} has no tensor: part_of is {list(part_of)}. Leave it out, '
        'or say which tensors are of it.'
      )
  if record_specs is not None:
    specs = tf.nest.flatten(record_specs)
    if len(specs) != len(part_of):
      raise ValueError(
        f'part_of has {len(part_of)} names, and a value {len(specs)} tensors: '
        f'{[tuple(spec.shape) for spec in specs]}. Give the part of each.'
      )
  return tuple(part_of)

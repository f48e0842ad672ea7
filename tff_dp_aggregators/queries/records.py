"""What a record may be, and how records are summed.

Records are structures of float tensors. Who takes one takes it through here, so the
same records are served everywhere and the others refused in the same words. Messages
tell dtypes and shapes and never a value: they end up in logs, and a record is
somebody's data.
"""

import abc
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators.queries import dp_query
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import spent as spent_lib

_HALF = (tf.float16, tf.bfloat16)
_DTYPES = (*_HALF, tf.float32, tf.float64)


def as_tensors(record: Any) -> Any:
  """Returns a record as the tensors that are added up.

  Args:
    record: Structure of float tensors, or of what TensorFlow converts to them.

  Returns:
    The structure of tensors; half precision (float16, bfloat16) becomes float32.

  Raises:
    TypeError: If a part is not a dense tensor of a floating-point dtype.
  """
  return tf.nest.map_structure(_as_tensor, record)


def _as_tensor(part: Any) -> tf.Tensor:
  try:
    tensor = tf.convert_to_tensor(part)
  except (TypeError, ValueError):
    raise TypeError(
      'a record must be a structure of float tensors, got a part of type '
      f'{type(part).__name__}.'
    ) from None
  if tensor.dtype not in _DTYPES:
    raise TypeError(
      'a record must be a structure of float16, bfloat16, float32 or float64 tensors, '
      f'got {tensor.dtype.name} of shape {tensor.shape}; cast it before it is '
      'aggregated.'
    )
  return tf.cast(tensor, tf.float32) if tensor.dtype in _HALF else tensor


def check_record(record: Any, record_specs: Any) -> Any:
  """Returns a record as tensors, or says where it is not what was announced.

  Args:
    record: Structure of float tensors.
    record_specs: Structure of `tf.TensorSpec`s of float32 and float64, as a sum of
      records is accumulated in.

  Returns:
    The structure of tensors; half precision (float16, bfloat16) becomes float32.

  Raises:
    TypeError: If a dtype or the kind of a container differs.
    ValueError: If the number or names of tensors, or a shape, differ.

  Example:
    >>> check_record([tf.zeros([2])], [tf.TensorSpec([3])])
    Traceback (most recent call last):
    ...
    ValueError: a record has a tensor of shape (2,) where record_specs has (3,).
  """
  record = as_tensors(record)
  try:
    tf.nest.assert_same_structure(record, record_specs)
  except (TypeError, ValueError) as error:
    # TensorFlow's own message prints the values.
    given = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), record)
    raise type(error)(
      f'a record must have the structure of record_specs, {record_specs}; got {given}.'
    ) from None

  def check(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if tensor.dtype != spec.dtype:
      raise TypeError(
        f'a record has a {tensor.dtype.name} tensor where record_specs has '
        f'{spec.dtype.name}.'
      )
    if not tensor.shape.is_compatible_with(spec.shape):
      raise ValueError(
        f'a record has a tensor of shape {tensor.shape} where record_specs has '
        f'{spec.shape}.'
      )
    return tf.ensure_shape(tensor, spec.shape)

  return tf.nest.map_structure(check, record, record_specs)


class RecordSumQuery(dp_query.SumAggregationDPQuery):
  """What all queries have in common: records like the ones announced.

  Half precision is summed in float32.
  """

  def __init__(self, record_specs: Optional[Any] = None):
    """Initializes the query.

    Args:
      record_specs: Structure of float tensor specs like a record. `None` takes
        records as they come; `initial_sample_state` needs a template then.

    Raises:
      TypeError: If a tensor is not of a float dtype.
      ValueError: If a shape is not fully defined.
    """
    self._record_specs = None if record_specs is None else noise.sum_specs(record_specs)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros like `template`, by default like the query's records.

    Half precision becomes float32.

    Args:
      template: Structure of float tensors or their specs; `None` for `record_specs`.

    Raises:
      TypeError: If the template is not made of float tensors, or a dtype or container
        is not that of `record_specs`.
      ValueError: If its structure or a shape is not that of `record_specs`, or there is
        neither of the two.
    """
    template = self._record_specs if template is None else template
    if template is None:
      raise ValueError(
        'initial_sample_state needs a template, or the query record_specs.'
      )
    return self._check(super().initial_sample_state(template))

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record as tensors, half precision in float32.

    Args:
      params: Not used.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    del params
    return self._check(record)

  def _check(self, record: Any) -> Any:
    if self._record_specs is None:
      return as_tensors(record)
    return check_record(record, self._record_specs)


class GridSumQuery(RecordSumQuery):
  """What the queries have in common that bound records: sums of integers (`grid`).

  A query sees sums and does not count their records. Who uses it without
  `aggregators`, which count, has to see to it that no sum is of more than
  `grid.MAX_CLIENTS`.
  """

  @property
  def clients_draw_keys(self) -> bool:
    """Whether each execution of `encode_record` draws a key of its own.

    Clients that are vectorised in one computation would share it, and their noise.
    """
    return False

  @property
  def clients_add_noise(self) -> bool:
    """Whether what `encode_record` returns has noise of the client's in it."""
    return False

  @property
  def noise_identities(self) -> tuple[str, ...]:
    """Which streams of which seeds its noise is of; none where it is secret."""
    identity = getattr(self, 'seed_identity', 'secret')
    return () if identity == 'secret' else (identity,)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records: int64 zeros like `template`.

    Args:
      template: Structure of float tensors or their specs; `None` for `record_specs`.

    Raises:
      TypeError: If the template is not made of float tensors, or a dtype or container
        is not that of `record_specs`.
      ValueError: If its structure or a shape is not that of `record_specs`, or there is
        neither of the two.
    """
    return grid.zeros_like(super().initial_sample_state(template))

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record clipped, in steps of the grid; zeros if it is not finite.

    Args:
      params: From `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    sample, _ = self.encode_record(params, record)
    return sample

  @abc.abstractmethod
  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `preprocess_record` does, and whether the record was finite.

    Args:
      params: From `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: As `preprocess_record`.
      ValueError: As `preprocess_record`.
    """

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns what a private mean releases of a round.

    Args:
      result: From `get_noised_result`.
      clients_per_round: What sums are divided by.

    Returns:
      A sum divided by that; what is no sum stays as it is.
    """
    return tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(clients_per_round, tensor.dtype), result
    )

  # For simulations, which have many clients in one computation and number them.

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the client's noise.

    Args:
      params: From `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: As `preprocess_record`.
      ValueError: As `preprocess_record`.
    """
    return self.encode_record(params, record)

  def add_without_noise(
    self, params: Any, sample_state: Any, several: Sequence[Any]
  ) -> tuple[Any, tf.Tensor]:
    """Returns a sum with some more records, and which of these were finite.

    Args:
      params: From `derive_sample_params`.
      sample_state: Sum of what `encode_without_noise` returns of records.
      several: The records, structures of float tensors.

    Raises:
      TypeError: As `preprocess_record`.
      ValueError: As `preprocess_record`.
    """
    finite = []
    for record in several:
      sample, is_finite = self.encode_without_noise(params, record)
      sample_state = tf.nest.map_structure(tf.add, sample_state, sample)
      finite.append(is_finite)
    return sample_state, tf.stack(finite)

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of records that are stacked, and which of them were finite.

    Args:
      params: From `derive_sample_params`.
      stacked: Structure like a record, with an entry of each tensor for each record.

    Raises:
      TypeError: As `preprocess_record`.
      ValueError: As `preprocess_record`.
    """
    samples, finite = tf.vectorized_map(
      lambda record: self.encode_without_noise(params, record),
      stacked,
      fallback_to_while_loop=False,
    )
    sums = tf.nest.map_structure(lambda each: tf.reduce_sum(each, axis=0), samples)
    return sums, finite

  def _encodes_as(self, query: 'type[GridSumQuery]') -> bool:
    """Whether a subclass has left alone how this one of its bases encodes."""
    names = ('encode_record', 'encode_without_noise', 'preprocess_record')
    return all(getattr(type(self), each) is getattr(query, each) for each in names)

  def round_key(self, global_state: Any) -> Any:
    """What the noise of a round's clients follows from; empty if they add none.

    Args:
      global_state: State before the round.
    """
    del global_state
    return ()

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns a sum of records with the noise that one more client adds, if it does.

    Args:
      params: From `derive_sample_params`.
      sample_state: Sum of records.
      round_key: From `round_key`.
      number: The client's, an int64 scalar of which no two clients of a round have the
        same.
    """
    del params, round_key, number
    return sample_state

  def signal_and_noise(
    self, sample_state: Any, global_state: Any
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how long a round's exact sum is, and how long its noise is to be.

    The first is not private: it is of clients, and exact.

    Args:
      sample_state: Sum of the round's preprocessed records.
      global_state: State before the round.

    Returns:
      The L2 norm of the sum, without noise, and the expected square of that of its
      noise; float64 scalars.

    Raises:
      ValueError: If queries of this kind do not tell.
    """
    del sample_state, global_state
    raise ValueError(
      f'{type(self).__name__} does not tell its signal from its noise; leave the '
      'measurement of both out.'
    )

  def _num_coordinates(self) -> int:
    """How many numbers a record has."""
    specs = tf.nest.flatten(self._record_specs)
    return sum(spec.shape.num_elements() for spec in specs)

  @abc.abstractmethod
  def spent(self, global_state: Any) -> spent_lib.Spent:
    """Returns what all rounds that led to a state have spent, and the last of them.

    Args:
      global_state: State before or after any round.
    """

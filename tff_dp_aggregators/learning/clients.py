"""Reads clients' examples from any container, and checks them against the model.

A client's examples are read when they are needed: nothing copies the population.
"""

import collections
import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws

# Examples that are read from a dataset at a time.
_BATCH = 1024
# Limits of one client's dataset, MAX_EXAMPLES only of those of unknown cardinality.
# TFF cannot send more than MAX_BYTES, and reading an endless dataset has to stop.
MAX_EXAMPLES, MAX_BYTES = 2**20, 2**31
_NUM_READ_TWICE = 8  # Clients that `check_repeatable` compares.
# Operations on a dataset that leave batches, or single examples, as they are.
_KEEPING = (
  *('Assert', 'Cache', 'Filter', 'FiniteTake', 'Map', 'Model', 'Options'),
  *('ParallelMap', 'Prefetch', 'Repeat', 'Shuffle', 'Skip', 'Take'),
)
_WHY_FINITE = 'Its update would count as zero in each round.'


class Clients:
  """The clients of a training run: their ids, and the examples of each.

  Attributes:
    ids: The ids, sorted. A client's number, which schedules use, is its index in
      `ids`; it does not depend on the order in which clients are given.

  Example:
    >>> clients = Clients.of({'b': ([[3.0]], [1]), 'a': ([[1.0], [2.0]], [0, 1])})
    >>> clients.ids, len(clients)
    (('a', 'b'), 2)
    >>> inputs, labels = clients.examples(0)
    >>> inputs.tolist(), labels.tolist()
    ([[1.0], [2.0]], [0, 1])
  """

  def __init__(
    self,
    ids: Sequence[Any],
    read: Callable[[Any], Any],
    input_spec: Any = None,
    draw_id: Optional[Callable[[Any], Any]] = None,
  ):
    """`ids` are all strings or all integers; `read` returns the examples of one."""
    self.ids = _sorted_ids(ids)
    self._read = read
    self._draw_id = draw_id
    self._whose_spec = f'client {self.ids[0]!r} has'
    if input_spec is not None:
      self.element_spec = tf.nest.map_structure(_without_batch, input_spec)
      self._whose_spec = 'the model takes'
    self._check: Optional[Callable[[Any, str], None]] = None

  @classmethod
  def of(cls, clients: Any, input_spec: Any = None) -> 'Clients':
    """Makes `Clients` from a container of clients.

    A client's examples are a structure of arrays with an entry for each example: an
    array, a tuple of arrays such as x and y, or a mapping of names to arrays; or a
    `tf.data.Dataset` of single examples, not of batches. A list is an array. Models
    take a tuple of inputs and labels, or the names x and y and no others. All numbers
    must be finite, and the same whenever a client is read: shuffling and random draws
    need seeds. A dataset must end within `MAX_BYTES`, and within `MAX_EXAMPLES` if its
    cardinality is unknown.

    Args:
      clients: A mapping of ids to examples; a `tff.simulation.datasets.ClientData`; or
        an object with `ids`, and `examples(id)` or `[id]`. An object with a length and
        `examples` needs no ids; they are then indices. Where ids are mere indices,
        which change when a client is removed, the object has `draw_id(id)` as well: a
        string or number that stays with the client, by which cohorts are drawn.
      input_spec: The model's input spec: a structure of `tf.TensorSpec` whose first
        dimension is the batch. Examples that are tuples take the names that it has.
        `None` means the spec of the first client's examples.

    Raises:
      TypeError: If `clients` is none of these, or ids are neither strings nor numbers.
      ValueError: If there are no clients, or two with the same id.
    """
    if isinstance(clients, cls):
      if input_spec is None:
        return clients
      return cls(clients.ids, clients._read, input_spec, clients._draw_id)
    if isinstance(clients, tff.simulation.datasets.ClientData):
      read = clients.create_tf_dataset_for_client
      return cls(clients.client_ids, read, input_spec)
    if isinstance(clients, Mapping):
      return cls(list(clients), clients.__getitem__, input_spec)
    ids = getattr(clients, 'ids', None)
    if ids is None and hasattr(clients, 'examples') and hasattr(clients, '__len__'):
      ids = range(len(clients))
    read = getattr(clients, 'examples', None) or getattr(clients, '__getitem__', None)
    if ids is None or read is None:
      raise TypeError(
        'clients must be a mapping of ids to examples, a '
        'tff.simulation.datasets.ClientData, or an object with ids, and examples(id) '
        f'or [id]; got {type(clients).__name__}.'
      )
    return cls(ids, read, input_spec, getattr(clients, 'draw_id', None))

  @property
  def draw_ids(self) -> Sequence[Any]:
    """The ids by which clients are drawn, by number: `ids` if there is no `draw_id`.

    Raises:
      ValueError: If two clients have the same one: they would be drawn together.
    """
    if self._draw_id is None:
      return self.ids
    ids = [self._draw_id(id_) for id_ in self.ids]
    draws.check_ids(ids, 'draw_id')
    return ids

  def __len__(self) -> int:
    return len(self.ids)

  @functools.cached_property
  def element_spec(self) -> Any:
    """Structure of `tf.TensorSpec` of one example."""
    return example_spec(as_arrays(self._read(self.ids[0]), self.owner(0)))

  def examples(self, number: int) -> Any:
    """Returns the examples of one client, in the order in which they are stored.

    They have the structure of `element_spec`, in arrays with an entry for each example.

    Raises:
      ValueError: If the client has no examples, its arrays differ in length, they do
        not match `element_spec`, or a number is NaN or infinite; the message names the
        client's id.
    """
    number = checks.check_int('number', number, at_least=0)
    owner = self.owner(number)
    arrays = as_arrays(self._read(self.ids[number]), owner)
    check_finite(arrays, owner)
    fitted = _fitted(self.element_spec, arrays)
    if fitted is None:
      raise ValueError(
        f'{owner} has {_in_words(example_spec(arrays))} for each example, and '
        f'{self._whose_spec} {_in_words(self.element_spec)}. Convert it, by .astype or '
        '.reshape.'
      )
    if self._check is not None:
      self._check(fitted, owner)
    return fitted

  @property
  def are_batched(self) -> bool:
    """Whether the first client's dataset is one of batches."""
    kept = self._read(self.ids[0])
    return isinstance(kept, tf.data.Dataset) and _ends_in_batches(kept)

  def checked_by(self, check: Callable[[Any, str], None]) -> 'Clients':
    """Returns the same clients, with `check(examples, owner)` called on each read."""
    other = copy.copy(self)
    other._check = check
    return other

  def owner(self, number: int) -> str:
    """The client's name in error messages."""
    return f'client {self.ids[number]!r}'


def check_finite(examples: Any, owner: str, why: str = _WHY_FINITE) -> None:
  """Refuses NaN and infinity, which would make the client's update not finite."""
  is_pair = isinstance(examples, tuple) and len(examples) == 2
  for path, array in _leaves_by_path(examples):
    if array.dtype.kind in 'biu':
      continue
    if array.dtype.kind not in 'fc':  # Such as bfloat16, which NumPy does not know.
      array = array.astype(np.float32)
    finite = np.isfinite(array)
    if not finite.all():
      first = tuple(int(each) for each in np.argwhere(~finite)[0])
      name = f'{"xy"[int(path[0])]}{path[1:]}' if is_pair else path
      raise ValueError(
        f'{owner}: {name}{list(first)} is {array[first]}, which is not finite. {why} '
        'Fill in a number, or remove the row.'
      )


def check_repeatable(clients: Clients) -> None:
  """Refuses clients whose examples differ when read again; reads only a few twice."""
  numbers = np.linspace(0, len(clients) - 1, _NUM_READ_TWICE).round().astype(int)
  for number in np.unique(numbers):
    first = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
    second = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
    if not all(map(np.array_equal, first, second)):
      raise ValueError(
        f'the examples of {clients.owner(number)} differ when they are read again: a '
        'round that is run again would train on something else. Leave out shuffle, as '
        'training orders examples itself, or give it a seed and '
        'reshuffle_each_iteration=False; in map use tf.random.stateless_...; or read '
        'all examples once, into arrays.'
      )


def _ends_in_batches(dataset: tf.data.Dataset) -> bool:
  """Whether the last operation that makes or undoes batches makes them."""
  try:
    serialized = tf.raw_ops.DatasetToGraphV2(
      input_dataset=dataset._variant_tensor,
      external_state_policy=1,  # Ignores state in Python, such as generators.
    )
  except tf.errors.OpError:  # It cannot be serialized.
    return False
  graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
  nodes = {node.name: node for node in graph.node}
  node = next((node for node in graph.node if node.op == '_Retval'), None)
  while node is not None and node.input:
    node = nodes[node.input[0].split(':')[0]]
    if 'Batch' in node.op:
      return True
    if not node.op.startswith(_KEEPING):
      return False
  return False


def _sorted_ids(ids: Any) -> Sequence[Any]:
  if isinstance(ids, range) and ids.step > 0 and len(ids):
    return ids  # It is sorted already, and takes no memory.
  sorted_ids = list(ids)
  if not sorted_ids:
    raise ValueError('there are no clients; give at least one.')
  kinds: tuple[Any, ...] = (str, bytes, (int, np.integer))
  if not any(all(isinstance(id_, kind) for id_ in sorted_ids) for kind in kinds):
    raise TypeError(
      'ids of clients must be all texts or all whole numbers, which have an order; '
      f'got such as {sorted_ids[0]!r} and {sorted_ids[-1]!r}.'
    )
  sorted_ids.sort()
  for previous, current in zip(sorted_ids, sorted_ids[1:]):
    if previous == current:
      raise ValueError(f'two clients have the id {previous!r}; ids must differ.')
  return tuple(sorted_ids)


def as_arrays(examples: Any, owner: str) -> Any:
  """A client's examples as a structure of arrays of one length above 0."""
  if isinstance(examples, tf.data.Dataset):
    examples = _from_dataset(examples, owner)
  arrays = _map_leaves(lambda path, value: _array(value, path, owner), examples)
  lengths = [(path, len(array)) for path, array in _leaves_by_path(arrays)]
  check_lengths(lengths, owner)
  if not any(length for _, length in lengths):
    raise ValueError(f'{owner} has no examples; leave it out.')
  return arrays


def _from_dataset(dataset: tf.data.Dataset, owner: str) -> Any:
  """Reads a dataset of single examples into arrays, up to the limits above."""
  cardinality = int(dataset.cardinality())
  batches = []
  count = num_bytes = 0
  try:
    for batch in dataset.batch(_BATCH).as_numpy_iterator():
      flat = [np.asarray(each) for each in tf.nest.flatten(batch)]
      count += len(flat[0])
      num_bytes += sum(each.nbytes for each in flat)
      is_long = count > MAX_EXAMPLES and cardinality == tf.data.UNKNOWN_CARDINALITY
      if (
        cardinality == tf.data.INFINITE_CARDINALITY or is_long or num_bytes > MAX_BYTES
      ):
        raise ValueError(
          f'the dataset of {owner} goes on after {count} examples of {num_bytes} '
          f'bytes: it must end, after {MAX_BYTES} bytes at most, and after '
          f'{MAX_EXAMPLES} examples if it does not say how many. Use .take(n), and '
          'leave out .repeat(), as the epochs say how often a client goes through '
          'them; or give arrays.'
        )
      batches.append(batch)
  except (tf.errors.InvalidArgumentError, TypeError) as e:
    raise ValueError(
      f'the examples of {owner} differ in shape, or are ragged or sparse, and make no '
      f'array: {e}'
    ) from e
  if not batches:
    return np.zeros(0)
  return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)


def _array(value: Any, path: str, owner: str) -> np.ndarray:
  got = type(value).__name__
  try:
    array = np.asarray(value)
    got = f'{array.dtype} of shape {array.shape}'
    if array.ndim and tf.as_dtype(array.dtype) != tf.string:
      return array
  except (TypeError, ValueError) as e:  # It is of no shape, or of no dtype of models.
    got = f'{got}: {e}'
  raise ValueError(
    f'{path} of {owner} must be an array of numbers, with an entry for each example; '
    f'got {got}. Encode texts as numbers first.'
  )


def _fitted(spec: Any, arrays: Any) -> Any:
  """Arrays in the structure of a spec; `None` if they differ from it."""
  if isinstance(spec, Mapping) and isinstance(arrays, tuple):
    arrays = dict(zip(spec, arrays)) if len(spec) == len(arrays) else arrays
  by_path, specs = dict(_leaves_by_path(arrays)), dict(_leaves_by_path(spec))
  fits = by_path.keys() == specs.keys() and all(
    each.dtype == tf.as_dtype(by_path[path].dtype)
    and each.shape.is_compatible_with(by_path[path].shape[1:])
    for path, each in specs.items()
  )
  return _map_leaves(lambda path, _: by_path[path], spec) if fits else None


def example_spec(batch: Any) -> Any:
  """The spec of one example of a batch, of which there are arrays or specs."""
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec(each.shape[1:], each.dtype), batch
  )


def batch_spec(example: Any) -> Any:
  """The spec of a batch of examples with this spec."""
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec([None, *each.shape], each.dtype), example
  )


def _in_words(spec: Any) -> str:
  words = tf.nest.map_structure(
    lambda each: f'{each.dtype.name}{list(each.shape)}', spec
  )
  return str(dict(words) if isinstance(words, Mapping) else words)


def _map_leaves(function: Callable[[str, Any], Any], value: Any, path: str = '') -> Any:
  """Applies a function to path and value of each leaf of mappings and tuples."""
  if not isinstance(value, (Mapping, tuple)):
    return function(path or 'the array', value)
  items = value.items() if isinstance(value, Mapping) else enumerate(value)
  mapped = collections.OrderedDict(
    (key, _map_leaves(function, each, f'{path}.{key}' if path else f'{key}'))
    for key, each in items
  )
  return mapped if isinstance(value, Mapping) else tuple(mapped.values())


def _leaves_by_path(structure: Any) -> list[tuple[str, Any]]:
  leaves: list[tuple[str, Any]] = []
  _map_leaves(lambda path, value: leaves.append((path, value)), structure)
  return leaves


def _without_batch(spec: Any) -> tf.TensorSpec:
  if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
    raise TypeError(
      'input_spec must be a structure of tf.TensorSpec whose first dimension is that '
      f'of a batch; got {spec!r}.'
    )
  return example_spec(spec)


def pair(structure: Any) -> tuple[Any, Any]:
  """Inputs and labels of a structure that is known to have exactly these."""
  if isinstance(structure, Mapping):
    return structure['x'], structure['y']
  return tuple(structure)


def inputs_and_labels(structure: Any, owner: str) -> tuple[Any, Any]:
  """Inputs and labels of examples; raises ValueError if they have other parts."""
  if isinstance(structure, Mapping):
    if set(structure) == {'x', 'y'}:
      return pair(structure)
    has = f'has arrays {", ".join(map(str, structure))}'
  elif isinstance(structure, (tuple, list)):
    if len(structure) == 2:
      return pair(structure)
    has = f'has a {type(structure).__name__} of {len(structure)}'
  else:
    has = 'has one array'
  raise ValueError(
    f'{owner} {has}; a model needs inputs and labels: a tuple of both, or arrays named '
    'x and y and no others.'
  )


def check_lengths(lengths: Sequence[tuple[str, int]], owner: str) -> None:
  """Checks that all arrays have the same length; `lengths` has names and lengths."""
  if len({length for _, length in lengths}) > 1:
    text = ', '.join(f'{length} in {path}' for path, length in lengths)
    raise ValueError(
      f'{owner} has arrays of different length: {text}. Every example has an entry '
      'in each. (A list is one array: several inputs are a tuple, or named.)'
    )


def check_spec(given: Any, wanted: Any, owner: str, *, dtypes: bool = True) -> None:
  """Checks that the spec of examples matches the spec that a model takes."""
  parts = zip(
    'xy', inputs_and_labels(given, owner), inputs_and_labels(wanted, 'the model')
  )
  for name, given_part, wanted_part in parts:
    try:
      tf.nest.assert_same_structure(given_part, wanted_part, check_types=False)
      pairs = zip(tf.nest.flatten(given_part), tf.nest.flatten(wanted_part))
      fits = all(
        other.shape.is_compatible_with(one.shape)
        and (one.dtype == other.dtype or not dtypes)
        for one, other in pairs
      )
    except (TypeError, ValueError):
      fits = False
    if not fits:
      raise ValueError(
        f'{owner} gives {name} of {_in_words(given_part)} for each example, the model '
        f'takes {_in_words(wanted_part)}. Convert it, by .astype or .reshape, or have '
        'the model take what there is (pad sequences to one length); datasets are of '
        'single examples, not batched; one-hot labels become numbers of classes by '
        '.argmax(-1).'
      )

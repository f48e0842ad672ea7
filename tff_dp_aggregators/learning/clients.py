"""Reads clients' examples from any container, and checks them against the model.

A client's examples are read when they are needed: nothing copies the population.
"""

import collections
import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
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
# How many clients `check_repeatable` compares, out of how many candidates.
_MAX_READ_TWICE, _CANDIDATES = 3, 8
_WHY_FINITE = 'Its update would count as zero in each round.'
_DRAWN_IN_GRAPH = re.compile(r'^(Random|Multinomial|TruncatedNormal|Parameterized)')


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
    """Initializes the clients; `of` does so from common containers.

    `ids`: One for each client; all strings, or all integers. `read`: Returns a client's
    examples by its id. The other arguments, and errors, are as for `of`.
    """
    self.ids = _sorted_ids(ids)
    self._read = read
    self._draw_id = draw_id
    self._spec_source = f'client {self.ids[0]!r} has'
    if input_spec is not None:
      self.element_spec = tf.nest.map_structure(_without_batch, input_spec)
      self._spec_source = 'the model takes'
    self._check: Optional[Callable[[Any, str], None]] = None

  @classmethod
  def of(cls, clients: Any, input_spec: Any = None) -> 'Clients':
    """Makes `Clients` from a container of clients.

    A client's examples are a structure of arrays with an entry for each example: an
    array, a tuple of arrays such as x and y, or a mapping of names to arrays; or a
    `tf.data.Dataset` of single examples, not of batches. A list is an array. Models are
    trained on inputs and labels: a tuple of both, or the names x and y and no others.
    All numbers must be finite, and the same whenever a client is read: shuffling and
    random draws need seeds. A dataset must end within `MAX_BYTES`, and within
    `MAX_EXAMPLES` if its cardinality is unknown.

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
    first = self.ids[0]
    return tf.nest.map_structure(
      lambda array: tf.TensorSpec(array.shape[1:], array.dtype),
      _as_arrays(self._read(first), first),
    )

  def examples(self, number: int) -> Any:
    """Returns the examples of one client, in the order in which they are stored.

    They have the structure of `element_spec`, in arrays with an entry for each example.

    Raises:
      ValueError: If the client has no examples, its arrays differ in length, they do
        not match `element_spec`, or a number is NaN or infinite; the message names the
        client's id.
    """
    number = checks.check_int('number', number, at_least=0)
    if number >= len(self.ids):
      raise IndexError(
        f'there is no client {number}; clients are numbered from 0 to '
        f'{len(self.ids) - 1}.'
      )
    spec, id_ = self.element_spec, self.ids[number]
    arrays = _as_arrays(self._read(id_), id_)
    check_finite(arrays, self.owner(number))
    fitted = _fit_to_spec(spec, arrays, self.owner(number), '', self._spec_source)
    if self._check is not None:
      self._check(fitted, self.owner(number))
    return fitted

  def checked_by(self, check: Callable[[Any, str], None]) -> 'Clients':
    """Returns the same clients, with `check(examples, owner)` called on each read."""
    other = copy.copy(self)
    other._check = check
    return other

  def owner(self, number: int) -> str:
    """The client's name in error messages."""
    return f'client {self.ids[number]!r}'

  def drawn_anew(self, number: int) -> Optional[str]:
    """Names of the unseeded random operations of a client's dataset, if any."""
    kept = self._read(self.ids[number])
    if not isinstance(kept, tf.data.Dataset):
      return None
    return ', '.join(sorted(set(_unseeded(kept)))) or None


def check_finite(examples: Any, owner: str, why: str = _WHY_FINITE) -> None:
  """Refuses NaN and infinity, which would make the client's update not finite."""
  pair = isinstance(examples, tuple) and len(examples) == 2
  for path, value in _leaves_by_path(examples):
    try:
      array = np.asarray(value)
    except (TypeError, ValueError):
      continue  # `_array` refuses it with a clearer message.
    if array.dtype.kind in 'biuOSUM':
      continue  # Integers are finite; `_array` refuses what is not a number.
    if array.dtype.kind not in 'fc':  # Such as bfloat16, which NumPy does not know.
      array = array.astype(np.float32)
    finite = np.isfinite(array)
    if finite.all():
      continue
    first = tuple(int(each) for each in np.argwhere(~finite)[0])
    name = f'{"xy"[int(path[0])]}{path[1:]}' if pair else path
    raise ValueError(
      f'{owner}: {name}{list(first)} (row {first[0] if first else 0}) is '
      f'{array[first]}, which is not finite, and {(~finite).sum()} of the {array.size} '
      f'numbers of {name} are not. {why} Fill in a number, or '
      'remove the row.'
    )


def check_repeatable(clients: Clients) -> None:
  """Refuses clients whose examples change from one read to the next.

  Only a few clients are read twice, since the same code reads all of them.
  """
  count = len(clients)
  candidates = sorted({round(each) for each in np.linspace(0, count - 1, _CANDIDATES)})
  compared = 0
  for number in candidates:
    first = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
    unseeded = clients.drawn_anew(number)
    second = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
    if unseeded is not None or not all(map(np.array_equal, first, second)):
      why = 'differ when they are read a second time'
      if unseeded is not None:
        why = f'are drawn without a seed ({unseeded}), and differ in another program'
      raise ValueError(
        f'the examples of {clients.owner(number)} {why}: a round that is run again, '
        'or a run that goes on, would train on something else. Leave out shuffle: '
        'training orders the examples of each round itself. Otherwise give it a seed '
        'and reshuffle_each_iteration=False, and in map use tf.random.stateless_... '
        'with a seed made of the example; or read all examples once, into arrays.'
      )
    compared += len(first[0]) > 1  # A single example cannot show a shuffle.
    if compared == _MAX_READ_TWICE:
      break


def _unseeded(dataset: tf.data.Dataset) -> Iterator[str]:
  """Yields the operations of a dataset's graph that draw without a seed."""
  try:
    serialized = tf.raw_ops.DatasetToGraphV2(
      input_dataset=dataset._variant_tensor,
      external_state_policy=1,  # Ignores state in Python, such as generators.
    )
  except tf.errors.OpError:
    return  # It has no serializable graph; only a second read can show a difference.
  graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
  scopes = [graph.node, *(each.node_def for each in graph.library.function)]
  for nodes in scopes:
    zeros = {
      node.name
      for node in nodes
      if node.op == 'Const'
      and node.attr['value'].tensor.dtype == tf.int64.as_datatype_enum
      and not tf.make_ndarray(node.attr['value'].tensor).any()
    }
    for node in nodes:
      inputs = [each.split(':')[0] for each in node.input]
      if node.op.startswith('Shuffle') and len(inputs) > 3:
        # The inputs are dataset, buffer size, seed and seed2.
        if set(inputs[2:4]) <= zeros:
          yield 'shuffle'
      elif node.op.startswith('RandomDataset') and set(inputs[:2]) <= zeros:
        yield 'Dataset.random'
      elif _DRAWN_IN_GRAPH.search(node.op) and 'seed' in node.attr:
        if not node.attr['seed'].i and not node.attr['seed2'].i:
          yield node.op


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


def _as_arrays(examples: Any, id_: Any) -> Any:
  """A client's examples as a structure of arrays of one length above 0."""
  if isinstance(examples, tf.data.Dataset):
    examples = _from_dataset(examples, id_)
  arrays = _map_leaves(lambda path, value: _array(value, path, id_), examples)
  lengths = [(path, len(array)) for path, array in _leaves_by_path(arrays)]
  check_lengths(lengths, f'client {id_!r}')
  if not any(length for _, length in lengths):
    raise ValueError(f'client {id_!r} has no examples; leave out such clients.')
  return arrays


def _from_dataset(dataset: tf.data.Dataset, id_: Any) -> Any:
  """Reads a dataset of single examples into arrays, up to the limits above."""
  cardinality = int(dataset.cardinality())
  never_ends = cardinality == tf.data.INFINITE_CARDINALITY
  batches = []
  count = num_bytes = 0
  try:
    for batch in dataset.batch(_BATCH).as_numpy_iterator():
      flat = [np.asarray(each) for each in tf.nest.flatten(batch)]
      count += len(flat[0])
      num_bytes += sum(each.nbytes for each in flat)
      is_long = count > MAX_EXAMPLES and cardinality == tf.data.UNKNOWN_CARDINALITY
      if never_ends or is_long or num_bytes > MAX_BYTES:
        raise ValueError(
          f'the dataset of client {id_!r} {"never ends" if never_ends else "goes on"} '
          f'after {count} examples of {num_bytes} bytes: it may have {MAX_BYTES} '
          f'bytes, and {MAX_EXAMPLES} examples if it does not say how many. Give it an '
          'end, such as .take(n), and leave out .repeat(): the epochs say how often a '
          'client goes through them. If there are so many, give them as arrays.'
        )
      batches.append(batch)
    if not batches:
      return np.zeros(0)
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
  except (tf.errors.InvalidArgumentError, TypeError) as e:
    raise ValueError(
      f'the examples of client {id_!r} differ in shape, or are ragged or sparse, and '
      f'make no array: {e}'
    ) from e


def _array(value: Any, path: str, id_: Any) -> np.ndarray:
  try:
    array = np.asarray(value)
    is_number = tf.as_dtype(array.dtype) != tf.string
  except ValueError as e:
    raise ValueError(f'{path} of client {id_!r} makes no array: {e}') from e
  except TypeError:
    is_number = False
  if not is_number:
    raise TypeError(
      f'{path} of client {id_!r} is of dtype {array.dtype}; models take numbers. '
      'Encode texts as numbers first.'
    )
  if not array.ndim:
    raise ValueError(
      f'{path} of client {id_!r} is the scalar {array}; it must have an entry for '
      'each example.'
    )
  return array


def _fit_to_spec(spec: Any, arrays: Any, owner: str, path: str, whose: str) -> Any:
  """Returns arrays in the structure of a spec, or raises ValueError if they differ."""
  if isinstance(spec, tf.TensorSpec):
    if isinstance(arrays, np.ndarray):
      is_same = tf.as_dtype(arrays.dtype) == spec.dtype
      if is_same and spec.shape.is_compatible_with(arrays.shape[1:]):
        return arrays
  elif isinstance(spec, Mapping):
    if isinstance(arrays, tuple) and len(arrays) == len(spec):
      arrays = dict(zip(spec, arrays))
    if isinstance(arrays, Mapping) and set(arrays) == set(spec):
      return collections.OrderedDict(
        (key, _fit_to_spec(each, arrays[key], owner, _join_path(path, key), whose))
        for key, each in spec.items()
      )
  elif isinstance(arrays, tuple) and len(arrays) == len(spec):
    return tuple(
      _fit_to_spec(each, array, owner, _join_path(path, key), whose)
      for key, (each, array) in enumerate(zip(spec, arrays))
    )
  raise ValueError(
    f'{owner}: {path or "what it has"} is {_description(arrays)}, where {whose} '
    f'{_description(spec)}. Convert it, by .astype or .reshape.'
  )


def _description(structure: Any) -> str:
  if isinstance(structure, Mapping):
    return f'a mapping of {", ".join(map(str, structure))}'
  if isinstance(structure, tuple):
    return f'a tuple of {len(structure)}'
  shape = structure.shape[isinstance(structure, np.ndarray) :]
  dtype = tf.as_dtype(structure.dtype).name
  return f'one array, {dtype} of shape {list(shape)} for each example'


def _map_leaves(function: Callable[[str, Any], Any], value: Any, path: str = '') -> Any:
  """Applies a function to path and value of each leaf of mappings and tuples."""
  if not isinstance(value, (Mapping, tuple)):
    return function(path or 'the array', value)
  items = value.items() if isinstance(value, Mapping) else enumerate(value)
  mapped = collections.OrderedDict(
    (key, _map_leaves(function, each, _join_path(path, key))) for key, each in items
  )
  return mapped if isinstance(value, Mapping) else tuple(mapped.values())


def _join_path(path: str, key: Any) -> str:
  return f'{path}.{key}' if path else f'{key}'


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
  return tf.TensorSpec(spec.shape[1:], spec.dtype)


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
    except (TypeError, ValueError) as e:
      raise ValueError(
        f'{owner} gives {name} as {given_part}, the model takes {wanted_part}.'
      ) from e
    for one, other in zip(tf.nest.flatten(given_part), tf.nest.flatten(wanted_part)):
      if not other.shape.is_compatible_with(one.shape):
        raise ValueError(
          f'{owner} gives {name} of shape {list(one.shape)} for each example, the '
          f'model takes {list(other.shape)}. Reshape it, or have the model take what '
          'there is (pad sequences to one length); datasets are of single examples, '
          'not batched; one-hot labels become numbers of classes by .argmax(-1).'
        )
      if dtypes and one.dtype != other.dtype:
        raise ValueError(
          f'{owner} gives {name} of {one.dtype.name}, the model takes '
          f'{other.dtype.name}; convert it, by .astype.'
        )

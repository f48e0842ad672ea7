"""Configures pytest for all tests and for the examples in docstrings.

Most tests run a computation once or twice, which takes less time than optimising its
graph. So TensorFlow's graph optimiser, and TFF's use of it, are disabled, except in
tests marked `optimized_graphs`, in slow tests, and in programs that tests start. The
other shortcuts here do not change results either.
"""

import doctest
import gc
import inspect
import os
import signal
import sys
from typing import Optional

import psutil
import pytest

# TensorFlow reads this on import. With 2 it logs errors only.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

# NumPy and SciPy read this on import. With more threads, products of small matrices use
# several times as much CPU time, and pytest runs two processes anyway.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

# Tests do not read strategies from the user's cache.
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''

# Tests do not check that files survive a power cut; waiting for the disk took 3% of the
# time.
os.fsync = lambda descriptor: None

# A process that a script starts in the background ignores SIGINT, and so do its child
# processes. TFF ends its worker by SIGINT and waits for it. Child processes do not
# inherit a handler, even if it does nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, lambda *unused: None)

# Doctest replaces standard output by a buffer, and TFF can start its worker only if
# standard output has a file descriptor.
_NULL = open(os.devnull, 'w', encoding='utf-8')
doctest._SpoofOut.fileno = lambda self: _NULL.fileno()

# Files of tests that take more than half a minute of CPU time.
_LONG_FILES = (
  'client_noise_test.py',
  'compare_test.py',
  'documents_test.py',
  'dp_mean_test.py',
  'matrix_mechanism_test.py',
  'packed_test.py',
  'pld_test.py',
  'runtime_test.py',
  'simulate_test.py',
  'training_test.py',
  'verification_alterations_test.py',
)
_WORKER = 'worker_binary'
_TFF_OPTIMIZER = (
  'tensorflow_federated.python.core.environments.tensorflow_backend.'
  'compiled_computation_transformations'
)
_TFF_TYPES = 'tensorflow_federated.python.core.impl.types.type_serialization'
_GRAPHS = 'tensorflow.python.framework.ops'
_PFOR = 'tensorflow.python.ops.parallel_for.pfor'


def _optimize_graphs(wanted: bool) -> None:
  if 'tensorflow' in sys.modules:
    sys.modules['tensorflow'].config.optimizer.set_experimental_options(
      {'disable_meta_optimizer': not wanted}
    )
  of_tff = sys.modules.get(_TFF_OPTIMIZER)
  if of_tff is not None:
    if not hasattr(of_tff, 'original'):
      of_tff.original = of_tff.optimize_tensorflow_graphs
    of_tff.optimize_tensorflow_graphs = (
      of_tff.original if wanted else lambda comp, config: (comp, False)
    )
  of_pfor = sys.modules.get(_PFOR)
  if of_pfor is not None:
    inputs = of_pfor._PforInput
    if not hasattr(inputs, 'original'):
      inputs.original = inputs.expanddim_inputs_for_broadcast
    inputs.expanddim_inputs_for_broadcast = (
      inputs.original if wanted else _expand_where_ranks_differ
    )


def _expand_where_ranks_differ(inputs) -> None:
  """Skips reshapes of a vectorised operation's inputs that do not change their shape.

  The graph optimiser would remove them. Making them took 20% of a small training.
  """
  ranks = [each.t.shape.rank for each in inputs.inputs]
  if None not in ranks:
    stacked = [rank for rank, each in zip(ranks, inputs.inputs) if each.is_stacked]
    single = [rank for rank, each in zip(ranks, inputs.inputs) if not each.is_stacked]
    if not stacked or min(stacked) >= max(*stacked, *(1 + rank for rank in single), 0):
      return
  inputs.original()


def _read_types_once() -> None:
  """Caches the types that TFF deserialises.

  TFF deserialises the type of each part of a computation again, including the types of
  its own parts. That took 20% of a small computation.
  """
  of_tff = sys.modules.get(_TFF_TYPES)
  if of_tff is None or hasattr(of_tff, 'original'):
    return
  of_tff.original = of_tff.deserialize_type
  types = {}

  def deserialize_type(type_proto):
    serialized = type_proto.SerializeToString()
    if serialized not in types:
      types[serialized] = of_tff.original(type_proto)
    return types[serialized]

  of_tff.deserialize_type = deserialize_type


def _make_nodes_without_stack_traces() -> None:
  """Makes TensorFlow record no stack traces for the nodes of graphs.

  Neither names of nodes nor error messages have them here. Collecting them took 5% of
  the time of making graphs.
  """
  graphs = sys.modules.get(_GRAPHS)
  if graphs is not None:
    inspect.unwrap(graphs._create_c_op).__defaults__ = (None, False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
  """Applies the shortcuts before a test's fixtures are set up."""
  _read_types_once()
  _make_nodes_without_stack_traces()
  marks = ('optimized_graphs', 'slow')
  _optimize_graphs(any(item.get_closest_marker(mark) for mark in marks))


@pytest.hookimpl(tryfirst=True)  # Before slow tests are deselected.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Sorts long files first, and marks variants as slow that `few` leaves out.

  With long files last, one process would wait for the other.
  """
  items.sort(key=lambda item: item.path.name not in _LONG_FILES)
  variants: dict[str, list[pytest.Item]] = {}
  for item in items:
    if item.get_closest_marker('few') and not item.get_closest_marker('slow'):
      variants.setdefault(item.nodeid.partition('[')[0], []).append(item)
  for of_test in variants.values():
    (number,) = of_test[0].get_closest_marker('few').args
    step = max(len(of_test) - 1, 1) / max(number - 1, 1)
    kept = {round(step * i) for i in range(number)}
    for index, item in enumerate(of_test):
      if index not in kept:
        item.add_marker('slow')


def pytest_collection_finish() -> None:
  """Exempts imported modules from garbage collection, which is also made rarer."""
  gc.freeze()
  gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(trylast=True)  # After the module's fixtures were torn down.
def pytest_runtest_teardown(item: pytest.Item, nextitem: Optional[pytest.Item]) -> None:
  """Exempts what outlives a module of tests from garbage collection.

  Each training ends with a collection. Looking through all graphs that other modules
  had made before took ten times as long as refusing an argument.
  """
  if nextitem is None or nextitem.path != item.path:
    gc.collect()
    gc.freeze()


def _own_workers() -> list[psutil.Process]:
  workers = []
  for child in psutil.Process().children(recursive=True):
    try:
      if child.name() == _WORKER:
        workers.append(child)
    except psutil.NoSuchProcess:
      continue  # It has ended since it was listed.
  return workers


def _release_default_context() -> None:
  """Deletes the execution context that TFF sets on import, which ends its worker.

  When the interpreter exits, that would fail, because TFF's modules are gone by then.
  """
  tff = sys.modules.get('tensorflow_federated')
  if tff is None:
    return

  class NoContext(tff.framework.SyncContext):
    def invoke(self, comp, arg):
      raise RuntimeError('The tests have ended; nothing can be computed any more.')

  tff.framework.set_default_context(NoContext())
  gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
  """Ends the workers that TFF started in this process.

  Workers inherit standard output. If they outlived this process, whatever reads its
  output, such as a pipe or a continuous integration service, would wait for ever. Under
  xdist, this runs in each process that runs tests, and in their parent.
  """
  _release_default_context()
  workers = _own_workers()
  for worker in workers:
    try:
      worker.kill()
    except psutil.NoSuchProcess:
      continue
  psutil.wait_procs(workers, timeout=5)

"""What tests need before TensorFlow loads, and after the last of them has run.

In the root folder, because it is for the examples in docstrings as well.

Most tests run a computation once or twice, which takes less time than to optimise its
graph. So TensorFlow's optimiser of graphs is off, and TFF's use of it, but where it has
a part in what is claimed (`@pytest.mark.optimized_graphs`), in slow tests, and in all
programs that tests start. What else is left out, or done once, changes no result.
"""

import doctest
import gc
import inspect
import os
import signal
import sys

import psutil
import pytest

# Read when TensorFlow is imported. 2 leaves errors, and drops what it says about the
# machine at each start.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

# Read when NumPy and SciPy are imported. With more threads, products of small matrices
# take several times as much of the cores, waiting for each other; two processes
# need no more than two.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

# Tests optimise strategies anew, whatever the user has kept.
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''

# Nobody cuts the power during tests. Waiting for the disk took a thirtieth of them.
os.fsync = lambda descriptor: None

# What a script puts into the background ignores SIGINT and hands that on to TensorFlow
# Federated's worker, which is asked to end by SIGINT and waited for. A handler that
# does nothing is not handed on.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, lambda *unused: None)

# While an example runs, doctest collects standard output in memory, and TensorFlow
# Federated can start its worker only with an output that has a file behind it.
_NULL = open(os.devnull, 'w', encoding='utf-8')
doctest._SpoofOut.fileno = lambda self: _NULL.fileno()

# Those of more than half a minute of CPU time: trainings, and programs from their start
# to their end.
_LONG_FILES = (
  'compare_test.py',
  'documents_test.py',
  'dp_mean_test.py',
  'joint_noise_test.py',
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
  """Leaves out reshapes to the shape that a vectorised operation's inputs have.

  The optimiser would leave them out; to make them took a fifth of a small training.
  """
  ranks = [each.t.shape.rank for each in inputs.inputs]
  if None not in ranks:
    stacked = [rank for rank, each in zip(ranks, inputs.inputs) if each.is_stacked]
    single = [rank for rank, each in zip(ranks, inputs.inputs) if not each.is_stacked]
    if not stacked or min(stacked) >= max(*stacked, *(1 + rank for rank in single), 0):
      return
  inputs.original()


def _read_types_once() -> None:
  """TensorFlow Federated reads the type of each part of a computation from its bytes.

  A part has the types of all that it is made of in its own, and a type is the same each
  time that it is read. Reading it again took a fifth of a small computation.
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
  """What a node of a graph is made by is no part of its name nor of its error's text.

  To look through the frames of pytest and TensorFlow for each of them took a twentieth
  of making graphs.
  """
  graphs = sys.modules.get(_GRAPHS)
  if graphs is not None:
    inspect.unwrap(graphs._create_c_op).__defaults__ = (None, False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
  """Before the fixtures of a test."""
  _read_types_once()
  _make_nodes_without_stack_traces()
  marks = ('optimized_graphs', 'slow')
  _optimize_graphs(any(item.get_closest_marker(mark) for mark in marks))


@pytest.hookimpl(tryfirst=True)  # Before slow ones are left out.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Puts long files first, so that none of them is left to one process at the end."""
  items.sort(key=lambda item: item.path.name not in _LONG_FILES)
  variants: dict[str, list[pytest.Item]] = {}
  for item in items:
    if item.get_closest_marker('few') and not item.get_closest_marker('slow'):
      variants.setdefault(item.nodeid.partition('[')[0], []).append(item)
  for found in variants.values():
    (number,) = found[0].get_closest_marker('few').args
    step = max(len(found) - 1, 1) / max(number - 1, 1)
    kept = {round(step * i) for i in range(number)}
    for place, item in enumerate(found):
      if place not in kept:
        item.add_marker('slow')


def pytest_collection_finish() -> None:
  """What has been imported stays: the garbage collector need not look at it again.

  Making graphs leaves so much that it looks at everything time and again, which took a
  sixteenth of a training.
  """
  gc.freeze()


def _own_workers() -> list[psutil.Process]:
  workers = []
  for child in psutil.Process().children(recursive=True):
    try:
      if child.name() == _WORKER:
        workers.append(child)
    except psutil.NoSuchProcess:
      continue  # It ended between being listed and being looked at.
  return workers


def _release_default_context() -> None:
  """Lets go of the execution context that TensorFlow Federated sets when imported.

  It ends its worker when it is deleted. At the exit of the interpreter it would try
  that too late, and print that its own modules are gone.
  """
  tff = sys.modules.get('tensorflow_federated')
  if tff is None:
    return

  class NoContext(tff.framework.SyncContext):
    def invoke(self, comp, arg):
      raise RuntimeError('The tests are over, and nothing can be computed any more.')

  tff.framework.set_default_context(NoContext())
  gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
  """Ends the workers that TensorFlow Federated started in this process.

  They would outlive it, and as they inherit its standard output, whatever reads that
  (a pipe, a continuous integration log) would wait for its end for ever. Under xdist
  this runs in each process that runs tests, and in the one that they report to.
  """
  _release_default_context()
  workers = _own_workers()
  for worker in workers:
    try:
      worker.kill()
    except psutil.NoSuchProcess:
      continue
  psutil.wait_procs(workers, timeout=5)

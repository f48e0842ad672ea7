"""Compares the time of a call in this package's runtime with TFF's own runtime.

    python -m benchmarks.runtime_call

Adds 1 to a number in `learning.runtime.local_runtime` and in TensorFlow Federated's
default runtime; prints the best mean of some hundreds of calls each, and their ratio.
"""

import time

from benchmarks import _arguments

if __name__ == '__main__':
  _arguments.parse(__doc__ or '')

import numpy as np
import tensorflow_federated as tff

from tff_dp_aggregators.learning import runtime

_TIMES, _CALLS = 5, 200


@tff.tensorflow.computation(np.int32)
def _add(x):
  return x + 1


def _seconds_of_a_call() -> float:
  _add(1)
  best = float('inf')
  for _ in range(_TIMES):
    start = time.perf_counter()
    for _ in range(_CALLS):
      _add(1)
    best = min(best, (time.perf_counter() - start) / _CALLS)
  return best


def main() -> None:
  with runtime.local_runtime():
    ours = _seconds_of_a_call()
    # Nested, so that both run in the same process with the same workers.
    context = tff.backends.native.create_sync_local_cpp_execution_context()
    with tff.framework.get_context_stack().install(context):
      theirs = _seconds_of_a_call()
  print(f'local_runtime  {1e3 * ours:6.2f} ms')
  print(f'TFF alone      {1e3 * theirs:6.2f} ms')
  print(f'ratio          {ours / theirs:6.2f}')


if __name__ == '__main__':
  main()

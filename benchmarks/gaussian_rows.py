"""Time and tails of this package's Gaussians, against TensorFlow's own.

    python -m benchmarks.gaussian_rows

Times 10^6 numbers a call on one core, all in turn, and the random bits alone that ours
are made of, 48 or 64 a number, which are the floor. (Memory is a lower one: `copied` is
reading and writing as many numbers.) Then counts how many of 5 x 10^8 float32 numbers
lie beyond 5.68 standard deviations, where a Gaussian has 6.7 of them on average.
"""

import os
import statistics
import time
from typing import Callable

import tensorflow as tf

from tff_dp_aggregators.noise import normal

_TIMED = 10**6
_CALLS = 51
_COUNTED = 10**7
_CHUNKS = 50
_TAIL = 5.68


def _tensorflow(num_elements: int, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
  return tf.random.stateless_normal([num_elements], seed, dtype=dtype, alg='philox')


def _words(num_elements: int, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
  num_words = num_elements * (4 if dtype == tf.float64 else 3) // 2
  return tf.random.stateless_uniform(
    [num_words], seed, minval=None, maxval=None, dtype=tf.uint32, alg='philox'
  )


_Source = Callable[[int, tf.DType, tf.Tensor], tf.Tensor]
_SOURCES: dict[str, _Source] = {
  'TensorFlow': _tensorflow,
  'ours': normal.standard_normal,
}


def _times(dtype: tf.DType) -> dict[str, list[float]]:
  """Seconds of each call, sources in turn, the first call of each left out."""
  numbers = tf.zeros([_TIMED], dtype)
  timed = {
    name: tf.function(lambda seed, draw=draw: draw(_TIMED, dtype, seed))
    for name, draw in {**_SOURCES, 'bits alone': _words}.items()
  }
  timed['copied'] = tf.function(lambda seed: numbers + tf.cast(seed[0], dtype))
  times: dict[str, list[float]] = {name: [] for name in timed}
  for call in range(_CALLS):
    seed = tf.constant([call, 0], tf.int64)
    for name, draw in timed.items():
      start = time.process_time()
      draw(seed)
      if call:  # The first call traces.
        times[name].append(time.process_time() - start)
  return times


def _count_tail(draw: _Source) -> int:
  count = tf.function(
    lambda seed: tf.math.count_nonzero(tf.abs(draw(_COUNTED, tf.float32, seed)) > _TAIL)
  )
  return sum(int(count(tf.constant([chunk, 1], tf.int64))) for chunk in range(_CHUNKS))


def main() -> None:
  """Prints a line for each source, and its time as a multiple of TensorFlow's."""
  os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  print('one core, 10^6 numbers:  median  fastest  of TensorFlow (median of ratios)')
  for dtype in (tf.float32, tf.float64):
    times = _times(dtype)
    for name, seconds in times.items():
      ratio = statistics.median(
        one / other for one, other in zip(seconds, times['TensorFlow'])
      )
      print(
        f'{dtype.name}  {name:12s}  {statistics.median(seconds) * 1e3:6.1f} ms'
        f'{min(seconds) * 1e3:6.1f} ms  {ratio:.2f}'
      )
  for name, draw in _SOURCES.items():
    print(f'{name:10s}  {_count_tail(draw):3d} of 5 x 10^8 beyond {_TAIL}')


if __name__ == '__main__':
  main()

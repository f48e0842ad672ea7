"""Compares time and tails of this package's Gaussians with TensorFlow's own.

    python -m benchmarks.gaussian_rows

Times 10^6 numbers a call on one core, in turn: TensorFlow's, ours from words of Philox
(simulations) and of ChaCha20 (secret noise), and the words alone, 64 bits a number,
which are a lower bound. (Memory is a smaller one: `copied` is reading and writing as
many numbers.) Then counts how many of 5 x 10^8 float32 numbers of each source, 5 x 10^7
of ChaCha20's, are beyond 5.68 standard deviations, where a Gaussian has 6.7 of
5 x 10^8 on average.
"""

import os
import statistics
import time
from typing import Callable

from benchmarks import _arguments

if __name__ == '__main__':
  _arguments.parse(__doc__ or '')

import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import rows

_TIMED = 10**6
_CALLS = 51
_COUNTED = 10**7
_NUM_CHUNKS = 50
_TAIL = 5.68


_Source = Callable[[int, tf.DType, tf.Tensor], tf.Tensor]


def _tensorflow(num_elements: int, dtype: tf.DType, call: tf.Tensor) -> tf.Tensor:
  seed = tf.stack([call, 1])
  return tf.random.stateless_normal([num_elements], seed, dtype=dtype, alg='philox')


def _ours(generator: str) -> _Source:
  def draw(num_elements: int, dtype: tf.DType, call: tf.Tensor) -> tf.Tensor:
    spec = tf.TensorSpec([num_elements], dtype)
    rows = noise.GaussianRows(spec, noise.Seed(1), generator)
    return rows.layout.unflatten(rows.row(rows.new_key(), call))

  return draw


def _words(generator: str) -> _Source:
  def draw(num_elements: int, dtype: tf.DType, call: tf.Tensor) -> tf.Tensor:
    source = generators.choose(generator, secret=False)
    key = tf.constant(noise.Seed(1).key(), tf.int64)
    num_words = num_elements * rows._PAIR_WORDS // rows._PAIR_NUMBERS
    num_blocks = -(-num_words // source.block_words)
    zero = tf.constant(0, tf.int64)
    return source.words(key, call, zero, zero, num_blocks)

  return draw


_SOURCES: dict[str, _Source] = {
  'TensorFlow': _tensorflow,
  'Philox': _ours('philox'),
  'ChaCha20': _ours('chacha20'),
}
_FLOORS: dict[str, _Source] = {
  "Philox's words": _words('philox'),
  "ChaCha20's words": _words('chacha20'),
}


def _times(dtype: tf.DType) -> dict[str, list[float]]:
  """Returns the seconds of each call but the first; the sources run in turn."""
  numbers = tf.zeros([_TIMED], dtype)
  timed = {
    name: tf.function(lambda call, draw=draw: draw(_TIMED, dtype, call))
    for name, draw in {**_SOURCES, **_FLOORS}.items()
  }
  timed['copied'] = tf.function(lambda call: numbers + tf.cast(call, dtype))
  times: dict[str, list[float]] = {name: [] for name in timed}
  for call in range(_CALLS):
    number = tf.constant(call, tf.int64)
    for name, draw in timed.items():
      start = time.process_time()
      draw(number)
      if call:  # The first call traces.
        times[name].append(time.process_time() - start)
  return times


def _count_tail(draw: _Source, chunks: int) -> int:
  count = tf.function(
    lambda call: tf.math.count_nonzero(tf.abs(draw(_COUNTED, tf.float32, call)) > _TAIL)
  )
  return sum(int(count(tf.constant(chunk, tf.int64))) for chunk in range(chunks))


def main() -> None:
  os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  print(
    'one core, 10^6 numbers:      median  fastest  of TensorFlow (median of ratios)'
  )
  for dtype in (tf.float32, tf.float64):
    times = _times(dtype)
    for name, seconds in times.items():
      ratio = statistics.median(
        ours / tensorflow for ours, tensorflow in zip(seconds, times['TensorFlow'])
      )
      print(
        f'{dtype.name}  {name:16s}  {statistics.median(seconds) * 1e3:6.1f} ms'
        f'{min(seconds) * 1e3:6.1f} ms  {ratio:.2f}'
      )
  for name, draw in _SOURCES.items():
    chunks = _NUM_CHUNKS // 10 if name == 'ChaCha20' else _NUM_CHUNKS
    count = _count_tail(draw, chunks)
    print(f'{name:10s}  {count:3d} of {chunks * _COUNTED:.0e} beyond {_TAIL}')


if __name__ == '__main__':
  main()

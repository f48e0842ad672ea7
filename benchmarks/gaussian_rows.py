"""Time and tails of this package's Gaussians, against TensorFlow's own.

    python -m benchmarks.gaussian_rows

Times 10^6 float32 numbers a call, the two in turn, and then counts how many of 5 x 10^8
lie beyond 5.68 standard deviations, where a Gaussian has 6.7 of them on average.
"""

import statistics
import time

import tensorflow as tf

from tff_dp_aggregators.noise import rows

_TIMED = tf.TensorSpec([10**6])
_COUNTED = tf.TensorSpec([10**7])
_CALLS = 21
_CHUNKS = 50
_TAIL = 5.68


def _tensorflow(spec: tf.TensorSpec, seed: tf.Tensor) -> tf.Tensor:
  return tf.random.stateless_normal(spec.shape, seed, dtype=spec.dtype, alg='philox')


_SOURCES = {'TensorFlow': _tensorflow, 'ours': rows.standard_normal}


def main() -> None:
  """Prints a line for each source, and the ratio of times."""
  times: dict[str, list[float]] = {name: [] for name in _SOURCES}
  timed = {
    name: tf.function(lambda seed, draw=draw: draw(_TIMED, seed))
    for name, draw in _SOURCES.items()
  }
  for call in range(_CALLS):
    seed = tf.constant([call, 0], tf.int64)
    for name, draw in timed.items():
      start = time.perf_counter()
      draw(seed).numpy()
      if call:  # The first call traces.
        times[name].append(time.perf_counter() - start)
  for name, draw in _SOURCES.items():
    tail = tf.function(
      lambda seed, draw=draw: tf.math.count_nonzero(
        tf.abs(draw(_COUNTED, seed)) > _TAIL
      )
    )
    count = sum(int(tail(tf.constant([c, 1], tf.int64))) for c in range(_CHUNKS))
    median = statistics.median(times[name])
    print(f'{name:10s}  {median * 1e3:6.1f} ms for 10^6  {count:3d} beyond {_TAIL}')
  pairs = zip(times['ours'], times['TensorFlow'])
  print(f'ratio of times  {statistics.median(a / b for a, b in pairs):.2f}')


if __name__ == '__main__':
  main()

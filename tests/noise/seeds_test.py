"""Tests of seeds: streams of ints, keys, and parts of the processes of a factory."""

import hashlib
import struct
import threading

import numpy as np
import pytest

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import options


def test_int_takes_the_next_stream_of_its_seed():
  resolved = [options.resolve(seed) for seed in (555, 556, 555, np.int32(555))]
  assert resolved == [
    noise.Seed(555, 0),
    noise.Seed(556, 0),
    noise.Seed(555, 1),
    noise.Seed(555, 2),
  ]
  assert options.resolve(noise.Seed(555)) == noise.Seed(555, 0)
  assert options.resolve(555) == noise.Seed(555, 3)
  assert options.resolve(None) is None


def test_threads_take_different_streams():
  taken = []

  def take():
    taken.extend(options.resolve(557).stream for _ in range(500))

  threads = [threading.Thread(target=take) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(taken) == list(range(4000))


def test_keys_of_seeds_are_reproducible_and_differ():
  # Keys are hashes of words, so that other processes and machines have the same.
  assert noise.Seed(7).key().tolist() == noise.Seed(7, 0, 0).key().tolist()
  # A run with a seed can only be repeated while the hash stays the same.
  digest = hashlib.blake2b(b'seed 7, stream 0', digest_size=32).digest()
  assert tuple(noise.Seed(7).key()) == struct.unpack('<4q', digest)
  keys = {
    tuple(noise.Seed(value, stream, part).key())
    for value in (0, 1, 11, -1)
    for stream in (0, 1, 11)
    for part in (0, 1, 11)
  }
  assert len(keys) == 36


def test_for_factory_gives_each_further_process_its_own_part():
  next_seed = options.for_factory(noise.Seed(7, 3))
  assert [next_seed() for _ in range(4)] == [
    noise.Seed(7, 3),
    noise.Seed(7, 3),
    noise.Seed(7, 3, part=1),
    noise.Seed(7, 3, part=2),
  ]
  next_secret = options.for_factory(None)
  assert [next_secret() for _ in range(3)] == [None] * 3
  with pytest.raises(ValueError, match='a whole stream.*seed 7, stream 0, part 1'):
    options.for_factory(noise.Seed(7, 0, part=1))


@pytest.mark.parametrize('seed', [1.0, '1', True, b'1', (1, 2), np.bool_(True)])
def test_invalid_seeds_and_streams_are_refused(seed):
  with pytest.raises(TypeError, match='seed must be an int, a noise.Seed or None'):
    options.resolve(seed)
  with pytest.raises(TypeError, match='value must be an int'):
    noise.Seed(seed)
  with pytest.raises(TypeError, match='stream must be an int'):
    noise.Seed(1, seed)


def test_negative_streams_and_parts_are_refused():
  assert noise.Seed(-1).value == -1
  for name in ('stream', 'part'):
    with pytest.raises(ValueError, match=f'{name} must not be negative; got -1'):
      noise.Seed(1, **{name: -1})

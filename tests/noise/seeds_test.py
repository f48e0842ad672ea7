"""A seed means one stream, an int the next one; processes of a factory share none."""

import threading

import numpy as np
import pytest

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import options


def test_an_int_takes_the_next_stream_of_its_seed():
  first = [options.resolve(seed) for seed in (555, 556, 555, np.int32(555))]
  assert first == [
    noise.Seed(555, 0),
    noise.Seed(556, 0),
    noise.Seed(555, 1),
    noise.Seed(555, 2),
  ]
  assert options.resolve(noise.Seed(555)) == noise.Seed(555, 0)
  assert options.resolve(555) == noise.Seed(555, 3)
  assert options.resolve(None) is None


def test_threads_take_streams_of_their_own():
  taken = []

  def take():
    taken.extend(options.resolve(557).stream for _ in range(500))

  threads = [threading.Thread(target=take) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(taken) == list(range(4000))


def test_keys_are_derived_alike_everywhere():
  # From the hash of the words, so another process and machine agree.
  assert noise.Seed(7).key().tolist() == noise.Seed(7, 0, 0).key().tolist()
  assert noise.Seed(7).key().shape == (4,)
  keys = {
    tuple(noise.Seed(value, stream, part).key())
    for value in (0, 1, 11, -1)
    for stream in (0, 1, 11)
    for part in (0, 1, 11)
  }
  assert len(keys) == 36


def test_a_factory_has_a_part_for_each_process_after_the_first():
  following = options.for_factory(noise.Seed(7, 3))
  assert [following() for _ in range(4)] == [
    noise.Seed(7, 3),
    noise.Seed(7, 3),
    noise.Seed(7, 3, part=1),
    noise.Seed(7, 3, part=2),
  ]
  secret = options.for_factory(None)
  assert [secret() for _ in range(3)] == [None] * 3
  with pytest.raises(ValueError, match='a whole stream.*seed 7, stream 0, part 1'):
    options.for_factory(noise.Seed(7, 0, part=1))


@pytest.mark.parametrize('seed', [1.0, '1', True, b'1', (1, 2), np.bool_(True)])
def test_what_is_no_seed_is_refused(seed):
  with pytest.raises(TypeError, match='seed must be an int, a noise.Seed or None'):
    options.resolve(seed)
  with pytest.raises(TypeError, match='value must be an int'):
    noise.Seed(seed)
  with pytest.raises(TypeError, match='stream must be an int'):
    noise.Seed(1, seed)


def test_negative_streams_are_refused():
  assert noise.Seed(-1).value == -1
  for name in ('stream', 'part'):
    with pytest.raises(ValueError, match=f'{name} must not be negative; got -1'):
      noise.Seed(1, **{name: -1})

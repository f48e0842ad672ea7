"""Words of a generator are one stream a vector, and no two of anything share one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators.noise import generators

each_generator = pytest.mark.parametrize('name', generators.NAMES)


def _words(name, key=(1, 2, 3, 4), row=0, vector=0, first=0, num_blocks=8):
  return (
    generators.choose(name, secret=True)
    .words(
      tf.constant(key, tf.int64),
      tf.constant(row, tf.int64),
      tf.constant(vector, tf.int64),
      tf.constant(first, tf.int64),
      num_blocks,
    )
    .numpy()
  )


@each_generator
def test_parts_are_those_of_the_whole(name):
  per_block = generators.choose(name, secret=True).block_words
  whole = _words(name, row=5, vector=3, first=100, num_blocks=8)
  assert whole.shape == (8 * per_block,)
  parts = [
    _words(name, row=5, vector=3, first=100 + i, num_blocks=2) for i in (0, 2, 4, 6)
  ]
  if name == 'chacha20':  # By place in a block.
    whole = whole.reshape(16, 4, 2).transpose(1, 0, 2).ravel()
  np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_row_and_vector_are_the_nonce_of_the_cipher():
  key = np.array([11, -12, 2**62, -(2**63)], np.int64)
  row, vector, first = 2**40 + 5, 2**20 + 3, 2**31 + 7
  nonce = np.array([5, 2**8, vector], np.uint32)
  expected = generators.blocks(
    tf.constant(key.view(np.uint32)),
    tf.constant(first, tf.uint32),
    tf.constant(nonce),
    3,
  )
  words = _words('chacha20', key, row, vector, first, 3)
  np.testing.assert_array_equal(words, np.ravel(expected))


@each_generator
def test_no_two_places_share_a_block(name):
  # Keys, rows and vectors whose sums are equal, neighbours, and ends of ranges. Words
  # of 64 bits: two of 15,000 are equal with probability below 1e-11.
  keys = [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0), (-1, 0, 0, 0), (2**40, 0, 0, 0)]
  rows, vectors = [0, 1, 2, 2**40, 2**62], [0, 1, 2, 2**24 - 1]
  blocks = [0, 1, 2**20]
  words = np.concatenate(
    [
      _words(name, key, row, vector, first, 1).view(np.uint64)
      for key, row, vector, first in itertools.product(keys, rows, vectors, blocks)
    ]
  )
  assert len(np.unique(words)) == len(words)


def test_every_word_of_a_key_counts_for_the_cipher():
  streams = [_words('chacha20', key).tobytes() for key in np.eye(4, dtype=np.int64)]
  assert len(set(streams)) == 4

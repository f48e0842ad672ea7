"""Tests of generators of random words: each vector has a stream of its own."""

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
def test_words_of_later_blocks_continue_the_same_stream(name):
  per_block = generators.choose(name, secret=True).block_words
  whole = _words(name, row=5, vector=3, first=100, num_blocks=8)
  assert whole.shape == (8 * per_block,)
  parts = [
    _words(name, row=5, vector=3, first=100 + i, num_blocks=2) for i in (0, 2, 4, 6)
  ]
  if name == 'chacha20':  # Words are ordered by their position in a block.
    whole = whole.reshape(16, 4, 2).transpose(1, 0, 2).ravel()
  np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_chacha20_takes_row_and_vector_as_nonce():
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
def test_keys_rows_vectors_and_blocks_share_no_words(name):
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


def test_chacha20_depends_on_every_word_of_the_key():
  streams = [_words('chacha20', key).tobytes() for key in np.eye(4, dtype=np.int64)]
  assert len(set(streams)) == 4

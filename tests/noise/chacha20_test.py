"""Tests of the block function of ChaCha20, by RFC 8439."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.noise import generators

# Key, counter, nonce and serialised block.
_VECTORS = {
  '2.3.2': (
    bytes(range(32)).hex(),
    1,
    '000000090000004a00000000',
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e',
  ),
  'A.1 #1': (
    '00' * 32,
    0,
    '00' * 12,
    '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
    'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586',
  ),
  'A.1 #5': (
    '00' * 32,
    0,
    '00' * 11 + '02',
    'c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7'
    '8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d',
  ),
}


def _words(text):
  return np.frombuffer(bytes.fromhex(text), '<u4')


def _block(key, counter, nonce, num_blocks=1):
  return generators.blocks(
    tf.constant(key), tf.constant(counter, tf.uint32), tf.constant(nonce), num_blocks
  ).numpy()


@pytest.mark.parametrize('key, counter, nonce, block', _VECTORS.values(), ids=_VECTORS)
def test_blocks_match_the_test_vectors_of_rfc_8439(key, counter, nonce, block):
  words = _block(_words(key), counter, _words(nonce))
  assert words.shape == (16, 1)
  assert words.astype('<u4').tobytes().hex() == block


def test_blocks_of_one_call_match_those_of_single_counters():
  rng = np.random.default_rng(1)
  key, nonce = (rng.integers(2**32, size=n, dtype=np.uint32) for n in (8, 3))
  for first in (0, 5, 2**31 - 1, 2**32 - 2):
    blocks = _block(key, first, nonce, 4)
    single = [_block(key, (first + i) % 2**32, nonce) for i in range(4)]
    np.testing.assert_array_equal(blocks, np.concatenate(single, axis=1))
    assert len(np.unique(blocks)) == blocks.size


def test_blocks_are_the_same_eagerly_in_graphs_and_in_tff():
  rng = np.random.default_rng(2)
  key, nonce = (rng.integers(2**32, size=n, dtype=np.uint32) for n in (8, 3))
  eager = _block(key, 7, nonce, 1000)

  @tff.tensorflow.computation(
    tff.TensorType(np.uint32, [8]), tff.TensorType(np.uint32, [3])
  )
  def in_worker(key, nonce):
    return generators.blocks(key, tf.constant(7, tf.uint32), nonce, 1000)

  with runtime.local_runtime():
    np.testing.assert_array_equal(in_worker(key, nonce), eager)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    blocks = generators.blocks(
      tf.constant(key), tf.constant(7, tf.uint32), tf.constant(nonce), 1000
    )
    np.testing.assert_array_equal(session.run(blocks), eager)


def test_more_blocks_than_counters_are_refused():
  with pytest.raises(
    ValueError, match='have 4294967296 blocks, got num_blocks=4294967297'
  ):
    _block(np.zeros(8, np.uint32), 0, np.zeros(3, np.uint32), 2**32 + 1)

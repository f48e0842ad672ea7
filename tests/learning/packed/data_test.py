"""Tests of packed data: files with the examples of all clients."""

import collections
import os

import numpy as np
import pytest
import tensorflow as tf

from tests.learning.packed import populations
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import data as data_lib


class _Mixed:
  """Clients with several features of several dtypes."""

  def __init__(self, **changes):
    self._changes = changes

  def __len__(self):
    return 4

  def examples(self, number):
    size = 1 + number
    examples = collections.OrderedDict(
      image=np.full([size, 2, 3], number / 3, np.float64),
      tokens=np.arange(size * 4, dtype=np.int64).reshape(size, 4) + number,
      flag=np.arange(size) % 2 == 0,
    )
    if number == 2:
      examples.update(self._changes)
    return examples


def test_draw_ids_are_stored_and_part_of_the_checksum(tmp_path):
  plain = packed.lay_out(_Mixed(), str(tmp_path / 'plain'))
  assert plain.draw_ids == range(4)
  checksums = {plain.checksum}
  for name, ids in (('texts', ['a', 'bä', 'c', 'd']), ('others', ['a', 'b', 'c', 'd'])):
    clients = _Mixed()
    clients.draw_id = ids.__getitem__
    data = packed.lay_out(clients, str(tmp_path / name))
    assert data.draw_ids == ids
    checksums.add(data.checksum)
    assert data_lib.checksum(clients) == data.checksum
  assert len(checksums) == 3


def test_examples_are_read_back(tmp_path):
  data = packed.lay_out(_Mixed(), str(tmp_path / 'data'))
  assert len(data) == 4 and data.num_examples == 10
  clients = np.array([3, 0])
  np.testing.assert_array_equal(data.sizes(clients), [4, 1])
  np.testing.assert_array_equal(data.starts(clients), [6, 0])
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    tensors = session.run(data.tensors())
  for number in range(4):
    expected = tf.nest.flatten(_Mixed().examples(number))
    first = int(data.starts(np.array([number]))[0])
    for i, feature in enumerate(data.examples(number)):
      np.testing.assert_array_equal(feature, expected[i])
      assert feature.dtype == expected[i].dtype
      np.testing.assert_array_equal(tensors[i][first : first + 1 + number], feature)


@pytest.mark.parametrize(
  ('changes', 'error', 'match'),
  [
    ({'flag': np.zeros(2, bool)}, ValueError, 'client 2 .* different length'),
    ({'flag': np.array(['a', 'b', 'c'])}, ValueError, 'Encode texts as numbers'),
    (
      {'tokens': np.zeros([3, 5], np.int64)},
      ValueError,
      "client 2 has .*'tokens': 'int64.5.'",
    ),
    (
      {
        'image': np.zeros([0, 2, 3]),
        'tokens': np.zeros([0, 4], np.int64),
        'flag': np.zeros(0, bool),
      },
      ValueError,
      'client 2 has no examples',
    ),
  ],
)
def test_inconsistent_clients_are_refused_and_leave_no_file(
  tmp_path, changes, error, match
):
  with pytest.raises(error, match=match):
    packed.lay_out(_Mixed(**changes), str(tmp_path / 'data'))
  assert os.listdir(tmp_path) == []


def test_arrays_of_another_byte_order_are_stored_unchanged(tmp_path):
  image = np.random.default_rng(1).normal(size=[3, 2, 3])
  swapped = image.astype(image.dtype.newbyteorder())
  assert not swapped.dtype.isnative
  digests = []
  for name, each in (('own', image), ('swapped', swapped)):
    data = packed.lay_out(_Mixed(image=each), str(tmp_path / name))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      images = session.run(data.tensors())[1]
    np.testing.assert_array_equal(images[3:6], image)
    digests.append(data.checksum)
  assert digests[0] == digests[1]


def test_files_of_another_byte_order_are_refused(tmp_path):
  packed.lay_out(populations.Population(), str(tmp_path / 'data'))
  index = tmp_path / 'data' / 'index.json'
  index.write_text(index.read_text().replace('<f4', '>f4'))
  with pytest.raises(ValueError, match='of another byte order'):
    packed.PackedData(str(tmp_path / 'data'))


def test_lay_out_does_not_overwrite_and_truncation_is_found(tmp_path):
  path = tmp_path / 'data'
  packed.lay_out(populations.Population(), str(path))
  with pytest.raises(FileExistsError):
    packed.lay_out(populations.Population(), str(path))
  feature = path / 'feature-0.bin'
  feature.write_bytes(feature.read_bytes()[:-4])
  with pytest.raises(ValueError, match='mmap length is greater than file size'):
    packed.PackedData(str(path))

"""Small files in the format of those that TFF's dataset loaders store."""

import io
import sqlite3
import tarfile

import numpy as np
import tensorflow as tf


def example(**features):
  """Returns a serialized `tf.train.Example` of bytes, integers and arrays."""

  def feature(value):
    if isinstance(value, bytes):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    value = np.ravel(value)
    if value.dtype == np.int64:
      return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    return tf.train.Feature(float_list=tf.train.FloatList(value=value))

  protos = {name: feature(value) for name, value in features.items()}
  return tf.train.Example(
    features=tf.train.Features(feature=protos)
  ).SerializeToString()


def write_database(path, splits, make, num_clients=8, prefix="client '"):
  """Writes two to four examples, made by `make`, for each client of each split."""
  connection = sqlite3.connect(path)
  connection.execute(
    'CREATE TABLE examples '
    '(split_name TEXT, client_id TEXT, serialized_example_proto BLOB)'
  )
  connection.execute(
    'CREATE TABLE client_metadata '
    '(client_id TEXT, split_name TEXT, num_examples INTEGER)'
  )
  for split in splits:
    for client in range(num_clients):
      name, count = f'{prefix}{client}', 2 + client % 3
      rows = [(split, name, make()) for _ in range(count)]
      connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
      connection.execute(
        'INSERT INTO client_metadata VALUES (?, ?, ?)', (name, split, count)
      )
  connection.commit()
  connection.close()


def write_word_counts(folder, text):
  """Writes StackOverflow's words and their counts, a line each."""
  (folder / 'datasets').mkdir(exist_ok=True)
  member = tarfile.TarInfo('stackoverflow.word_count')
  member.size = len(text)
  path = folder / 'datasets' / 'stackoverflow.word_count.tar.bz2'
  with tarfile.open(path, 'w:bz2') as file:
    file.addfile(member, io.BytesIO(text.encode()))

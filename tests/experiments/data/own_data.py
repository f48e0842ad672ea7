"""Small files of user data in any format, and populations read from them."""

import json

import numpy as np

from experiments.data import hashing
from experiments.data import loading
from experiments.options import data as data_options

ROWS = [
  {'who': f'client {i % 7}', 'age': 20 + i, 'height': 1.5 + i / 100, 'bought': i % 2}
  for i in range(70)
]


def write_csv(path, rows=None, newline='\n'):
  """Writes rows as CSV and returns the path."""
  rows = ROWS if rows is None else rows
  lines = [','.join(rows[0])]
  lines += [','.join(str(value) for value in row.values()) for row in rows]
  with open(path, 'w', encoding='utf-8', newline='') as file:
    file.write(newline.join(lines) + newline)
  return path


def write_json(path, rows=None):
  """Writes rows as JSON lines and returns the path."""
  rows = ROWS if rows is None else rows
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows), encoding='utf-8')
  return path


def load(path, num_clients=None, dirichlet_alpha=0.5, seed=1, **files):
  """Returns the population of a file or folder, for flags of these names."""
  if num_clients is not None:
    files.setdefault('partition', 'iid')
    files.setdefault('test_examples', 0.2)
  elif not files.keys() & {'test_examples', 'test_data'}:
    files.setdefault('test_clients', 0.1)
  if 'text_column' in files:
    files.setdefault('text_unit', 'character')
  files.setdefault('scratch', str(path.parent))
  options = data_options.Files(str(path), **files)
  return loading.load(
    data_options.Data(num_clients, dirichlet_alpha, seed, files=options)
  )


def load_rows(path, **files):
  """Returns the population of a file with the columns of `ROWS`."""
  return load(path, client_column='who', label_column='bought', **files)


def name(clients, number):
  """Returns a client's id, of at most 16 bytes, from that by which it is drawn.

  Inverts the Feistel network of `hashing.of_ids`.
  """
  draw_id = clients.draw_id(number)
  if isinstance(draw_id, int):
    return str(draw_id)
  left, right = np.frombuffer(bytes.fromhex(draw_id), np.uint64).reshape(2, 1)
  for index in np.arange(4, 0, -1, dtype=np.uint64):
    left, right = right ^ hashing.mixed(left ^ hashing.mixed(index)), left
  return np.concatenate([left, right]).astype('>u8').tobytes().rstrip(b'\0').decode()


def everything(population):
  """Returns all examples by client name, as sorted tuples, and the test examples."""
  clients = population.clients
  by_name = {}
  for number in clients.ids:
    examples = clients.examples(number)
    by_name[name(clients, number)] = rows_of(examples['x'], examples['y'])
  return by_name, rows_of(*population.test_examples)


def rows_of(x, y):
  """Returns inputs and label of each example as a tuple, sorted."""
  x = np.asarray(x).reshape(len(x), -1)
  y = np.asarray(y).reshape(len(y), -1)
  return sorted(map(tuple, np.concatenate([x, y], axis=1).tolist()))


def same(first, second):
  """Returns whether two populations are equal bit for bit, in the same order."""
  if len(first.clients.ids) != len(second.clients.ids) or first.facts != second.facts:
    return False
  return all(
    np.array_equal(examples[key], others[key])
    for number in first.clients.ids
    for examples, others in [
      (first.clients.examples(number), second.clients.examples(number))
    ]
    for key in 'xy'
  ) and all(map(np.array_equal, first.test_examples, second.test_examples))

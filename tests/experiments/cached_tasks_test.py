"""Tasks that read the files of TFF's dataset loaders, as TFF reads them.

A missing file is named and never downloaded.
"""

import os
import pickle
import sqlite3
import tarfile

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments import tasks
from experiments.options import data as data_options
from tests import executing
from tests.experiments import cached_files
from tests.experiments import simulations

FILES = {
  'emnist': 'emnist_all.sqlite',
  'cifar100': 'cifar100.sqlite',
  'shakespeare': 'shakespeare.sqlite',
  'stackoverflow': 'stackoverflow.sqlite',
  'cifar10': 'cifar-10-batches-py',
}
_RNG = np.random.default_rng(4)


def _image_of_emnist():
  pixels = _RNG.random((28, 28)).astype(np.float32)
  return cached_files.example(pixels=pixels, label=int(_RNG.integers(10)))


def _image_of_cifar100():
  image = _RNG.integers(0, 256, (32, 32, 3))
  return cached_files.example(
    image=image, label=int(_RNG.integers(100)), coarse_label=int(_RNG.integers(20))
  )


def _snippet():
  return cached_files.example(snippets=b'Hark! ' * int(_RNG.integers(1, 30)))


def _sentence():
  words = _RNG.choice(['the', 'list', 'of', 'monads', '.'], _RNG.integers(1, 25))
  empty = dict.fromkeys(('creation_date', 'tags', 'title', 'type'), b'')
  return cached_files.example(tokens=' '.join(words).encode(), score=1, **empty)


_EXAMPLES = {
  'emnist': (('digits_only_train', 'digits_only_test'), _image_of_emnist),
  'cifar100': (('train', 'test'), _image_of_cifar100),
  'shakespeare': (('train', 'test'), _snippet),
  'stackoverflow': (('train', 'heldout', 'test'), _sentence),
}


def _batch(count):
  return {
    b'data': _RNG.integers(0, 256, (count, 3072)).astype(np.uint8),
    b'labels': _RNG.integers(0, 10, count).tolist(),
  }


@pytest.fixture(scope='module')
def cache_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('cache')
  for task, (splits, make) in _EXAMPLES.items():
    # Ids with quotes would break TFF's SQL, by which a test reads EMNIST.
    prefix = 'f' if task == 'emnist' else "client '"
    cached_files.write_database(folder / FILES[task], splits, make, prefix=prefix)
  cached_files.write_word_counts(folder, 'the 90\nof 80\nlist 7\n. 6\n')
  batches = folder / FILES['cifar10']
  batches.mkdir()
  for name in (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch'):
    (batches / name).write_bytes(pickle.dumps(_batch(8)))
  return folder


def _options(cache_dir, num_clients=None):
  return data_options.Data(num_clients, 0.5, 1, cache_dir=str(cache_dir))


def test_every_task_with_cache_dir_is_tested_here():
  with_files = {
    name for name, task in tasks.TASKS.items() if '(needs --cache_dir)' in task.summary
  }
  assert with_files == set(FILES)


def test_missing_file_is_named_before_tensorflow_is_loaded(tmp_path):
  names = ('cifar10', 'emnist')
  program = (
    'import sys\n'
    'from experiments import simulate\n'
    f'for name in {names}:\n'
    f'  simulate.execute([f"--task={{name}}", "--cache_dir={tmp_path}"])\n'
    'assert "tensorflow" not in sys.modules\n'
  )
  result = executing.run_python(program)
  assert result.stdout == ''
  lines = result.stderr.splitlines()
  for task, line in zip(names, lines):
    assert line.startswith('error: ')
    assert str(tmp_path / FILES[task]) in line
    assert 'nothing is downloaded' in line
    simulations.refusal(f'--task={task}')
  assert len(lines) == len(names)


@pytest.mark.parametrize('task', ['emnist', 'stackoverflow'])
def test_wrong_database_is_refused(task, tmp_path):
  path = tmp_path / FILES[task]
  path.write_text('<html>404</html>' * 100)
  with pytest.raises(ValueError, match='cannot be read as SQLite'):
    tasks.TASKS[task].check(_options(tmp_path))
  path.unlink()
  sqlite3.connect(path).execute('CREATE TABLE examples (client_id TEXT)')
  with pytest.raises(ValueError, match='table examples lacks serialized_example'):
    tasks.TASKS[task].check(_options(tmp_path))
  path.unlink()
  cached_files.write_database(path, ['validation'], lambda: b'')
  cached_files.write_word_counts(tmp_path, 'the 9')
  with pytest.raises(ValueError, match='no clients in the split'):
    tasks.TASKS[task].load(_options(tmp_path))


@pytest.mark.parametrize('task', ['emnist', 'cifar100', 'shakespeare'])
def test_examples_of_other_tasks_are_refused_by_client(task, tmp_path):
  splits, _ = _EXAMPLES[task]
  cached_files.write_database(
    tmp_path / FILES[task], splits, lambda: cached_files.example(other=1), 1
  )
  with pytest.raises(ValueError, match='of client .* are not those of this task'):
    tasks.TASKS[task].load(_options(tmp_path))


def test_emnist_images_match_those_that_tff_loads(cache_dir):
  population = tasks.TASKS['emnist'].load(_options(cache_dir))
  train, test = tff.simulation.datasets.emnist.load_data(cache_dir=str(cache_dir))
  assert list(population.clients.ids) == train.client_ids == test.client_ids
  for client in train.client_ids:
    examples = population.clients.examples(client)
    expected = train.create_tf_dataset_for_client(client).as_numpy_iterator()
    rows = list(zip(examples['x'], examples['y'], expected))
    assert len(rows) == len(examples['x'])
    for image, label, example in rows:
      assert np.array_equal(image[..., 0], example['pixels'])
      assert label == example['label']
  assert len(population.test_examples[0]) == 2 + 3 + 4 + 2 + 3 + 4 + 2 + 3


def test_cifar100_images_are_standardised_individually(cache_dir):
  images, _ = tasks.TASKS['cifar100'].load(_options(cache_dir)).test_examples
  assert images.dtype == np.float32 and images.shape[1:] == (32, 32, 3)
  np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), 0, atol=1e-5)
  np.testing.assert_allclose(images.std(axis=(1, 2, 3)), 1, atol=1e-5)


def test_stackoverflow_keeps_256_sentences_and_lists_unscored_tokens(
  tmp_path, cache_dir
):
  numbers = iter(range(10**6))

  def numbered():
    return cached_files.example(tokens=f'the {next(numbers)} of list'.encode())

  cached_files.write_database(
    tmp_path / FILES['stackoverflow'], ['train', 'test'], numbered, 1
  )
  with sqlite3.connect(tmp_path / FILES['stackoverflow']) as connection:
    rows = [('train', "client '0", numbered()) for _ in range(300)]
    connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
  cached_files.write_word_counts(tmp_path, 'the 9\nof 8\nlist 7\n')
  population = tasks.TASKS['stackoverflow'].load(_options(tmp_path))
  examples = population.clients.examples("client '0")
  assert examples['x'].shape == examples['y'].shape == (256, 20)
  assert examples['x'][0].tolist() == [5, 1, 4, 2, 3, 6, *[0] * 14]
  assert examples['y'][0].tolist() == [1, 4, 2, 3, 6, *[0] * 15]
  assert population.shape.num_classes == 7
  assert population.shape.ignored_labels == (0,)
  assert population.shape.unscored_labels == (4, 5, 6)
  cached_files.write_word_counts(tmp_path, 'the 9\nof\n')
  with pytest.raises(ValueError, match="word_count.*, line 2: 'of' is not a word and"):
    tasks.TASKS['stackoverflow'].load(_options(tmp_path))


def test_cifar10_is_the_same_from_folder_tar_and_npz(cache_dir, tmp_path):
  expected = tasks.TASKS['cifar10'].load(_options(cache_dir, 5))
  folder = cache_dir / FILES['cifar10']
  forms = [tmp_path / 'tar', tmp_path / 'npz']
  for form in forms:
    form.mkdir()
  with tarfile.open(forms[0] / 'cifar-10-python.tar.gz', 'w:gz') as archive:
    archive.add(folder, 'cifar-10-batches-py')
  arrays = {}
  for split, names in (
    ('train', [f'data_batch_{i}' for i in range(1, 6)]),
    ('test', ['test_batch']),
  ):
    batches = [pickle.loads((folder / name).read_bytes()) for name in names]
    images = np.concatenate([batch[b'data'] for batch in batches])
    arrays[f'x_{split}'] = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    arrays[f'y_{split}'] = np.concatenate([batch[b'labels'] for batch in batches])[
      :, None
    ]
  np.savez(forms[1] / 'cifar10.npz', **arrays)
  assert expected.test_examples[0].min() >= -1
  assert expected.test_examples[0].max() <= 1
  for form in forms:
    read = tasks.TASKS['cifar10'].load(_options(form, 5))
    assert np.array_equal(read.test_examples[0], expected.test_examples[0])
    for client in range(5):
      for key in 'xy':
        assert np.array_equal(read.clients[client][key], expected.clients[client][key])


class _Evil:
  def __reduce__(self):
    return os.mkdir, ('pwned',)


def test_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / FILES['cifar10']
  folder.mkdir()
  for name in (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch'):
    (folder / name).write_bytes(pickle.dumps({b'data': _Evil(), b'labels': []}))
  with pytest.raises(ValueError, match='is not CIFAR-10: it has a .*mkdir'):
    tasks.TASKS['cifar10'].load(_options(tmp_path, 5))
  assert not (tmp_path / 'pwned').exists()


@pytest.mark.slow
# `published_test.py` trains on StackOverflow and CIFAR-10.
@pytest.mark.parametrize('task', ['emnist', 'cifar100', 'shakespeare'])
def test_simulate_trains_on_cached_tasks(task, cache_dir, tmp_path):
  tokens = task == 'shakespeare'
  small = ['--hidden_units=2', *(['--embedding_size=2'] if tokens else [])]
  result = simulations.run(
    tmp_path / 'run',
    f'--task={task}',
    f'--cache_dir={cache_dir}',
    *small,
    '--mechanism=gaussian',
    '--num_rounds=2',
    '--clients_per_round=2',
    '--min_separation=2',
    '--target_delta=1e-3',
  )
  assert f'Test {tasks.TASKS[task].defaults.metric} after 2 rounds' in result.stdout

"""Tests of noise in files, a cache in which wrong content is recognised."""

import os
import shutil
import stat
import subprocess
import sys

import pytest
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

_ROUNDS = 11  # Four levels of a tree.
_SPECS = [tf.TensorSpec([50]), tf.TensorSpec([3], tf.float64)]
_STRATEGIES = {
  'banded': strategies.BandedToeplitz(_ROUNDS, (1.0, 0.5, 0.3, 0.2)),
  'tree': strategies.BinaryTree(_ROUNDS),
  'blt': strategies.BLT(_ROUNDS, (0.2, 0.4), (0.95, 0.5)),
}
two_kinds = pytest.mark.parametrize('kind', ['blt', 'tree'])
_SEED = noise.Seed(1)
_RECOMPUTING = 'computing all rounds again'


def _build(directory):
  files = noise.Files(None if directory is None else str(directory))
  rows = noise.GaussianRows(tf.TensorSpec([3]), _SEED)
  return noise.build(_STRATEGIES['banded'], rows, files)


class _Run:
  """Serves rounds of noise from a directory, and reports what was recomputed."""

  def __init__(
    self, kind, directory, capfd, rewind=1, seed=_SEED, generator='auto', traced=False
  ):
    self.capfd = capfd
    self.directory = directory
    rows = noise.GaussianRows(_SPECS, seed, generator)
    files = noise.Files(str(directory), rewind)
    streaming = noise.build(_STRATEGIES[kind], rows, files)
    self._next = (
      tf.function(streaming.next, autograph=False) if traced else streaming.next
    )
    self.first = streaming.initialize()

  def serve(self, this_round):
    """Returns the bytes of a round's noise, and whether all rounds were recomputed."""
    self.capfd.readouterr()
    state = self.first._replace(round=tf.constant(this_round, tf.int64))
    row, after = self._next(state)
    assert int(after.round) == this_round + 1
    return b''.join(tensor.numpy().tobytes() for tensor in row), _RECOMPUTING in (
      self.capfd.readouterr().err
    )

  def serve_all(self, rounds=_ROUNDS):
    """Returns the bytes of the first rounds, of which none may be recomputed."""
    served = [self.serve(this_round) for this_round in range(rounds)]
    assert not any(recomputed for _, recomputed in served)
    return [row for row, _ in served]

  def files(self):
    """Returns the content of each path."""
    paths = [path for path in self.directory.iterdir() if path.name != '.lock']
    return {path: path.read_bytes() for path in sorted(paths)}

  def restore(self, files):
    """Leaves exactly these files in the directory."""
    for path in self.files():
      path.unlink()
    for path, content in files.items():
      path.write_bytes(content)


@pytest.fixture(name='start')
def fixture_start(tmp_path, capfd):
  """Returns a function that starts a run as a new process would."""

  def start(kind, name='noise', **kwargs):
    return _Run(kind, tmp_path / name, capfd, **kwargs)

  return start


@pytest.fixture(name='runs', scope='module')
def fixture_runs(tmp_path_factory):
  return tmp_path_factory.mktemp('runs') / 'noise', {}


@pytest.fixture(name='empty_run')
def fixture_empty_run(runs, capfd):
  """Returns a run without files, and its rounds; it is traced once for all tests."""

  def empty_run(kind, **kwargs):
    directory, cached_runs = runs
    case = (kind, *kwargs.items())
    if case not in cached_runs:
      run = _Run(kind, directory, capfd, traced=True, **kwargs)
      run.restore({})
      cached_runs[case] = run, run.serve_all()
    run, rows = cached_runs[case]
    run.capfd = capfd
    run.restore({})
    return run, rows

  return empty_run


@two_kinds
def test_resumed_run_uses_existing_files(kind, empty_run, start):
  for stop in (6, 10):
    run, rows = empty_run(kind)
    assert run.serve_all(stop) == rows[:stop]
    resumed = start(kind, run.directory)
    served = [resumed.serve(number) for number in range(stop, _ROUNDS)]
    assert served == [(row, False) for row in rows[stop:]]


@pytest.mark.parametrize('kind', ['tree', 'banded', 'blt'])
def test_rounds_within_rewind_are_served_again_from_files(kind, empty_run):
  rewind = 3
  run, rows = empty_run(kind, rewind=rewind)
  for last in range(_ROUNDS):
    assert run.serve(last) == (rows[last], False)
    for number in range(max(0, last + 1 - rewind), last + 1):
      assert run.serve(number) == (rows[number], False), (last, number)


@two_kinds
def test_rounds_before_rewind_are_served_by_recomputation(kind, empty_run):
  run, rows = empty_run(kind)
  assert run.serve_all() == rows
  for number in (9, 6, 0, 10, 3):
    assert run.serve(number)[0] == rows[number]
  # Some of the files that one of these needs are no longer there.
  assert any(run.serve(number)[1] for number in (8, 7))


def _damage(content, damage):
  if damage == 'torn':
    return content[: len(content) // 2]
  if damage == 'longer':
    return content + b'\0\0\0\0'
  place = {'header': 60, 'values': -9}[damage]
  damaged = bytearray(content)
  damaged[place] ^= 1
  return bytes(damaged)


@pytest.mark.parametrize('damage', ['missing', 'torn', 'longer', 'header', 'values'])
@pytest.mark.parametrize('kind, needed', [('tree', 6), ('blt', 4)])
def test_damaged_files_are_recognised_and_recomputed(kind, needed, damage, empty_run):
  # Each of the files that round 7 needs, in two dtypes.
  run, rows = empty_run(kind)
  run.serve_all(7)
  files = run.files()
  num_recomputed = 0
  for path, content in files.items():
    if damage == 'missing':
      path.unlink()
    else:
      path.write_bytes(_damage(content, damage))
    row, recomputed = run.serve(7)
    assert row == rows[7]
    num_recomputed += recomputed
    run.restore(files)
  assert num_recomputed == needed


@two_kinds
def test_swapped_files_are_recognised_and_recomputed(kind, empty_run):
  run, rows = empty_run(kind)
  number = 9  # This round needs more than one file.
  run.serve_all(number)
  files = run.files()
  for position in range(len(_SPECS)):
    paths = [path for path in files if path.suffix == f'.{position}']
    for path, next_path in zip(paths, paths[1:] + paths[:1]):
      path.write_bytes(files[next_path])
  assert run.serve(number) == (rows[number], True)


def test_files_of_other_keys_strategies_or_generators_are_not_used(empty_run, start):
  runs = [empty_run('banded'), empty_run('tree')]
  # Another key, and a state that continues with another generator.
  for options in ({'seed': noise.Seed(2)}, {'generator': 'chacha20'}):
    expected = start('banded', f'alone {len(runs)}', **options).serve_all(3)
    runs.append((start('banded', runs[0][0].directory, **options), expected))
  for number in range(3):
    for run, rows in runs:  # All in one directory.
      assert run.serve(number) == (rows[number], False)


@two_kinds
def test_crash_during_a_write_needs_no_recomputation(kind, empty_run):
  run, rows = empty_run(kind)
  for number in range(_ROUNDS):
    before = run.files()
    assert run.serve(number) == (rows[number], False)
    after = run.files()
    written = [path for path in after if after[path] != before.get(path)]
    assert written
    for path in written:  # As if the process had ended during the write.
      path.write_bytes(after[path][: len(after[path]) // 3])
    assert run.serve(number) == (rows[number], False)
    assert run.files() == after  # The same bytes again.


@two_kinds
def test_full_disk_is_an_error_after_which_rounds_continue(kind, empty_run):
  run, rows = empty_run(kind)
  run.serve_all(6)
  before = run.files()
  run.serve(6)
  after = run.files()
  written = [path for path in after if after[path] != before.get(path)]
  run.restore(before)
  for path in written:
    path.unlink(missing_ok=True)
    path.symlink_to('/dev/full')
  with pytest.raises(tf.errors.OpError, match='(?i)no space left'):
    run.serve(6)
  for path in written:
    path.unlink()
  run.restore(before)
  for number in range(6, _ROUNDS):
    assert run.serve(number) == (rows[number], False)


def test_file_names_and_contents_do_not_reveal_the_key(start):
  run = start('tree', seed=None)
  run.serve_all(4)
  words = run.first.key.numpy().tolist()
  for path, content in run.files().items():
    for word in words:
      for secret in (str(word), f'{word & (2**64 - 1):x}', str(abs(word))):
        assert secret not in path.name
        assert secret.encode() not in content
      assert word.to_bytes(8, 'little', signed=True) not in content


def test_directory_must_be_private_to_its_owner(tmp_path):
  _build(tmp_path / 'noise')
  assert stat.S_IMODE(os.stat(tmp_path / 'noise').st_mode) == 0o700
  (tmp_path / 'open').mkdir(mode=0o755)
  with pytest.raises(PermissionError, match='has mode 755.*with mode 700'):
    _build(tmp_path / 'open')
  foreign = tmp_path / 'foreign'
  foreign.mkdir(mode=0o700)
  if os.geteuid() == 0:
    os.chown(foreign, 12345, -1)
  else:
    foreign = '/usr'
  with pytest.raises(PermissionError, match='belongs to user'):
    _build(foreign)


def test_forked_process_is_refused_the_directory(tmp_path):
  directory = tmp_path / 'noise'
  _build(directory)
  _build(directory)  # The same process may do so again.
  child = os.fork()
  if child == 0:
    try:
      _build(directory)
    except RuntimeError:
      os._exit(7)
    os._exit(0)
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_missing_directory_is_an_error_and_is_not_created(tmp_path, start):
  run = start('banded')
  run.serve(0)
  shutil.rmtree(tmp_path / 'noise')
  with pytest.raises(tf.errors.OpError, match='is not on the machine that runs'):
    run.serve(1)
  assert not (tmp_path / 'noise').exists()
  # A new directory of that name is locked like the first one.
  assert start('banded').serve_all(1)


def test_path_of_directory_may_have_special_characters(start, empty_run):
  name = 'a [1]* \\ {b}? é'
  _, rows = empty_run('banded')
  assert start('banded', name).serve_all(3) == rows[:3]
  assert start('banded', name).serve(3) == (rows[3], False)


def test_symbolic_link_in_place_of_the_directory_is_refused(tmp_path):
  (tmp_path / 'mine').mkdir(mode=0o700)
  (tmp_path / 'link').symlink_to(tmp_path / 'mine')
  for path in (tmp_path / 'link', f'{tmp_path}/link/', f'{tmp_path}/link/.'):
    with pytest.raises(NotADirectoryError, match='is a symbolic link'):
      _build(path)
  (tmp_path / 'file').write_text('')
  with pytest.raises(FileExistsError):
    _build(tmp_path / 'file')
  assert not list((tmp_path / 'mine').iterdir())


def test_two_runs_in_the_temporary_directory_do_not_interfere():
  # Both have the same seed, and one is some rounds ahead of the other.
  one, other = (_build(None) for _ in range(2))
  assert one.directory == other.directory  # Or a thousand would hold a lock each.
  served = []
  for streaming in (one, other):
    state, values = streaming.initialize(), []
    for _ in range(4):
      value, state = streaming.next(state)
      values.append(value.numpy().tolist())
    served.append(values)
  served += [each.next(state)[0].numpy().tolist() for each in (one, other)]
  assert served[0] == served[1] and served[2] == served[3]


_OTHER_PROCESS = """
import os, sys
import tensorflow as tf
from tff_dp_aggregators import noise, strategies

rows = noise.GaussianRows(tf.TensorSpec([3]), 1)

for directory in sys.argv[1:]:
  try:
    noise.build(strategies.BinaryTree(4), rows, noise.Files(directory))
  except RuntimeError as e:
    print(e)
streaming = noise.build(strategies.BinaryTree(4), rows, 'files')
streaming.next(streaming.initialize())
print(streaming.directory, len(os.listdir(streaming.directory)))
"""


@pytest.mark.slow
def test_other_process_is_refused_and_removes_its_temporary_directory(tmp_path):
  temporary, elsewhere = tmp_path / 'tmp', tmp_path / 'tmp' / 'elsewhere'
  temporary.mkdir()
  elsewhere.mkdir(mode=0o700)
  abandoned, link, open_to_all, foreign = (
    temporary / f'tff_dp_aggregators-noise-{name}' for name in 'klof'
  )
  abandoned.mkdir(mode=0o700)  # Left by a process that was killed.
  (abandoned / 'content').write_text('')
  link.symlink_to(elsewhere)
  open_to_all.mkdir(mode=0o755)
  kept = {elsewhere, link, open_to_all}
  if os.geteuid() == 0:
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, -1)
    kept.add(foreign)
  _build(tmp_path / 'mine')
  refused, printed = subprocess.run(
    [sys.executable, '-c', _OTHER_PROCESS, tmp_path / 'mine', tmp_path / 'its'],
    env={
      **os.environ,
      'PYTHONPATH': os.pathsep.join(sys.path),
      'TMPDIR': str(temporary),
    },
    stdout=subprocess.PIPE,
    check=True,
    text=True,
    timeout=300,
  ).stdout.splitlines()
  assert f'{tmp_path}/mine is in use by another process' in refused
  _build(tmp_path / 'its')  # The other process has ended.
  its_temporary, number_of_files = printed.split()
  assert os.path.dirname(its_temporary) == str(temporary) and int(number_of_files) > 1
  assert set(temporary.iterdir()) == kept  # Its own was removed.


@pytest.mark.parametrize(
  'argument, value, error',
  [
    ('directory', 'relative', ValueError),
    ('rewind', 0, ValueError),
    ('rewind', 1.0, TypeError),
  ],
)
def test_files_refuses_invalid_arguments(argument, value, error):
  with pytest.raises(error, match=f'{argument}|absolute path'):
    noise.Files(**{argument: value})

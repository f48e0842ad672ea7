"""Files of noise are a cache: what is in them is right, or recognised as wrong."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

_ROUNDS = 11  # Four levels of a tree, and two restarts after five rounds each.
_SPECS = [tf.TensorSpec([50]), tf.TensorSpec([3], tf.float64)]
_STRATEGIES = {
  'banded': strategies.BandedToeplitz(_ROUNDS, (1.0, 0.5, 0.3, 0.2)),
  'tree': strategies.BinaryTree(_ROUNDS),
  'tree_restarts': strategies.BinaryTree(_ROUNDS, restart_every=5),
  'banded_inverse': strategies.BandedInverse.square_root(_ROUNDS, 4),
  'blt': strategies.BLT(_ROUNDS, (0.2, 0.4), (0.95, 0.5)),
  'epochs': strategies.EpochToeplitz(
    _ROUNDS, (0, 4, 8), (1.5, 0.9, 0.4), (1.0, 0.5, 0.3, 0.2)
  ),
}
# What a few rounds of each other kind would say again.
two_kinds = pytest.mark.parametrize(
  'kind',
  [
    pytest.param(kind, marks=[] if kind in ('blt', 'tree') else [pytest.mark.slow])
    for kind in _STRATEGIES
  ],
)
_SEED = noise.Seed(1)
_AGAIN = 'computing all rounds again'


def _build(directory, seed=_SEED):
  files = noise.Files(None if directory is None else str(directory))
  return noise.build(
    _STRATEGIES['banded'], noise.GaussianRows(tf.TensorSpec([3]), seed), files
  )


class _Run:
  """Rounds of one noise in a directory, and what was said meanwhile."""

  def __init__(self, kind, directory, capfd, rewind=1, seed=_SEED, traced=False):
    self._capfd = capfd
    self.directory = directory
    rows = noise.GaussianRows(_SPECS, seed)
    files = noise.Files(str(directory), rewind)
    streaming = noise.build(_STRATEGIES[kind], rows, files)
    self._next = tf.function(streaming.next) if traced else streaming.next
    self._first = streaming.initialize()

  def listen_to(self, capfd):
    """Hears what is said from now on, in another test than the one before."""
    self._capfd = capfd

  def serve(self, this_round):
    """The bytes of a round's noise, and whether it said to compute again."""
    self._capfd.readouterr()
    state = self._first._replace(round=tf.constant(this_round, tf.int64))
    row, after = self._next(state)
    assert int(after.round) == this_round + 1
    return b''.join(tensor.numpy().tobytes() for tensor in row), _AGAIN in (
      self._capfd.readouterr().err
    )

  def serve_all(self, rounds=_ROUNDS):
    """The bytes of the first rounds."""
    served = [self.serve(this_round) for this_round in range(rounds)]
    assert not any(again for _, again in served)
    return [row for row, _ in served]

  def files(self):
    """Paths and contents."""
    paths = [path for path in self.directory.iterdir() if path.name != '.lock']
    return {path: path.read_bytes() for path in sorted(paths)}


@pytest.fixture(name='start')
def fixture_start(tmp_path, capfd):
  def start(kind, name='noise', **kwargs):
    return _Run(kind, tmp_path / name, capfd, **kwargs)

  return start


@pytest.fixture(name='whole_runs', scope='module')
def fixture_whole_runs():
  return {}


@pytest.fixture(name='whole_of')
def fixture_whole_of(whole_runs, start):
  """All rounds of a kind, served without interruption; computed once."""

  def whole_of(kind):
    if kind not in whole_runs:
      whole_runs[kind] = start(kind, f'whole {kind}').serve_all()
    return whole_runs[kind]

  return whole_of


@pytest.mark.parametrize('traced', [False, pytest.param(True, marks=pytest.mark.slow)])
@two_kinds
def test_files_that_are_there_are_used(kind, traced, start, whole_of):
  whole = whole_of(kind)
  for stop in (7,) if traced else (1, 10):
    name = f'until {stop}'
    assert start(kind, name, traced=traced).serve_all(stop) == whole[:stop]
    continued = start(kind, name, traced=traced)
    served = [continued.serve(number) for number in range(stop, _ROUNDS)]
    assert served == [(row, False) for row in whole[stop:]]


@pytest.mark.few(1)
@two_kinds
def test_rounds_can_be_served_again_as_far_back_as_promised(kind, start, whole_of):
  whole = whole_of(kind)
  for rewind in (1, 4):
    run = start(kind, f'rewind {rewind}', rewind=rewind)
    for last in range(_ROUNDS):
      assert run.serve(last) == (whole[last], False)
      if last + 1 < rewind:
        continue
      for number in range(last + 1 - rewind, last + 1):
        assert run.serve(number) == (whole[number], False), (rewind, last, number)


@two_kinds
def test_an_older_state_is_served_by_computing_again(kind, start, whole_of):
  run = start(kind)
  whole = run.serve_all()
  assert whole == whole_of(kind)
  for number in (9, 6, 0, 10, 3):
    assert run.serve(number)[0] == whole[number]
  # Not all of what one of these needs is there any more.
  assert any(run.serve(number)[1] for number in (8, 7))


def _damage(content, how):
  if how == 'torn':
    return content[: len(content) // 2]
  if how == 'empty':
    return b''
  if how == 'longer':
    return content + b'\0\0\0\0'
  place = {'first byte': 0, 'header': 60, 'values': -9, 'last byte': -1}[how]
  damaged = bytearray(content)
  damaged[place] ^= 1
  return bytes(damaged)


@pytest.fixture(name='seven_rounds', scope='module')
def fixture_seven_rounds(tmp_path_factory):
  """A run of a kind that served 7 rounds, and a copy of its files; made once."""
  made = {}

  def seven_rounds(kind, capfd):
    if kind not in made:
      directory = tmp_path_factory.mktemp('damaged') / 'noise'
      run = _Run(kind, directory, capfd, traced=True)
      run.serve_all(7)
      made[kind] = run, shutil.copytree(directory, directory.with_name('backup'))
    run, backup = made[kind]
    run.listen_to(capfd)
    return run, backup

  return seven_rounds


@pytest.mark.few(5)
@pytest.mark.parametrize(
  'how',
  ['missing', 'torn', 'empty', 'longer', 'first byte', 'header', 'values', 'last byte'],
)
@pytest.mark.parametrize('kind, needed', [('banded', 6), ('tree', 6), ('blt', 4)])
def test_damage_is_recognised_and_mended(
  kind, needed, how, seven_rounds, whole_of, capfd
):
  # Each of the files that round 7 needs, in two dtypes.
  whole = whole_of(kind)
  run, backup = seven_rounds(kind, capfd)
  missed = 0
  for path, content in run.files().items():
    if how == 'missing':
      path.unlink()
    else:
      path.write_bytes(_damage(content, how))
    row, again = run.serve(7)
    assert row == whole[7]
    missed += again
    for copy in backup.iterdir():
      if copy.name != '.lock':
        shutil.copyfile(copy, run.directory / copy.name)
    for path in set(run.files()):
      if not (backup / path.name).exists():
        path.unlink()
  assert missed == needed


@two_kinds
def test_files_that_were_swapped_are_recognised(kind, start, whole_of):
  whole = whole_of(kind)
  run = start(kind, 'swapped')
  number = 6 if kind == 'tree_restarts' else 9  # It needs more than one file.
  run.serve_all(number)
  files = run.files()
  for position in range(len(_SPECS)):
    paths = [path for path in files if path.suffix == f'.{position}']
    for path, other in zip(paths, paths[1:] + paths[:1]):
      path.write_bytes(files[other])
  assert run.serve(number) == (whole[number], True)


def test_files_of_another_key_or_strategy_are_not_used(start):
  wholes = {
    (kind, seed): start(kind, f'{kind} {seed}', seed=seed).serve_all()
    for kind in ('banded', 'tree')
    for seed in (noise.Seed(1), noise.Seed(2))
  }
  shared = {case: start(case[0], 'shared', seed=case[1]) for case in wholes}
  for number in range(_ROUNDS):
    for case, run in shared.items():
      assert run.serve(number) == (wholes[case][number], False)


@two_kinds
def test_a_crash_in_a_write_costs_nothing(kind, start, whole_of):
  whole = whole_of(kind)
  run = start(kind, 'crashed')
  for number in range(_ROUNDS):
    before = run.files()
    assert run.serve(number) == (whole[number], False)
    after = run.files()
    written = [path for path in after if after[path] != before.get(path)]
    assert written
    for path in written:  # As if the process had ended there.
      path.write_bytes(after[path][: len(after[path]) // 3])
    assert run.serve(number) == (whole[number], False)
    assert run.files() == after  # The same bytes again.


@two_kinds
def test_a_full_disk_is_an_error_and_no_loss(kind, start, whole_of):
  whole = whole_of(kind)
  run = start(kind, 'full')
  run.serve_all(6)
  before = run.files()
  run.serve(6)
  after = run.files()
  written = [path for path in after if after[path] != before.get(path)]
  for path in after:
    path.unlink()
  for path, content in before.items():
    path.write_bytes(content)
  for path in written:
    path.unlink(missing_ok=True)
    path.symlink_to('/dev/full')
  with pytest.raises(tf.errors.OpError, match='(?i)no space left'):
    run.serve(6)
  for path in written:
    path.unlink()
  for path, content in before.items():
    path.write_bytes(content)
  for number in range(6, _ROUNDS):
    assert run.serve(number) == (whole[number], False)


def test_files_of_another_generator_are_not_used(tmp_path):
  # With one key: a state that somebody goes on with by another generator.
  def serve(generator, folder, rounds):
    rows = noise.GaussianRows(_SPECS, _SEED, generator)
    files = noise.Files(str(tmp_path / folder))
    streaming = noise.build(_STRATEGIES['banded'], rows, files)
    state = streaming.initialize()
    for this_round in rounds:
      state = state._replace(round=tf.constant(this_round, tf.int64))
      row, state = streaming.next(state)
    return b''.join(tensor.numpy().tobytes() for tensor in row)

  expected = serve('chacha20', 'alone', range(3))
  serve('philox', 'shared', range(2))
  assert serve('chacha20', 'shared', [2]) == expected


def test_names_and_contents_tell_no_key(start):
  run = start('tree', seed=None)
  run.serve_all()
  words = run._first.key.numpy().tolist()
  for path, content in run.files().items():
    for word in words:
      for secret in (str(word), f'{word & (2**64 - 1):x}', str(abs(word))):
        assert secret not in path.name
        assert secret.encode() not in content
      assert word.to_bytes(8, 'little', signed=True) not in content


def test_the_directory_is_for_its_owner_alone(tmp_path, start):
  start('banded')
  assert stat.S_IMODE(os.stat(tmp_path / 'noise').st_mode) == 0o700
  (tmp_path / 'open').mkdir(mode=0o755)
  with pytest.raises(PermissionError, match='has mode 755.*with mode 700'):
    start('banded', 'open')


_CHILD = """
import os, sys
import tensorflow as tf
from tff_dp_aggregators import noise, strategies

rows = noise.GaussianRows(tf.TensorSpec([3]), 1)
for directory in (*sys.argv[1:], None):
  try:
    streaming = noise.build(strategies.BinaryTree(4), rows, noise.Files(directory))
  except RuntimeError as e:
    print(e)
  else:
    streaming.next(streaming.initialize())
    print(streaming.directory, os.path.exists(streaming.directory))
"""


@pytest.fixture(scope='module')
def second_process(tmp_path_factory):
  """What a second process says of a directory in use, a free one, and its own."""
  folder = tmp_path_factory.mktemp('processes')
  rows = noise.GaussianRows(_SPECS, noise.Seed(1))
  noise.build(_STRATEGIES['banded'], rows, noise.Files(str(folder / 'noise')))
  output = subprocess.run(
    [sys.executable, '-c', _CHILD, str(folder / 'noise'), str(folder / 'other')],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    check=True,
    text=True,
    timeout=300,
  ).stdout
  return folder, output.splitlines()


def test_a_second_process_is_refused_until_the_first_has_ended(second_process):
  folder, (refused, served, _) = second_process
  assert refused.endswith('Give each process a directory of its own.')
  assert 'in use by another process' in refused
  assert served == f'{folder / "other"} True'
  # It has ended.
  rows = noise.GaussianRows(_SPECS, noise.Seed(1))
  noise.build(_STRATEGIES['banded'], rows, noise.Files(str(folder / 'other')))


def test_a_temporary_directory_is_removed_at_exit(second_process):
  _, (_, _, temporary) = second_process
  directory, was_there = temporary.rsplit(' ', 1)
  assert 'tff_dp_aggregators-noise-' in directory
  assert was_there == 'True'
  assert not os.path.exists(directory)


def test_a_fork_is_a_second_process(tmp_path):
  directory = tmp_path / 'noise'
  _build(directory)
  _build(directory)  # The same process may.
  child = os.fork()
  if child == 0:
    try:
      _build(directory)
    except RuntimeError:
      os._exit(7)
    os._exit(0)
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize('traced', [False, True])
def test_a_directory_that_is_not_there_is_said_and_not_made(tmp_path, start, traced):
  run = start('banded', traced=traced)
  run.serve(0)
  shutil.rmtree(tmp_path / 'noise')
  with pytest.raises(tf.errors.OpError, match='is not on the machine that runs'):
    run.serve(1)
  assert not (tmp_path / 'noise').exists()
  # One that is made anew is another one, and locked like the first.
  assert start('banded', traced=traced).serve_all(3)


def test_a_path_may_have_any_characters(start, whole_of):
  name = 'a [1]* \\ {b}? é'
  whole = whole_of('banded')
  assert start('banded', name).serve_all(7) == whole[:7]
  assert start('banded', name).serve(7) == (whole[7], False)


def test_a_directory_of_another_user_is_refused(tmp_path):
  foreign = tmp_path / 'foreign'
  foreign.mkdir(mode=0o700)
  if os.geteuid() == 0:
    os.chown(foreign, 12345, -1)
  else:
    foreign = '/usr'
  with pytest.raises(PermissionError, match='belongs to user'):
    _build(foreign)


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path):
  (tmp_path / 'mine').mkdir(mode=0o700)
  (tmp_path / 'link').symlink_to(tmp_path / 'mine')
  for path in (tmp_path / 'link', f'{tmp_path}/link/', f'{tmp_path}/link/.'):
    with pytest.raises(NotADirectoryError, match='is a symbolic link'):
      _build(path)
  (tmp_path / 'file').write_text('')
  with pytest.raises(FileExistsError):
    _build(tmp_path / 'file')
  assert not list((tmp_path / 'mine').iterdir())


def test_noise_in_the_temporary_directory_is_not_mixed_up():
  # With equal seeds, of which one is ahead of the other.
  one, other = (_build(None, noise.Seed(1)) for _ in range(2))
  assert one.directory == other.directory  # Or a thousand would keep as many locks.
  state, ahead = one.initialize(), []
  for _ in range(6):
    value, state = one.next(state)
    ahead.append(value.numpy().tolist())
  late, behind = other.initialize(), []
  for _ in range(6):
    value, late = other.next(late)
    behind.append(value.numpy().tolist())
  assert behind == ahead
  next_of_both = [each.next(state)[0].numpy().tolist() for each in (one, other)]
  assert next_of_both[0] == next_of_both[1]


_TEMPORARY = """
import os, sys, time
import tensorflow as tf
from tff_dp_aggregators import noise, strategies

rows = noise.GaussianRows(tf.TensorSpec([3]))
streaming = noise.build(strategies.BinaryTree(4), rows, 'files')
streaming.next(streaming.initialize())
if 'fork' in sys.argv and os.fork():
  os.wait()
print(streaming.directory, os.getpid(), flush=True)
if 'wait' in sys.argv:
  time.sleep(600)
"""


@pytest.fixture(name='launch')
def fixture_launch(tmp_path):
  """Starts processes whose folder for temporary files is the test's own."""
  started = []

  def launch(*arguments):
    process = subprocess.Popen(
      [sys.executable, '-c', _TEMPORARY, *arguments],
      env={
        **os.environ,
        'PYTHONPATH': os.pathsep.join(sys.path),
        'TMPDIR': str(tmp_path),
      },
      stdout=subprocess.PIPE,
      text=True,
    )
    started.append(process)
    return process

  yield launch
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()


def _told(process):
  directory, number = process.stdout.readline().split()
  return directory, int(number)


def test_what_a_killed_process_left_is_removed_by_the_next(launch, tmp_path):
  killed, alive = launch('wait'), launch('wait')
  (left, _), (in_use, _) = _told(killed), _told(alive)
  assert os.path.dirname(left) == os.path.dirname(in_use) == str(tmp_path)
  assert stat.S_IMODE(os.stat(left).st_mode) == 0o700
  killed.kill()
  killed.wait()
  assert len(os.listdir(left)) > 1
  elsewhere = tmp_path / 'elsewhere'
  elsewhere.mkdir(mode=0o700)
  link, foreign, open_to_all = (
    tmp_path / f'tff_dp_aggregators-noise-{name}' for name in ('l', 'f', 'o')
  )
  link.symlink_to(elsewhere)
  open_to_all.mkdir(mode=0o755)
  kept = {elsewhere, link, open_to_all}
  if os.geteuid() == 0:
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, -1)
    kept.add(foreign)
  following = launch()
  own, _ = _told(following)
  assert following.wait() == 0
  assert not os.path.exists(left) and not os.path.exists(own)
  assert set(tmp_path.iterdir()) == {*kept, tmp_path / os.path.basename(in_use)}
  assert len(os.listdir(in_use)) > 1 and not os.listdir(elsewhere)


@pytest.mark.slow
def test_what_a_fork_still_uses_is_not_removed(launch):
  parent = launch('fork', 'wait')
  path, fork = _told(parent)
  try:
    assert fork != parent.pid
    parent.kill()
    parent.wait()
    assert launch().wait() == 0
    assert os.path.exists(path)
  finally:
    os.kill(fork, signal.SIGKILL)
  assert launch().wait() == 0
  assert not os.path.exists(path)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'directory': 'relative'}, ValueError, "absolute path, got 'relative'"),
    ({'rewind': 0}, ValueError, 'rewind must be at least 1, got 0'),
    ({'rewind': 1.0}, TypeError, 'rewind must be a whole number, got 1.0'),
    ({'rewind': True}, TypeError, 'rewind must be a whole number, got True'),
  ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    noise.Files(**arguments)


def test_values_are_where_the_header_ends():
  # The layout of what TensorFlow serialises is relied upon.
  for dtype in (np.float32, np.float64):
    for size in (1, 15, 16, 31, 32, 4000, 524288):
      content = tf.io.serialize_tensor(np.ones(size, dtype)).numpy()
      assert content.endswith(np.ones(size, dtype).tobytes())


_FIRST_ROUNDS = """
import sys
import tensorflow as tf
from tff_dp_aggregators import noise, strategies

strategy = strategies.Strategy.from_json(sys.argv[1])
rows = noise.GaussianRows([tf.TensorSpec([50]), tf.TensorSpec([3], tf.float64)], 1)
streaming = noise.build(strategy, rows, noise.Files(sys.argv[2], 1))
state = streaming.initialize()
for _ in range(5):
  row, state = streaming.next(state)
  print(b''.join(tensor.numpy().tobytes() for tensor in row).hex())
"""


@pytest.mark.slow
def test_another_process_goes_on_with_the_files(tmp_path, start, whole_of):
  whole = whole_of('banded')
  assert len(set(whole)) == _ROUNDS
  result = subprocess.run(
    [sys.executable, '-c', _FIRST_ROUNDS, _STRATEGIES['banded'].to_json()]
    + [str(tmp_path / 'parts')],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    check=True,
    text=True,
    timeout=300,
  )
  assert _AGAIN not in result.stderr
  assert result.stdout.split() == [row.hex() for row in whole[:5]]
  run = start('banded', 'parts')
  served = [run.serve(number) for number in range(5, _ROUNDS)]
  assert served == [(row, False) for row in whole[5:]]

"""Nobody but the user who adds the noise gets at its files, whatever others try.

Claims:

* Files have mode 600, whatever the umask, and their directory 700.
* Mode and owner are checked each time it is opened, from Python and in each round: a
  mode that was changed, and even changed back, in the run ends it.
* Neither links nor another directory in the place of the first one are followed, and
  files of others are not used.
* What a killed process leaves is removed by the next one; what is in use, of another
  user, or something else, is left alone.
* Files of runs that were given up leave a named directory.
"""

import ast
import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import private_directory

_FILE = '0123456789abcdef.00000000000000000007.0.0'
_OTHER_RUN = '0123456789abcdef.-0000000000000000007.0.0'
_OTHER_USER = 12345


def _build(directory):
  rows = noise.GaussianRows(tf.TensorSpec([3]))
  files = noise.Files(None if directory is None else str(directory))
  return noise.build(strategies.BandedToeplitz(9, (1.0, 0.5)), rows, files)


def _modes(directory):
  return {stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir()}


@contextlib.contextmanager
def _umask(mask):
  before = os.umask(mask)
  try:
    yield
  finally:
    os.umask(before)


@pytest.mark.parametrize('kind', ['named', 'temporary'])
def test_files_have_mode_600_whatever_the_umask(kind, tmp_path):
  with _umask(0):
    streaming = _build(tmp_path / 'noise' if kind == 'named' else None)
    # A temporary one is that of all noise of the process.
    before = set(os.listdir(streaming._cache.directory)) - {private_directory.OWNER}
    streaming.next(streaming.initialize())
  directory = type(tmp_path)(streaming._cache.directory)
  assert len(set(os.listdir(directory)) - before) == 2
  assert _modes(directory) == {0o600}
  assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize('back', [False, True])
@pytest.mark.parametrize('traced', [False, True])
def test_a_mode_that_is_changed_in_the_run_ends_it(back, traced, tmp_path):
  directory = tmp_path / 'noise'
  streaming = _build(directory)
  serve = tf.function(streaming.next) if traced else streaming.next
  first, state = serve(streaming.initialize())
  second, _ = serve(state)
  directory.chmod(0o777)
  if back:
    directory.chmod(0o700)
  else:
    with pytest.raises(PermissionError, match='entered by others'):
      _build(directory)
  before = {path: path.read_bytes() for path in directory.iterdir()}
  for _ in range(2):
    with pytest.raises(tf.errors.OpError, match='mode or owner.*was changed'):
      serve(state)
  assert before == {path: path.read_bytes() for path in directory.iterdir()}
  directory.chmod(0o700)
  _build(directory)  # Looks again, and finds nothing wrong.
  again, _ = serve(state)
  assert bool(tf.reduce_all(again == second) & ~tf.reduce_all(again == first))


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give a file away')
def test_an_owner_who_is_changed_in_the_run_ends_it(tmp_path):
  directory = tmp_path / 'noise'
  streaming = _build(directory)
  _, state = streaming.next(streaming.initialize())
  os.chown(directory, _OTHER_USER, -1)
  with pytest.raises(tf.errors.OpError, match='mode or owner.*was changed'):
    streaming.next(state)


def test_many_directories_are_watched_at_once(tmp_path):
  opened = [private_directory.open_named(str(tmp_path / str(i))) for i in range(40)]
  for directory in opened:
    with open(directory.watch.path, encoding='ascii') as file:
      content = os.read(file.fileno(), 4096).decode()  # What TensorFlow reads.
    assert f' {directory.watch.line} ' in content


def test_a_program_may_build_noise_a_thousand_times():
  # Each used to keep two files open until the process ended.
  _build(None)
  before = len(os.listdir('/proc/self/fd'))
  caches = [_build(None)._cache for _ in range(5)]
  assert len(os.listdir('/proc/self/fd')) == before
  # No two have files in common, as with equal seeds they would write over each other's.
  assert len({cache._identity for cache in caches}) == 5
  assert len({cache.directory for cache in caches}) == 1


def test_noise_with_equal_seeds_in_one_temporary_directory_is_not_mixed_up():
  one, other = (
    noise.build(
      strategies.BandedToeplitz(9, (1.0, 0.5)),
      noise.GaussianRows(tf.TensorSpec([3]), noise.Seed(1)),
      'files',
    )
    for _ in range(2)
  )
  alone = []
  state = one.initialize()
  for _ in range(6):
    value, state = one.next(state)
    alone.append(value.numpy().tolist())
  late, value = other.initialize(), None
  for this_round in range(6):
    value, late = other.next(late)
    assert value.numpy().tolist() == alone[this_round]
  value, _ = one.next(state)
  assert value.numpy().tolist() == other.next(late)[0].numpy().tolist()


def test_a_directory_that_another_program_has_locked_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(private_directory, '_LOCK_SECONDS', 0.3)
  path = tmp_path / 'noise'
  path.mkdir(mode=0o700)
  handle = os.open(path, os.O_RDONLY)  # As `flock <directory> <program>` does.
  try:
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(RuntimeError, match='holds a lock of the noise directory'):
      private_directory.open_named(str(path))
    fcntl.flock(handle, fcntl.LOCK_UN)
    assert private_directory.open_named(str(path)).name == str(path)
  finally:
    os.close(handle)


def test_a_directory_of_another_user_is_refused(tmp_path):
  foreign = tmp_path / 'foreign'
  foreign.mkdir(mode=0o700)
  if os.geteuid() == 0:
    os.chown(foreign, _OTHER_USER, -1)
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


def test_what_others_have_planted_is_removed_and_not_followed(tmp_path):
  directory = tmp_path / 'noise'
  directory.mkdir(mode=0o700)
  victim = tmp_path / 'victim'
  victim.write_text('precious')
  planted = [_FILE.replace('.0.0', f'.{slot}.0') for slot in range(4)]
  (directory / 'owner').symlink_to(victim)
  (directory / planted[0]).symlink_to(victim)
  (directory / planted[1]).symlink_to(tmp_path / 'not there yet')
  os.link(victim, directory / planted[2])
  (directory / planted[3]).write_text('others could open it')
  (directory / planted[3]).chmod(0o644)
  (directory / 'README').write_text('not of here')
  private_directory.open_named(str(directory))
  assert sorted(path.name for path in directory.iterdir()) == ['README', 'owner']
  assert victim.read_text() == 'precious'
  assert stat.S_ISREG((directory / 'owner').lstat().st_mode)
  assert not (tmp_path / 'not there yet').exists()


def test_another_directory_in_its_place_gets_nothing(tmp_path):
  directory, moved = tmp_path / 'noise', tmp_path / 'moved'
  streaming = _build(directory)
  _, state = streaming.next(streaming.initialize())
  before = len(list(directory.iterdir()))
  directory.rename(moved)
  trap = tmp_path / 'trap'
  trap.mkdir(mode=0o777)
  (trap / 'owner').write_text('')
  directory.symlink_to(trap)
  for _ in range(3):
    _, state = streaming.next(state)
  assert [path.name for path in trap.iterdir()] == ['owner']
  assert len(list(moved.iterdir())) >= before
  with pytest.raises(NotADirectoryError, match='symbolic link'):
    _build(directory)
  directory.unlink()
  # A directory of one's own there is another one, with a lock of its own.
  assert _build(directory)._cache._directory.path != streaming._cache._directory.path


# Without TensorFlow, of which the module knows nothing, a process starts at once.
_LOAD = f"""
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location('d', {private_directory.__file__!r})
d = importlib.util.module_from_spec(spec)
sys.modules['d'] = d
spec.loader.exec_module(d)
"""
_KEEP = f"""
directory = d.open_temporary(0)
with open(directory.path + '/{_FILE}', 'w') as file:
  file.write('noise')
print(directory.name, flush=True)
"""


@pytest.fixture(name='start')
def fixture_start(tmp_path):
  """Starts processes whose folder for temporary files is the test's own."""
  started = []

  def start(program, *arguments):
    process = subprocess.Popen(
      [sys.executable, '-c', _LOAD + program, *map(str, arguments)],
      env={**os.environ, 'TMPDIR': str(tmp_path)},
      stdout=subprocess.PIPE,
      text=True,
    )
    started.append(process)
    return process

  yield start
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()


def _finish(process):
  output = process.stdout.read()
  assert process.wait() == 0
  return output


def test_what_a_killed_process_left_is_removed_by_the_next(start):
  killed, alive = (start(_KEEP + 'time.sleep(600)') for _ in range(2))
  left, in_use = (process.stdout.readline().strip() for process in (killed, alive))
  assert left.startswith('/dev/shm/') or not os.access('/dev/shm', os.W_OK)
  killed.send_signal(signal.SIGKILL)
  killed.wait()
  assert os.path.exists(f'{left}/{_FILE}')
  # Several at the same time; each has one of its own, removed when it ends.
  for each in [start(_KEEP) for _ in range(4)]:
    assert not os.path.exists(_finish(each).strip())
  assert not os.path.exists(left)
  assert os.path.exists(f'{in_use}/{_FILE}')


def test_what_a_fork_still_uses_is_not_removed(start):
  fork = 'fork = os.fork()\nif fork: print(fork, flush=True)\n'
  parent = start(_KEEP + fork + 'time.sleep(600)')
  path, fork = parent.stdout.readline().strip(), int(parent.stdout.readline())
  try:
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _finish(start(_KEEP))
    assert os.path.exists(f'{path}/{_FILE}')
  finally:
    os.kill(fork, signal.SIGKILL)
  deadline = time.monotonic() + 30
  while os.path.exists(path) and time.monotonic() < deadline:
    _finish(start('d.remove_left_behind()'))
  assert not os.path.exists(path)


def test_what_is_not_ours_to_remove_is_left_alone(start, tmp_path):
  def left(name, *files):
    path = tmp_path / f'{private_directory._TEMPORARY}{name}'
    path.mkdir(mode=0o700)
    for file in files:
      (path / file).write_text('kept')
    return path

  removed = [left('dead', 'owner', _FILE), left('torn', _FILE), left('empty')]
  kept = [left('notes', 'owner', _FILE, 'notes.txt'), left('other')]
  (kept[1] / 'folder').mkdir()
  elsewhere = tmp_path / 'elsewhere'
  elsewhere.mkdir()
  (elsewhere / _FILE).write_text('kept')
  link = tmp_path / f'{private_directory._TEMPORARY}link'
  link.symlink_to(elsewhere)
  linked = left('owner_is_a_link', _FILE)
  (linked / 'owner').symlink_to(elsewhere / _FILE)
  kept.append(linked)
  making = tmp_path / f'{private_directory._MAKING}soon'
  making.mkdir(mode=0o700)
  old = tmp_path / f'{private_directory._MAKING}never'
  old.mkdir(mode=0o700)
  os.utime(old, (0, 0))
  removed.append(old)
  if os.geteuid() == 0:
    foreign = left('foreign', 'owner', _FILE)
    os.chown(foreign, _OTHER_USER, -1)
    kept.append(foreign)
  _finish(start('d.remove_left_behind()'))
  assert not any(path.exists() for path in removed)
  assert all(list(path.iterdir()) for path in kept)
  assert (elsewhere / _FILE).read_text() == 'kept' and link.is_symlink()
  assert making.exists()


_SERVE = """
directory = d.open_named(sys.argv[1])
print(sorted(each for each in os.listdir(directory.path) if each != 'owner'))
time.sleep(0.05)  # Times of files are those of the clock's last tick.
for name in sys.argv[2:]:
  open(f'{directory.path}/{name}', 'w').close()
time.sleep(0.05)
"""


def test_files_of_runs_that_were_given_up_leave_a_named_directory(start, tmp_path):
  def serve(*files):
    """What the next process found there, before it wrote."""
    return ast.literal_eval(_finish(start(_SERVE, tmp_path / 'noise', *files)))

  second_slot = _FILE.replace('.0.0', '.1.0')
  assert serve(_FILE, second_slot) == []
  assert serve(_FILE) == [_FILE, second_slot]
  # All of a run's, also what it did not write again.
  assert serve() == [_FILE, second_slot]
  # A process that served nothing has given nothing up.
  assert serve() == [_FILE, second_slot]
  assert serve(_OTHER_RUN) == [_FILE, second_slot]
  assert serve(_OTHER_RUN) == [_OTHER_RUN]
  both = sorted([_FILE, _OTHER_RUN])
  assert serve(*both) == [_OTHER_RUN]
  assert serve(*both) == both  # Two go on together.


def test_a_second_call_gets_the_same_directory(tmp_path):
  path = str(tmp_path / 'noise')
  first, second = (private_directory.open_named(path) for _ in range(2))
  assert first == second

"""A training whose worker is another machine: certificates, and a link that fails.

Claims:

* With certificates of one authority, `experiments.simulate --workers=` comes to the
  same model as without workers, bit by bit, also if the link is down for a while.
* Without certificates, with those of another authority, and in plain text, nothing is
  trained, and the user is told which of these it is.
"""

import contextlib
import csv
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.workers import certificates
from tests.workers import machines
from tests.workers import supervised
from tff_dp_aggregators.workers import credentials

_RUN = (
  *('--num_clients=40', '--clients_per_round=8', '--min_separation=2'),
  *('--num_rounds=40', '--noise_multiplier=1'),
)


class _Training:
  """A training program that runs, or has ended.

  Attributes:
    run_dir: Its run directory.
    lines: What it has printed until now.
  """

  def __init__(self, run_dir, *arguments):
    self.run_dir, self.lines = pathlib.Path(run_dir), []
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'experiments.simulate', f'--run_dir={run_dir}', *_RUN]
      + list(arguments),
      cwd=supervised.ROOT,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _read(self):
    for line in self._process.stdout:
      self.lines.append(line.rstrip('\n'))

  def said(self, *words):
    """How many lines it has printed with all of these words."""
    return sum(all(each in line for each in words) for line in self.lines)

  def wait_for(self, condition):
    """Returns when it is so; fails if the program ends before."""

    def is_so():
      assert self._process.poll() is None or condition(), self.lines
      return condition()

    supervised.until(is_so, 240)

  def num_rounds(self):
    """How many rounds it has trained."""
    with contextlib.suppress(FileNotFoundError):
      with open(self.run_dir / 'metrics.csv', newline='') as file:
        return len(list(csv.DictReader(file)))
    return 0

  def finish(self):
    """The exit code."""
    code = self._process.wait(300)
    self._reader.join(60)
    return code

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._process.kill()
    self._process.wait()


def _model(run_dir):
  with np.load(pathlib.Path(run_dir) / 'model.npz') as file:
    return {name: file[name] for name in file.files}


@pytest.fixture(scope='module')
def machine():
  with machines.another() as machine:
    yield machine


@pytest.fixture(scope='module')
def authority(tmp_path_factory):
  return certificates.Authority(tmp_path_factory.mktemp('group'), 'group')


@pytest.fixture(scope='module')
def worker(machine, authority):
  """A worker there, which takes calls with certificates only."""
  certificate, key = authority.sign(
    'worker', hosts=[machine.address], usage=certificates.SERVER
  )
  with supervised.Worker(
    f'--address={machine.address}',
    *(f'--certificate={certificate}', f'--key={key}'),
    f'--authority={authority.path}',
    python=(*machine.command, sys.executable, '-m'),
  ) as worker:
    assert worker.said(f'with certificates of {authority.path} only'), worker.lines
    yield worker


def _coordinator(signed_by, authority=None):
  """Flags of a coordinator."""
  certificate, key = signed_by.sign('coordinator', usage=certificates.CLIENT)
  return (
    f'--workers_certificate={certificate}',
    f'--workers_key={key}',
    f'--workers_authority={authority or signed_by.path}',
  )


@pytest.mark.slow
def test_the_model_is_the_same_also_if_the_link_was_down(
  tmp_path, machine, worker, authority
):
  with _Training(tmp_path / 'here') as here:
    assert here.finish() == 0, here.lines
  arguments = (
    *(f'--workers={worker.address}', '--worker_timeout_seconds=2'),
    *_coordinator(authority),
  )
  with _Training(tmp_path / 'there', *arguments) as there:
    there.wait_for(lambda: there.num_rounds() >= 3)
    machine.link('down')
    try:
      there.wait_for(lambda: there.said('is lost'))
      before = there.num_rounds()
    finally:
      machine.link('up')
    assert there.finish() == 0, there.lines
    assert before < 40
    assert there.said('worker', 'is there, trains') == 2, there.lines
  here, there = _model(here.run_dir), _model(there.run_dir)
  assert here.keys() == there.keys() and here
  for name, array in here.items():
    np.testing.assert_array_equal(array, there[name])


def _plain(ours, others):
  wanted = 'it takes calls of those with a certificate alone; give '
  three = '--workers_certificate, --workers_key and --workers_authority'
  return ('--trusted_network',), 1, wanted + three


def _of_another_group(ours, others):
  words = f'--workers_authority={others.path} does not vouch for'
  return _coordinator(others), 1, words


def _that_the_worker_does_not_know(ours, others):
  # Which trusts both groups, so that it is the worker who refuses.
  both = others.folder / 'both.crt'
  both.write_bytes(
    b''.join(pathlib.Path(each.path).read_bytes() for each in (ours, others))
  )
  flags = _coordinator(others, both)
  return flags, 1, f'it refuses {flags[0]}'


def _with_files_that_do_not_go_together(ours, others):
  flags = _coordinator(others, ours.path)
  return flags, 2, f'{flags[0]} is refused as that of a coordinator by {flags[2]}'


@pytest.mark.slow
@pytest.mark.parametrize(
  'who',
  [
    _plain,
    _of_another_group,
    _that_the_worker_does_not_know,
    _with_files_that_do_not_go_together,
  ],
  ids=lambda who: who.__name__.strip('_'),
)
def test_who_is_not_of_the_group_trains_nothing(who, tmp_path, worker, authority):
  others = certificates.Authority(tmp_path, 'others')
  arguments, code, words = who(authority, others)
  arguments = (f'--workers={worker.address}', '--worker_patience_seconds=4', *arguments)
  with _Training(tmp_path / 'run', *arguments) as training:
    assert (training.finish(), training.num_rounds()) == (code, 0), training.lines
    assert training.said(words), training.lines
    assert not training.said('Traceback'), training.lines
  with supervised.Caller(worker.address, _channel_of(authority)) as caller:
    assert caller.status()['state'] == 'serving'


def _channel_of(authority):
  certificate, key = authority.sign('again', usage=certificates.CLIENT)
  return credentials.Files(certificate, key, authority.path).channel()


def test_another_machine_without_certificates_is_refused_at_once(tmp_path, machine):
  address = f'{machine.address}:8470'
  with _Training(tmp_path / 'run', f'--workers={address}') as training:
    assert training.finish() == 2
    assert not training.run_dir.exists()
  assert f'--workers={machine.address} is not on this machine alone' in (
    '\n'.join(training.lines)
  )

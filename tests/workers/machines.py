"""Another machine, for tests: a network namespace; and who reaches what."""

import contextlib
import os
import shutil
import socket
import subprocess

import psutil
import pytest


class Machine:
  """A network namespace; made and removed by `with`.

  Attributes:
    command: Before what is to run there.
    address: Its address, as this machine reaches it.
    here: That of this machine, as it reaches this one.
  """

  def __init__(self):
    self._name = f'tff-dp-{os.getpid()}'
    self._link = f'tfa{os.getpid()}'
    self.command = ('ip', 'netns', 'exec', self._name)
    # Of the block for tests of networks (RFC 2544), four addresses for each process.
    first = 4 * (os.getpid() % 2**15)
    self.here, self.address = (
      f'198.{18 + (first >> 16)}.{first >> 8 & 255}.{(first & 255) + last}'
      for last in (1, 2)
    )

  def link(self, state):
    """Has the link 'up' or 'down'; nobody is told when it is down."""
    _ip('link', 'set', self._link, state)

  def __enter__(self):
    there, far = ('-n', self._name), f'tfb{os.getpid()}'
    _ip('netns', 'add', self._name)
    try:
      peer = ('peer', 'name', far, 'netns', self._name)
      _ip('link', 'add', self._link, 'type', 'veth', *peer)
      _ip('address', 'add', f'{self.here}/30', 'dev', self._link)
      self.link('up')
      _ip(*there, 'address', 'add', f'{self.address}/30', 'dev', far)
      _ip(*there, 'link', 'set', far, 'up')
      _ip(*there, 'link', 'set', 'lo', 'up')
    except PermissionError:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused):
    _ip('netns', 'delete', self._name)  # And the link with it.


def _ip(*arguments):
  result = subprocess.run(['ip', *arguments], capture_output=True, text=True)
  if result.returncode:
    raise PermissionError(result.stderr)


@contextlib.contextmanager
def another():
  """Another machine; the test is skipped where there can be none."""
  if os.getuid() != 0 or shutil.which('ip') is None:
    pytest.skip('another machine is a network namespace, which root alone can make')
  with contextlib.ExitStack() as stack:
    try:
      machine = stack.enter_context(Machine())
    except PermissionError as e:
      pytest.skip(f'no network namespace can be made here: {e}')
    yield machine


def own_addresses():
  """Addresses of this machine that are not loopback, without those of a link."""
  return [
    entry.address
    for entries in psutil.net_if_addrs().values()
    for entry in entries
    if entry.family in (socket.AF_INET, socket.AF_INET6)
    and not entry.address.startswith(('127.', '::1', 'fe80:'))
  ]


def reaches(host, port):
  """Whether somebody listens there."""
  try:
    socket.create_connection((host, port), timeout=2).close()
  except OSError:
    return False
  return True

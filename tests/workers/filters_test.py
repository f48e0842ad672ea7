"""A socket takes the connection that it is told of, and nobody else's.

Claims, with sockets of this machine:

* With the first filter no connection is accepted, of IPv4 or IPv6, whoever calls.
* With the second one, a connection that began before is accepted, with what was sent
  meanwhile; others are not, whether they began before or begin now.
* That connection goes on, with much to carry, when the first filter is back.
"""

import contextlib
import socket
import threading

import pytest

from tff_dp_aggregators.workers import filters

_LOOPBACK = '127.0.0.1'


@pytest.fixture(
  params=[pytest.param(socket.AF_INET, marks=pytest.mark.slow), socket.AF_INET6],
  ids=['IPv4', 'both'],
)
def listening(request):
  both = request.param == socket.AF_INET6
  made = socket.create_server(
    ('::' if both else _LOOPBACK, 0), family=request.param, dualstack_ipv6=both
  )
  with made:
    try:
      filters.complete_no_handshake(made)
    except PermissionError:
      pytest.skip('this kernel keeps filters of sockets for root')
    made.settimeout(1.5)
    yield made


def _call(listening, host=_LOOPBACK, says=b''):
  connection = socket.create_connection((host, listening.getsockname()[1]), timeout=2)
  connection.sendall(says)
  return connection


def _ends(connection, **changes):
  source, port = connection.getsockname()
  return filters.Ends(source, port, _LOOPBACK)._replace(**changes)


def _is_nobody_accepted(listening):
  with pytest.raises(socket.timeout):
    listening.accept()
  return True


def test_one_connection_is_taken_and_no_other(listening):
  filters.complete_no_handshake(listening)
  with contextlib.ExitStack() as stack:
    before = stack.enter_context(_call(listening, says=b'before'))
    ours = stack.enter_context(_call(listening, says=b'ours'))
    if listening.family == socket.AF_INET6:
      stack.enter_context(_call(listening, '::1', b'by IPv6'))
    assert _is_nobody_accepted(listening)
    filters.complete_one_handshake(listening, _ends(ours))
    listening.settimeout(10)
    accepted = stack.enter_context(listening.accept()[0])
    assert accepted.getpeername()[1] == ours.getsockname()[1]
    assert accepted.recv(10) == b'ours'
    listening.settimeout(1.5)
    with pytest.raises(socket.timeout):
      _call(listening)
    before.sendall(b'again')
    assert _is_nobody_accepted(listening)
    filters.complete_no_handshake(listening)
    assert _is_nobody_accepted(listening)
    sending = threading.Thread(target=ours.sendall, args=(bytes(10**7),))
    sending.start()
    left = 10**7
    accepted.settimeout(10)
    while left:
      left -= len(accepted.recv(left))
    sending.join()
    accepted.sendall(b'answer')
    assert ours.recv(10) == b'answer'


@pytest.mark.parametrize(
  'changes', [{'source': '127.0.0.2'}, {'target': '127.0.0.2'}, {'source_port': 1}]
)
def test_both_ends_count(listening, changes):
  filters.complete_no_handshake(listening)
  with _call(listening, says=b'ours') as ours:
    filters.complete_one_handshake(listening, _ends(ours, **changes))
    assert _is_nobody_accepted(listening)
    filters.complete_one_handshake(listening, _ends(ours))
    listening.settimeout(10)
    listening.accept()[0].close()

"""What comes through a front, and who may call it.

Claims:

* Requests and answers go through as they are, up to the size that TFF can make; so do
  errors, deadlines and cancellations. What is no method of TFF's service is refused.
* It can be reached at the given addresses alone, of IPv4, IPv6 and by name.
* With certificates, nobody calls who has none of the group's authority, and nobody is
  called whose certificate has another name.
* A port that is taken, and an address that is none, are told by name.
"""

import asyncio
import concurrent.futures
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.workers import certificates
from tests.workers import machines
from tests.workers import supervised
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import front as front_lib
from tff_dp_aggregators.workers import keeper as keeper_lib
from tff_dp_aggregators.workers import protocol

_COMPUTE = protocol.path_of('Compute')


@pytest.fixture(scope='module')
def worker():
  with supervised.Worker() as worker:
    yield worker


@pytest.fixture
def caller(worker):
  with supervised.Caller(worker.address) as caller:
    yield caller


def _code_of(error):
  return error.value.code()


def test_calls_go_through(caller):
  executor = caller.executor()
  assert b'clients=1/' in executor
  assert caller.call('DisposeExecutor', executor) == b''


def test_errors_go_through(caller):
  with pytest.raises(grpc.RpcError, match='No cardinality provided') as error:
    caller.call('GetExecutor')
  assert _code_of(error) == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
  'path',
  [
    protocol.path_of('Shutdown'),
    '/tensorflow_federated.v0.ExecutorGroup/',
    '/tff_dp_aggregators.Worker/Run',
    '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
  ],
)
def test_other_methods_are_unimplemented(path, caller):
  with pytest.raises(grpc.RpcError) as error:
    caller.of_path(path)(b'', timeout=20)
  assert _code_of(error) == grpc.StatusCode.UNIMPLEMENTED


def test_its_status(caller, worker):
  status = caller.status()
  assert status == {**status, 'format': 2, 'state': 'serving', 'deaths': []}
  assert status['generation'] == 1
  assert len(status['identity']) == 32
  assert status['identity'] == caller.status()['identity']
  assert set(status['machine']) == {'processor', 'processors', 'environment'}
  assert {'commit', 'python'} <= set(status)
  assert status['software'] == protocol.software()


class _Behind:
  """Stands where `worker_binary` does, and notes what it is told of a call.

  Only the far end of a call can say with which deadline it came, and when it was given
  up; TFF's does not.
  """

  def __init__(self):
    self.requests, self.seconds = [], []
    self.given_up = threading.Event()
    self.release = threading.Event()
    self._server = grpc.server(
      concurrent.futures.ThreadPoolExecutor(4), options=protocol.MESSAGE_OPTIONS
    )
    handlers = {
      name: grpc.unary_unary_rpc_method_handler(getattr(self, name.lower()))
      for name in ('Compute', 'Dispose')
    }
    handler = grpc.method_handlers_generic_handler(protocol.SERVICE, handlers)
    self._server.add_generic_rpc_handlers((handler,))
    self.target = f'127.0.0.1:{self._server.add_insecure_port("127.0.0.1:0")}'
    self._server.start()

  def dispose(self, request, context):
    return request

  def compute(self, request, context):
    self.requests.append(request)
    self.seconds.append(context.time_remaining())
    context.add_callback(self.given_up.set)
    self.release.wait(60)
    return request[::-1]

  def is_alive(self):
    return True

  def end(self):
    self.release.set()
    self._server.stop(None)
    return 'ended'


class _Running:
  """A front in an event loop of a thread, before something else than TFF."""

  def __init__(self, behind):
    self.behind = behind
    self._loop = asyncio.new_event_loop()
    threading.Thread(target=self._loop.run_forever, daemon=True).start()
    (self.address,) = self._in_loop(self._start())

  def _in_loop(self, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

  async def _start(self):
    keeper = keeper_lib.Keeper(print, 30.0)
    keeper._current = self._generation = keeper_lib.Generation(1, self.behind)
    self._front = front_lib.Front(keeper, '127.0.0.1', 0, None)
    await self._front.start()
    return self._front.listening

  async def _stop(self):
    await self._generation.end()
    await self._front.end()

  def end(self):
    self._in_loop(self._stop())
    self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def before_another():
  running = _Running(_Behind())
  yield running
  running.end()


def test_deadlines_are_handed_on(before_another):
  behind = before_another.behind
  behind.release.set()
  with supervised.Caller(before_another.address) as caller:
    assert caller.of_path(_COMPUTE)(b'abc', timeout=50) == b'cba'
    assert caller.of_path(_COMPUTE)(b'abc') == b'cba'
  assert behind.requests == [b'abc', b'abc']
  assert 40 < behind.seconds[0] <= 51  # gRPC sends it rounded up.
  assert behind.seconds[1] is None or behind.seconds[1] > 10**6


@pytest.mark.parametrize('how', ['cancel', 'deadline', 'disconnect'])
def test_a_call_that_is_given_up_is_given_up_behind(how, before_another):
  behind = before_another.behind
  with supervised.Caller(before_another.address) as caller:
    timeout = 1.0 if how == 'deadline' else None
    call = caller.of_path(_COMPUTE).future(b'abc', timeout=timeout)
    supervised.until(lambda: behind.requests)
    assert not behind.given_up.is_set()
    if how == 'cancel':
      call.cancel()
    if how == 'deadline':
      assert call.exception(20).code() == grpc.StatusCode.DEADLINE_EXCEEDED
    if how != 'disconnect':
      assert behind.given_up.wait(20)
  assert behind.given_up.wait(20)


@pytest.mark.parametrize(
  'size', [5 * 10**7, pytest.param(19 * 10**8, marks=pytest.mark.slow)]
)
def test_large_messages_go_through(size, before_another):
  before_another.behind.release.set()
  with supervised.Caller(before_another.address) as caller:
    answer = caller.of_path(_COMPUTE)(b'x' + bytes(size), timeout=300)
  assert len(answer) == size + 1 and answer[-1:] == b'x'


def _refusal(*arguments):
  """What the program says, that ends at once with exit code 2."""
  worker = supervised.Worker(*arguments)
  code, lines = worker.finish()
  assert (code, len(lines)) == (2, 1), lines
  return lines[0]


def test_a_port_that_is_taken(worker):
  port = worker.address.rpartition(':')[2]
  result = subprocess.run(
    [sys.executable, '-m', 'experiments.worker', f'--port={port}'],
    cwd=supervised.ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (result.returncode, result.stdout) == (2, '')
  assert f'127.0.0.1:{port}: Address already in use; --port={port} is taken; give' in (
    result.stderr
  )


def test_reached_by_the_given_addresses_alone():
  own = machines.own_addresses()
  if not own:
    pytest.skip('this machine has no address but loopback')
  with supervised.Worker(f'--address={own[0]}', '--trusted_network') as worker:
    assert worker.said('whoever is on this network may run code here')
    host, _, port = worker.address.rpartition(':')
    assert host.strip('[]') == own[0]
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['state'] == 'serving'
    for other in ('127.0.0.1', '::1', *own[1:]):
      assert not machines.reaches(other, int(port))


def test_loopback_of_ipv6():
  with supervised.Worker('--address=::1') as worker:
    assert worker.address.startswith('[::1]:')
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['state'] == 'serving'
    port = int(worker.address.rpartition(':')[2])
    for other in ('127.0.0.1', *machines.own_addresses()):
      assert not machines.reaches(other, port)


def test_loopback_by_name_and_for_this_machine_alone():
  with supervised.Worker('--address=localhost') as worker:
    assert worker.said('(plain; this machine only)')
    host, _, port = worker.address.rstrip(',').rpartition(':')
    addresses = {each[4][0] for each in socket.getaddrinfo('localhost', None)}
    for address in addresses:
      assert machines.reaches(address, int(port))
    for address in machines.own_addresses():
      assert not machines.reaches(address, int(port))


def test_an_address_that_cannot_be_listened_on_is_told(program_refuses):
  refuses = program_refuses
  refuses('--address=no-such-host.invalid', '--address=no-such-host.invalid stands for')
  refuses('--address=0.0.0.0', '--address=0.0.0.0 is not on this machine alone')
  refuses('--port=65536', '--port=65536 is none; give one from 0')
  refuses('--stall_seconds=0', '--stall_seconds=0 must be a positive')
  refuses('--certificate=a', '--certificate without --key and --authority; give')


def test_a_trusted_network_that_allows_nothing_is_told(
  tmp_path, group, program_refuses
):
  trusted = '--trusted_network'
  alone = f'is on this machine alone, and {trusted} is for'
  for host in ('127.0.0.1', '::1', 'localhost', f'unix:{tmp_path}/worker'):
    program_refuses(f'--address={host}', f'--address={host} {alone}', trusted)
  program_refuses(trusted, f'--address=127.0.0.1 {alone}')  # That is the default.
  authority, *_ = group
  certificate, key = authority.sign('unused')
  program_refuses(
    '--address=0.0.0.0',
    f'{trusted} is for connections without certificates. With --certificate, --key and',
    *(f'--certificate={certificate}', f'--key={key}'),
    *(f'--authority={authority.path}', trusted),
  )


@pytest.fixture
def program_refuses(capsys):
  from experiments import worker as program

  def refuses(argument, words, *others):
    assert program.execute([argument, *others]) == 2
    assert words in capsys.readouterr().err

  return refuses


def test_an_address_of_another_machine_is_told():
  line = _refusal('--address=198.51.100.7', '--trusted_network')
  assert '198.51.100.7:0: Cannot assign requested address; give an address of' in line


def test_a_socket_is_for_its_user_alone(tmp_path):
  path = tmp_path / 'worker'
  with supervised.Worker(f'--address=unix:{path}') as worker:
    assert worker.lines[0] == f'listening on unix:{path} (plain; this user only)'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['state'] == 'serving'
      assert caller.executor()
      # Who comes second is told, and the first one can be called as before.
      line = _refusal(f'--address=unix:{path}')
      assert f'cannot listen on unix:{path}: another worker listens there; give' in line
      assert caller.status()['state'] == 'serving'
    worker.process.kill()
    worker.finish()
    assert path.exists()
  # What is left of it is nobody's.
  with supervised.Worker(f'--address=unix:{path}') as worker:
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['generation'] == 1


def test_a_path_where_no_socket_can_be_is_told(tmp_path, group, program_refuses):
  file = tmp_path / 'file'
  file.write_text('not to be lost')
  cannot = 'cannot listen on unix:'
  program_refuses(f'--address=unix:{file}', f'{cannot}{file}: there is a file; give')
  assert file.read_text() == 'not to be lost'
  program_refuses(f'--address=unix:{tmp_path}', ': there is a file; give another path')
  long = '/tmp/' + 'a' * 103
  program_refuses(
    f'--address=unix:{long}', 'a socket has 1 to 107 bytes; give a shorter'
  )
  program_refuses('--address=unix:', f'{cannot}: the path of a socket has 1 to 107')
  program_refuses(
    f'--address=unix:{tmp_path}/no/worker', 'No such file or directory; give a path in'
  )
  program_refuses(f'--address=unix:{file}/worker', 'Not a directory; give a path in')
  authority, *_ = group
  certificate, key = authority.sign('unused')
  program_refuses(
    f'--address=unix:{tmp_path}/worker',
    'is for programs of this user alone; leave out --certificate, --key, --authority',
    *(f'--certificate={certificate}', f'--key={key}'),
    f'--authority={authority.path}',
  )


def test_a_path_of_107_bytes_is_taken():
  folder = tempfile.mkdtemp(dir='/tmp')
  path = f'{folder}/'.ljust(107, 'a')
  try:
    with supervised.Worker(f'--address=unix:{path}') as worker:
      with supervised.Caller(worker.address) as caller:
        assert caller.status()['state'] == 'serving'
  finally:
    shutil.rmtree(folder)


@pytest.fixture(scope='module')
def group(tmp_path_factory):
  """Certificates of a group, and of others, and a worker of the group."""
  authority = certificates.Authority(tmp_path_factory.mktemp('group'), 'group')
  other = certificates.Authority(tmp_path_factory.mktemp('other'), 'other')
  certificate, key = authority.sign('worker', usage=certificates.SERVER)
  with supervised.Worker(
    f'--certificate={certificate}', f'--key={key}', f'--authority={authority.path}'
  ) as worker:
    yield authority, other, worker


def _target(worker):
  return f'localhost:{worker.address.rpartition(":")[2]}'


def _channel_of(authority, name='coordinator', usage=certificates.CLIENT):
  return credentials.Files(*authority.sign(name, usage=usage), authority.path).channel()


def _is_refused(worker, channel_credentials, options=()):
  with supervised.Caller(_target(worker), channel_credentials, options) as caller:
    with pytest.raises(grpc.RpcError) as error:
      caller.status(seconds=20)
    assert _code_of(error) == grpc.StatusCode.UNAVAILABLE


def test_a_coordinator_of_the_group_may_call(group):
  authority, _, worker = group
  assert worker.said(f'with certificates of {authority.path} only')
  with supervised.Caller(_target(worker), _channel_of(authority)) as caller:
    assert caller.status()['state'] == 'serving'
    assert caller.executor()


@pytest.mark.parametrize(
  'key',
  [
    rsa.generate_private_key(65537, 2048),
    ec.generate_private_key(ec.SECP256R1()),
    ec.generate_private_key(ec.SECP384R1()),
  ],
  ids=['rsa', 'p256', 'p384'],
)
def test_kinds_of_keys_that_are_taken_work(key, group):
  authority, _, worker = group
  files = credentials.Files(*authority.sign('kind', key=key), authority.path)
  with supervised.Caller(_target(worker), files.channel()) as caller:
    assert caller.status()['state'] == 'serving'


def test_nobody_else_may(group):
  authority, other, worker = group
  with open(authority.path, 'rb') as file:
    pem = file.read()
  _is_refused(worker, None)  # In plain text.
  _is_refused(worker, grpc.ssl_channel_credentials(pem))  # Without a certificate.
  certificate, key = map(_read, other.sign('coordinator', usage=certificates.CLIENT))
  _is_refused(worker, grpc.ssl_channel_credentials(pem, key, certificate))
  certificate, key = map(_read, authority.sign('old', days=-1))
  _is_refused(worker, grpc.ssl_channel_credentials(pem, key, certificate))
  # A worker's certificate makes no coordinator.
  certificate, key = map(_read, authority.sign('worker2', usage=certificates.SERVER))
  _is_refused(worker, grpc.ssl_channel_credentials(pem, key, certificate))


def test_nobody_else_is_called(group):
  authority, other, worker = group
  _is_refused(worker, _channel_of(other))
  name = (('grpc.ssl_target_name_override', 'elsewhere'),)
  _is_refused(worker, _channel_of(authority), name)


def _read(path):
  with open(path, 'rb') as file:
    return file.read()

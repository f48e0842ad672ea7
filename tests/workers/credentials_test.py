"""Files of certificates: those of a group are taken, all others refused by name."""

import os
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.workers import certificates
from tff_dp_aggregators.workers import credentials


@pytest.fixture(scope='module')
def ours(tmp_path_factory):
  return certificates.Authority(tmp_path_factory.mktemp('ours'), 'ours')


@pytest.fixture(scope='module')
def others(tmp_path_factory):
  return certificates.Authority(tmp_path_factory.mktemp('others'), 'others')


@pytest.fixture(scope='module')
def worker(ours):
  return ours.sign('worker')


def _refused(match, *arguments, role=None, **kwargs):
  with pytest.raises(credentials.CredentialsError, match=match):
    files = credentials.files(*arguments, **kwargs)
    if role is not None:
      getattr(files, role)()


def test_files_of_a_group_serve_both_sides(ours, worker):
  files = credentials.files(*worker, ours.path)
  assert files == credentials.Files(*worker, ours.path)
  assert files.server() is not None and files.channel() is not None


def test_none_of_the_files_is_no_credentials():
  assert credentials.files(None, None, None) is None
  assert credentials.files('', '', '') is None


def test_all_three_or_none(ours, worker):
  certificate, key = worker
  _refused('^--certificate and --key without --authority; give', certificate, key, '')
  _refused('^--key without --certificate and --authority', None, key, None)
  names = ('certificate', 'key', 'authority')
  _refused('^key and authority without certificate', '', key, ours.path, names=names)


def test_files_that_are_not_there_are_named(ours, worker):
  certificate, key = worker
  _refused('--certificate=/no/x cannot be read: No such', '/no/x', key, ours.path)
  _refused('--key=/no/x cannot be read', certificate, '/no/x', ours.path)
  _refused('--authority=/ cannot be read: Is a directory', certificate, key, '/')


def test_files_of_another_kind_are_named(ours, worker, tmp_path):
  certificate, key = worker
  text = tmp_path / 'text'
  text.write_text('nothing of the kind\n')
  text.chmod(0o600)
  _refused('--certificate=.*text and --key.* PEM', str(text), key, ours.path)
  _refused('--certificate=.*key=.*text are no', certificate, str(text), ours.path)
  _refused('--authority=.*text is no certificate', certificate, key, str(text))


def test_the_key_of_another_certificate_is_refused(ours, worker):
  other = ours.sign('other')
  _refused('--key=.*is not the key of --cert', worker[0], other[1], ours.path)


@pytest.mark.parametrize('curve', [ec.SECP521R1, ec.SECP256K1, None])
def test_a_kind_of_key_that_grpc_cannot_use_is_refused(curve, ours):
  key = ed25519.Ed25519PrivateKey.generate()
  if curve is not None:
    key = ec.generate_private_key(curve())
  _refused('gRPC cannot use; make', *ours.sign('unusable', key=key), ours.path)


@pytest.mark.parametrize('mode', [0o644, 0o604, 0o620, 0o610])
def test_a_key_that_others_can_read_or_change_is_refused(mode, ours, worker, tmp_path):
  key = shutil.copy(worker[1], tmp_path)
  os.chmod(key, mode)
  _refused(f'mode {mode:04o}.*chmod 600', worker[0], key, ours.path)


def test_the_group_may_read_the_key_if_it_belongs_to_root(ours, worker, tmp_path):
  key = shutil.copy(worker[1], tmp_path)
  os.chmod(key, 0o440)
  if os.getuid() == 0:
    credentials.files(worker[0], key, ours.path)
    try:
      os.chown(key, 1, -1)
    except OSError as e:
      pytest.skip(f'there is no other user here: {e.strerror}')
  _refused('mode 0440.*chmod 600', worker[0], key, ours.path)


def test_an_encrypted_key_asks_nobody(ours, worker, tmp_path):
  with open(worker[1], 'rb') as file:
    key = serialization.load_pem_private_key(file.read(), None)
  path = tmp_path / 'encrypted.key'
  path.write_bytes(
    key.private_bytes(
      serialization.Encoding.PEM,
      serialization.PrivateFormat.PKCS8,
      serialization.BestAvailableEncryption(b'secret'),
    )
  )
  path.chmod(0o600)
  _refused('encrypted.key is encrypted.*openssl pkey', worker[0], str(path), ours.path)


@pytest.mark.parametrize('role', ['server', 'channel'])
def test_a_certificate_that_has_expired_is_refused(role, ours):
  old = ours.sign('old', days=-1)
  _refused('--certificate=.*certificate has expired', *old, ours.path, role=role)


@pytest.mark.parametrize('role', ['server', 'channel'])
def test_a_certificate_of_another_authority_is_refused(role, worker, others):
  _refused('--authority=.*unable to get local', *worker, others.path, role=role)


def test_what_a_certificate_is_for_is_heeded(ours):
  server = ours.sign('server-only', usage=certificates.SERVER)
  client = ours.sign('client-only', usage=certificates.CLIENT)
  assert credentials.files(*server, ours.path).server() is not None
  assert credentials.files(*client, ours.path).channel() is not None
  _refused('that of a coordinator.*purpose', *server, ours.path, role='channel')
  _refused('that of a worker.*purpose', *client, ours.path, role='server')


def test_nothing_of_the_key_is_shown(ours, worker):
  with open(worker[1]) as file:
    secret = file.read().splitlines()[1]
  assert secret not in repr(credentials.files(*worker, ours.path))


@pytest.mark.parametrize('host', ['127.0.0.1', '::1', 'localhost'])
def test_loopback_may_be_plain(host):
  credentials.check_plain(host, False, '--address')


@pytest.mark.parametrize('host', ['0.0.0.0', '::', '192.0.2.77'])
def test_other_addresses_may_not_unless_the_user_says_so(host):
  credentials.check_plain(host, True, '--address')
  with pytest.raises(ValueError) as error:
    credentials.check_plain(host, False, '--address')
  message = str(error.value)
  assert message.startswith(f'--address={host} is not on this machine alone')
  for each in ('run code', '--certificate, --key and --authority', '--trusted_network'):
    assert each in message


def test_flags_and_arguments_are_called_what_they_are():
  with pytest.raises(ValueError, match='^workers=0.0.0.0 .* key and') as error:
    names = ('certificate', 'key', 'authority')
    credentials.check_plain('0.0.0.0', False, 'workers', names, 'trusted_network')
  assert 'Give certificate, key and authority, by' in str(error.value)
  assert 'or trusted_network, if nobody' in str(error.value)
  assert '--' not in str(error.value)


def test_a_name_is_loopback_if_all_its_addresses_are(monkeypatch):
  found = {'both': ['127.0.0.1', '192.0.2.77'], 'near': ['127.0.0.1', '::1']}
  monkeypatch.setattr(
    'tff_dp_aggregators.workers.addresses.resolve', lambda host, flag: found[host]
  )
  credentials.check_plain('near', False, '--address')
  with pytest.raises(ValueError, match=r'--address=both \(192.0.2.77\) is not'):
    credentials.check_plain('both', False, '--address')


@pytest.mark.skipif(shutil.which('openssl') is None, reason='openssl is not here')
def test_files_that_openssl_makes_are_taken(tmp_path):
  def openssl(*arguments):
    subprocess.run(('openssl', *arguments), cwd=tmp_path, check=True, timeout=60)

  new = ('req', '-x509', '-noenc', '-newkey', 'ec')
  new += ('-pkeyopt', 'ec_paramgen_curve:prime256v1')
  openssl(*new, '-keyout', 'ca.key', '-out', 'ca.crt', '-subj', '/CN=a')
  openssl(
    *(*new, '-keyout', 'w.key', '-out', 'w.crt', '-subj', '/CN=w'),
    *('-CA', 'ca.crt', '-CAkey', 'ca.key', '-addext', 'basicConstraints=CA:false'),
    *('-addext', 'subjectAltName=DNS:localhost'),
  )
  paths = [str(tmp_path / name) for name in ('w.crt', 'w.key', 'ca.crt')]
  assert credentials.files(*paths).server() is not None

"""Why a worker takes no calls, in words, where certificates are the reason."""

import socket

import pytest

from tests.workers import certificates
from tests.workers import supervised
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import diagnosis


@pytest.fixture(scope='module')
def ours(tmp_path_factory):
  return certificates.Authority(tmp_path_factory.mktemp('ours'), 'ours')


@pytest.fixture(scope='module')
def others(tmp_path_factory):
  return certificates.Authority(tmp_path_factory.mktemp('others'), 'others')


@pytest.fixture(scope='module')
def port(ours):
  """Where a worker of ours listens."""
  certificate, key = ours.sign(
    'worker', hosts=['localhost', '127.0.0.1'], usage=certificates.SERVER
  )
  with supervised.Worker(
    f'--certificate={certificate}', f'--key={key}', f'--authority={ours.path}'
  ) as worker:
    yield int(worker.address.rpartition(':')[2])


def _files(signed_by, authority=None, **kwargs):
  certificate, key = signed_by.sign('coordinator', **kwargs)
  return credentials.Files(certificate, key, authority or signed_by.path)


def _why_not(port, files, name='localhost'):
  return diagnosis.why_not('127.0.0.1', port, files, name)


def test_who_may_call_is_told_nothing(port, ours):
  files = _files(ours, usage=certificates.CLIENT)
  assert _why_not(port, files) is None
  assert _why_not(port, files, '127.0.0.1') is None


def test_a_plain_caller_is_told_what_to_give(port):
  assert _why_not(port, None) == (
    'it takes calls of those with a certificate alone; give --certificate, --key and '
    '--authority'
  )


def test_a_worker_of_others_is_told(port, others):
  why = _why_not(port, _files(others))
  assert (
    f'that --authority={others.path} does not vouch for (unable to get local' in why
  )


def test_a_worker_of_another_name_is_told(port, ours):
  why = _why_not(port, _files(ours), 'elsewhere')
  assert "'elsewhere'" in why and 'that of the worker for the name elsewhere' in why


@pytest.mark.parametrize('how', ['of others', 'of a worker', 'old'])
def test_a_certificate_that_the_worker_refuses_is_told(how, port, ours, others):
  files = {
    'of others': lambda: _files(others, ours.path),
    'of a worker': lambda: _files(ours, usage=certificates.SERVER),
    'old': lambda: _files(ours, days=-1),
  }[how]()
  why = _why_not(port, files)
  assert why.startswith(f'it refuses --certificate={files.certificate}')


def test_a_worker_without_certificate_is_told(ours):
  with supervised.Worker() as worker:
    port = int(worker.address.rpartition(':')[2])
    why = _why_not(port, _files(ours))
    assert why == 'it was started without a certificate; start it with one'
    assert _why_not(port, None) is None


def test_the_network_is_no_matter_of_certificates(ours):
  with socket.create_server(('127.0.0.1', 0)) as silent:
    port = silent.getsockname()[1]
    assert _why_not(port, _files(ours)) is None and _why_not(port, None) is None
  assert _why_not(port, _files(ours)) is None and _why_not(port, None) is None

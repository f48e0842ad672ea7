"""Which addresses are this machine's alone, and what a name without one is told."""

import pytest

from tff_dp_aggregators.workers import addresses


@pytest.mark.parametrize('host', ['127.0.0.1', '127.8.9.10', '::1', 'localhost'])
def test_loopback(host):
  found = addresses.resolve(host, '--address')
  assert found and all(map(addresses.is_loopback, found))


@pytest.mark.parametrize(
  'address, loopback',
  [
    ('::ffff:127.0.0.1', True),
    ('::ffff:192.0.2.1', False),
    ('0.0.0.0', False),
    ('::', False),
    ('fe80::1%eth0', False),
    ('192.0.2.1', False),
    ('128.0.0.1', False),
  ],
)
def test_what_else_is_and_is_not(address, loopback):
  assert addresses.is_loopback(address) is loopback


@pytest.mark.parametrize('host', ['no-such-host.invalid', '300.1.1.1', 'a' * 70])
def test_a_host_without_address_is_refused_by_name(host):
  with pytest.raises(
    ValueError, match=f'--address={host} stands for no address .* see'
  ):
    addresses.resolve(host, '--address')


def test_no_host():
  with pytest.raises(ValueError, match='--address has no host; give'):
    addresses.resolve('', '--address')


def test_ports():
  assert addresses.with_port('::1', 80) == '[::1]:80'
  assert addresses.with_port('127.0.0.1', 80) == '127.0.0.1:80'

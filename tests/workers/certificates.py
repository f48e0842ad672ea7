"""Certificates that tests make: of authorities, and of those who are in a group."""

import dataclasses
import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.oid import NameOID

SERVER = (ExtendedKeyUsageOID.SERVER_AUTH,)
CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_DAY = datetime.timedelta(days=1)


@dataclasses.dataclass
class Authority:
  """An authority whose certificate lies in a folder."""

  folder: pathlib.Path
  name: str

  def __post_init__(self):
    self._key = ec.generate_private_key(ec.SECP256R1())
    self._subject = _named(self.name)
    certificate = (
      _builder(self._subject, self._subject, self._key.public_key(), 1)
      .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
      .sign(self._key, hashes.SHA256())
    )
    self.path = str(self.folder / f'{self.name}.crt')
    pathlib.Path(self.path).write_bytes(_pem(certificate))

  def sign(self, name, hosts=('localhost',), usage=SERVER + CLIENT, days=1, key=None):
    """Writes a certificate and its key; returns both paths."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    alternatives = [_host(host) for host in hosts]
    certificate = (
      _builder(_named(name), self._subject, key.public_key(), days)
      .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
      .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
      .sign(self._key, hashes.SHA256())
    )
    paths = [self.folder / f'{self.name}-{name}.{end}' for end in ('crt', 'key')]
    paths[0].write_bytes(_pem(certificate))
    paths[1].write_bytes(
      key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
      )
    )
    paths[1].chmod(0o600)
    return tuple(map(str, paths))


def _named(name):
  return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host):
  try:
    return x509.IPAddress(ipaddress.ip_address(host))
  except ValueError:
    return x509.DNSName(host)


def _builder(subject, issuer, key, days):
  """A certificate that ends in so many days, which may be over."""
  now = datetime.datetime.now(datetime.timezone.utc)
  end = now + days * _DAY
  return (
    x509.CertificateBuilder()
    .subject_name(subject)
    .issuer_name(issuer)
    .public_key(key)
    .serial_number(x509.random_serial_number())
    .not_valid_before(min(now, end) - _DAY)
    .not_valid_after(end)
  )


def _pem(certificate):
  return certificate.public_bytes(serialization.Encoding.PEM)

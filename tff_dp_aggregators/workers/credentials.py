"""Who may use a worker: whoever shows a certificate of the group's own authority.

Who reaches a worker's port has it run any code, and reads the model and the clients'
data there. So both sides show a certificate (mutual TLS, by gRPC itself), and an
address without is loopback, unless the user says that nobody else is on the network.

One authority signs the certificates of coordinator and workers, and nothing else. Which
of the two somebody is, a certificate can say by its extended key usage (RFC 5280,
4.2.1.12); the rehearsals below and gRPC both heed it.
"""

import dataclasses
import os
import re
import ssl
import stat
from collections.abc import Sequence
from typing import Optional

import grpc

from tff_dp_aggregators.workers import addresses

FLAGS = ('--certificate', '--key', '--authority')
TRUSTED_FLAG = '--trusted_network'
_HOW_TO_MAKE = 'openssl makes such files.'
_DANGER = 'whoever reaches the port of a worker can run code there and read the model'
_PEM = re.compile(
  rb'-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----', re.DOTALL
)
# Keys that gRPC can use, as a certificate has them (RFC 3279, 2.3.1; RFC 5480, 2.1.1):
# RSA, and ECDSA on P-256 and P-384. With others OpenSSL shakes hands, and gRPC does
# not, and says nothing of why.
_KEYS = tuple(
  bytes.fromhex(each)
  for each in (
    '06092a864886f70d010101',
    '06072a8648ce3d020106082a8648ce3d030107',
    '06072a8648ce3d020106052b81040022',
  )
)


class CredentialsError(ValueError):
  """Files of a certificate that cannot be used, or too few of them."""


@dataclasses.dataclass(frozen=True)
class Files:
  """PEM files with which one side shows who it is and checks the other one.

  Attributes:
    certificate: Path of this side's certificate, followed by those between it and the
      authority, if any.
    key: Path of its private key, not encrypted. Nobody but its owner may read the file;
      the group may if it belongs to root, as a cluster's secrets do (PostgreSQL's rule
      for `ssl_key_file`).
    authority: Path of the authority's certificate. It has signed this side's
      certificate too: whoever it signs a certificate for may run code on the workers,
      so it is to be an authority for this group alone.
    names: What the three are called in messages.

  Raises:
    CredentialsError: If one cannot be read or has nothing of the kind in it, if others
      can read the key, or if key and certificate do not belong together.
  """

  certificate: str
  key: str
  authority: str
  names: tuple[str, str, str] = FLAGS

  def __post_init__(self) -> None:
    for name, path in zip(self.names, (self.certificate, self.key, self.authority)):
      _read(name, path)
    self._check_key_is_private()
    self._load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    self._check_kind_of_key()
    self._load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

  def server(self) -> grpc.ServerCredentials:
    """For a server, which then takes calls from those with a certificate alone.

    Raises:
      CredentialsError: If no client would take this side for a server: the certificate
        has expired, say, or another authority has signed it.
    """
    self._rehearse(as_server=True)
    certificate, key, authority = self._contents()
    return grpc.ssl_server_credentials(
      [(key, certificate)], authority, require_client_auth=True
    )

  def channel(self) -> grpc.ChannelCredentials:
    """For a client, which then talks to those with a certificate of their name alone.

    Raises:
      CredentialsError: If no server would take this side for a client.
    """
    self._rehearse(as_server=False)
    certificate, key, authority = self._contents()
    return grpc.ssl_channel_credentials(authority, key, certificate)

  def client_context(self) -> ssl.SSLContext:
    """What `channel` does, for a connection that says more of why there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    self._load_pair(context)
    self._load_authority(context)
    return context

  def _contents(self) -> tuple[bytes, bytes, bytes]:
    certificate, key, authority = self.names
    return (
      _read(certificate, self.certificate),
      _read(key, self.key),
      _read(authority, self.authority),
    )

  def _check_key_is_private(self) -> None:
    status = os.stat(self.key)
    allowed = stat.S_IRGRP if status.st_uid == 0 else 0
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed:
      raise CredentialsError(
        f'{self.names[1]}={self.key} can be read or changed by other users (mode '
        f'{stat.S_IMODE(status.st_mode):04o}), and with it they may run code on the '
        f'workers; do: chmod 600 {self.key}'
      )

  def _check_kind_of_key(self) -> None:
    found = _PEM.search(_read(self.names[0], self.certificate))
    if found is None:
      return  # OpenSSL has another way to write one.
    encoded = ssl.PEM_cert_to_DER_cert(found[0].decode('ascii', 'replace'))
    if not any(kind in encoded for kind in _KEYS):
      raise CredentialsError(
        f'{self.names[0]}={self.certificate} has a key of a kind that gRPC cannot use; '
        'make one of RSA, or ECDSA on P-256 or P-384.'
      )

  def _load_pair(self, context: ssl.SSLContext) -> None:
    """Gives a context certificate and key; refuses those that are no pair."""
    certificate, key, _ = self.names

    def refuse_password() -> str:
      raise CredentialsError(
        f'{key}={self.key} is encrypted, and nobody is there to give the password; '
        'decrypt it (openssl pkey) into a file that only you can read.'
      )

    try:
      context.load_cert_chain(self.certificate, self.key, refuse_password)
    except ssl.SSLError as e:
      if e.reason == 'KEY_VALUES_MISMATCH':
        raise CredentialsError(
          f'{key}={self.key} is not the key of {certificate}={self.certificate}; give '
          'the two that were made together.'
        ) from e
      raise CredentialsError(
        f'{certificate}={self.certificate} and {key}={self.key} are no certificate and '
        f'private key that can be used, in PEM format ({e.reason or e}). {_HOW_TO_MAKE}'
      ) from e

  def _load_authority(self, context: ssl.SSLContext) -> None:
    """Gives a context what it checks the other side's certificate by."""
    try:
      context.load_verify_locations(self.authority)
    except ssl.SSLError as e:
      raise CredentialsError(
        f'{self.names[2]}={self.authority} is no certificate in PEM format '
        f'({e.reason or e}). {_HOW_TO_MAKE}'
      ) from e

  def _rehearse(self, as_server: bool) -> None:
    """Shakes hands with itself, because gRPC says little about why it would not."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    self._load_pair(server)
    self._load_pair(client)
    checking = client if as_server else server
    self._load_authority(checking)
    checking.verify_mode = ssl.CERT_REQUIRED
    try:
      _shake_hands(server, client)
    except ssl.SSLCertVerificationError as e:
      role = 'worker' if as_server else 'coordinator'
      certificate, _, authority = self.names
      raise CredentialsError(
        f'{certificate}={self.certificate} is refused as that of a {role} by '
        f'{authority}={self.authority}: {e.verify_message}. Give a certificate that is '
        f'valid now, for a {role}, and signed by this authority.'
      ) from e


def files(
  certificate: Optional[str],
  key: Optional[str],
  authority: Optional[str],
  names: tuple[str, str, str] = FLAGS,
) -> Optional[Files]:
  """`Files`, or `None` if none of them is given.

  Raises:
    CredentialsError: If some of the three are missing, or as `Files` raises it.
  """
  paths = (certificate, key, authority)
  given = {name: path for name, path in zip(names, paths) if path}
  if not given:
    return None
  missing = [name for name in names if name not in given]
  if missing:
    raise CredentialsError(
      f'{" and ".join(given)} without {" and ".join(missing)}; give all three, or none.'
    )
  return Files(given[names[0]], given[names[1]], given[names[2]], names)


def check_plain(
  host: str,
  trusted_network: bool,
  flag: str,
  names: tuple[str, str, str] = FLAGS,
  trusted_name: str = TRUSTED_FLAG,
  *,
  danger: str = _DANGER,
  instead: Optional[str] = None,
) -> None:
  """Refuses an address that others can reach, for use without certificates.

  Args:
    host: The name or address to listen on, or to connect to.
    trusted_network: Whether the user says that nobody else is on the network.
    flag: What gave the host, for the message: a flag with its dashes, or an argument.
    names: What the three files are called in messages.
    trusted_name: What `trusted_network` is called there.
    danger: What whoever reaches it can do, in a clause.
    instead: What to give instead, as in 'Give X, by which Y'; by default the files.

  Raises:
    ValueError: If the host has no address, or one that is not loopback, and
      `trusted_network` is false.
  """
  found = addresses.resolve(host, flag)
  others = [each for each in found if not addresses.is_loopback(each)]
  if not others or trusted_network:
    return
  certificate, key, authority = names
  instead = instead or (
    f'Give {certificate}, {key} and {authority}, by which coordinator and workers know '
    'each other'
  )
  meant = '' if others == [host] else f' ({", ".join(others)})'
  raise ValueError(
    f'{flag}={host}{meant} is not on this machine alone, and {danger}. {instead}; or '
    f'{trusted_name}, if nobody else is on that network.'
  )


def check_trust(
  hosts: Sequence[str],
  flag: str,
  has_files: bool,
  names: tuple[str, str, str] = FLAGS,
  trusted_name: str = TRUSTED_FLAG,
) -> None:
  """Refuses a trusted network that allows nothing.

  Whoever gives it takes the connection for a plain one that other machines reach, and
  is told where it is neither.

  Args:
    hosts: Names or addresses to listen on, or to connect to.
    flag: What gave them, with its value, for the message.
    has_files: Whether there are certificates.
    names: What the three files are called in messages.
    trusted_name: What the trusted network is called there.

  Raises:
    ValueError: If there are certificates, or all hosts are loopback.
  """
  if has_files:
    certificate, key, authority = names
    raise ValueError(
      f'{trusted_name} is for connections without certificates. With {certificate}, '
      f'{key} and {authority} both sides have to show one, on any network, and the '
      f'connection is encrypted; leave out {trusted_name}, or these three.'
    )
  if all(map(addresses.is_own, hosts)):
    raise own_machine(flag, trusted_name)


def own_machine(flag: str, trusted_name: str = TRUSTED_FLAG) -> ValueError:
  """The error that says that nobody else reaches an address anyhow.

  Args:
    flag: What gave the address, with its value.
    trusted_name: What the trusted network is called.
  """
  return ValueError(
    f'{flag} is on this machine alone, and {trusted_name} is for addresses that other '
    f'machines reach; leave out {trusted_name}, or give such an address.'
  )


def _read(name: str, path: str) -> bytes:
  try:
    with open(path, 'rb') as file:
      return file.read()
  except OSError as e:
    raise CredentialsError(
      f'{name}={path} cannot be read: {e.strerror}. Give a PEM file. {_HOW_TO_MAKE}'
    ) from e


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
  """Both sides of a TLS connection, in memory."""
  to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
  sides = [
    client.wrap_bio(to_client, to_server),
    server.wrap_bio(to_server, to_client, server_side=True),
  ]
  while sides:
    for side in list(sides):
      try:
        side.do_handshake()
      except ssl.SSLWantReadError:
        continue  # It is the other one's turn.
      sides.remove(side)

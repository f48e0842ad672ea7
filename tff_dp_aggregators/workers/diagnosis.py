"""Why a worker that is there takes no calls.

gRPC says 'Socket closed' of a worker that wants a certificate, and the same of one that
wants none. So where a call found nobody, one handshake more finds out which it is.
"""

import socket
import ssl
from typing import Optional

from tff_dp_aggregators.workers import credentials

_SECONDS = 2.0
_ALPN = 'h2'  # gRPC's servers ask for it.


def why_not(
  address: str,
  port: int,
  files: Optional[credentials.Files],
  server_name: str,
  names: tuple[str, str, str] = credentials.FLAGS,
) -> Optional[str]:
  """Why a worker takes no calls of this side; `None` if certificates are no reason.

  Args:
    address: Where it is.
    port: Where it listens.
    files: The certificate of this side; `None` for a plain connection.
    server_name: Whose certificate the worker has to have.
    names: What the three files are called in messages.
  """
  try:
    with socket.create_connection((address, port), _SECONDS) as connection:
      if files is None:
        return _why_not_plain(connection, names)
      return _why_not_secure(connection, files, server_name)
  except OSError:
    return None  # The network is the reason.


def _why_not_plain(
  connection: socket.socket, names: tuple[str, str, str]
) -> Optional[str]:
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname = False
  context.verify_mode = ssl.CERT_NONE
  context.set_alpn_protocols([_ALPN])
  try:
    context.wrap_socket(connection)
  except (ssl.SSLError, OSError):
    return None  # It is plain, too.
  certificate, key, authority = names
  return (
    'it takes calls of those with a certificate alone; give '
    f'{certificate}, {key} and {authority}'
  )


def _why_not_secure(
  connection: socket.socket, files: credentials.Files, server_name: str
) -> Optional[str]:
  certificate, _, authority = files.names
  context = files.client_context()
  context.set_alpn_protocols([_ALPN])
  try:
    secure = context.wrap_socket(connection, server_hostname=server_name)
  except ssl.SSLCertVerificationError as e:
    return (
      f'it shows a certificate that {authority}={files.authority} does not vouch for '
      f'({e.verify_message.rstrip(".")}); see that one authority has signed those of '
      f'all, and that of the worker for the name {server_name}'
    )
  except ssl.SSLError as e:
    if e.reason in ('WRONG_VERSION_NUMBER', 'RECORD_LAYER_FAILURE'):
      return 'it was started without a certificate; start it with one'
    return _refused(certificate, files, e.reason)
  try:
    # What it thinks of our certificate, it says after that (RFC 8446, 4.4.2.4).
    answer = secure.recv(1)
  except socket.timeout:
    return None
  except OSError as e:
    return _refused(certificate, files, getattr(e, 'reason', None))
  return None if answer else _refused(certificate, files, None)


def _refused(certificate: str, files: credentials.Files, reason: Optional[str]) -> str:
  words = f' ({reason})' if reason else ''
  return (
    f'it refuses {certificate}={files.certificate}{words}; see that the authority that '
    'the worker was given has signed it'
  )

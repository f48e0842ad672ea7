"""Which addresses a host name stands for, and whether others reach them."""

import ipaddress
import socket

# Before the path of a socket, which the user alone reaches whose worker made it.
SOCKET = 'unix:'


def resolve(host: str, flag: str) -> list[str]:
  """The addresses of a host, each once, in the order in which they are to be tried.

  Args:
    host: A name, or an IPv4 or IPv6 address without brackets.
    flag: What gave the host, for the message.

  Raises:
    ValueError: If there is none.
  """
  if not host:
    raise ValueError(f'{flag} has no host; give a name or an address.')
  try:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as e:
    raise ValueError(
      f'{flag}={host} stands for no address ({getattr(e, "strerror", None) or e}); '
      'see whether the name is spelled as it is known to this machine, or give an '
      'address.'
    ) from e
  return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_socket(host: str) -> bool:
  """Whether a host is the path of a socket in a folder of this machine."""
  return host.startswith(SOCKET)


def path_of(host: str) -> str:
  """The path of a socket.

  Args:
    host: One that `is_socket`.
  """
  return host[len(SOCKET) :]


def is_loopback(address: str) -> bool:
  """Whether only programs of this machine reach an address, by which nobody else does.

  Args:
    address: As `resolve` gives it.
  """
  parsed = ipaddress.ip_address(address.partition('%')[0])
  return (getattr(parsed, 'ipv4_mapped', None) or parsed).is_loopback


def is_own(host: str) -> bool:
  """Whether a host stands, by now, for addresses of this machine alone.

  Args:
    host: A name or an address. One that stands for nothing may come to stand for
      another machine.
  """
  try:
    return all(map(is_loopback, resolve(host, 'host')))
  except ValueError:
    return False


def with_port(host: str, port: int) -> str:
  """Host and port as gRPC and URLs have them, IPv6 in brackets."""
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'

"""The workers of a training, as its user names them."""

import dataclasses
import math
import re
from typing import NamedTuple, Optional

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import diagnosis

_LOCAL = re.compile(r'local:([0-9]+)')
_ADDRESS = re.compile(r'(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]+)')
_EXAMPLE = (
  "such as 'local:4' for four on this machine, or 'host1:8470,host2:8470' for those "
  'that python -m experiments.worker started'
)


class Names(NamedTuple):
  """What the attributes of `Workers` are called in messages."""

  addresses: str = 'workers'
  certificate: str = 'certificate'
  key: str = 'key'
  authority: str = 'authority'
  trusted_network: str = 'trusted_network'
  timeout_seconds: str = 'timeout_seconds'
  patience_seconds: str = 'patience_seconds'


@dataclasses.dataclass(frozen=True)
class Workers:
  """The workers of a training.

  Attributes:
    addresses: 'local:N' for N workers that are started on this machine, or host:port of
      each, with commas between them. A name that stands for several addresses is as
      many workers; those that come to it later are used as well.
    certificate: PEM file of the certificate by which workers know this program, with
      `key` and `authority`; all three are `None` for a connection without encryption.
    key: PEM file of its key.
    authority: PEM file of the authority that signed the certificates of all.
    trusted_network: Whether workers on other machines may be reached without
      certificates, as nobody else is on the network; refused where that allows
      nothing.
    timeout_seconds: How long a worker may take to say how it is, before its packs go to
      others.
    patience_seconds: How long a round waits if there is no worker at all.
    names: What these are called in messages.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If an address is none, or a number is not positive, or no worker would
      take the certificate, or an address is of another machine, and there is neither a
      certificate nor a trusted network, or both; or if there is a trusted network, and
      no address of another machine.

  Example:
    >>> Workers('local:4').addresses
    'local:4'
    >>> Workers('somewhere')
    Traceback (most recent call last):
    ...
    ValueError: workers='somewhere' has no port; give host:port, such as 'local:4' for \
four on this machine, or 'host1:8470,host2:8470' for those that \
python -m experiments.worker started.
  """

  addresses: str
  certificate: Optional[str] = None
  key: Optional[str] = None
  authority: Optional[str] = None
  trusted_network: bool = False
  timeout_seconds: float = 10.0
  patience_seconds: float = 60.0
  names: Names = Names()

  def __post_init__(self) -> None:
    if not isinstance(self.addresses, str):
      raise TypeError(
        f'{self.names.addresses} is a {type(self.addresses).__name__}, not a text, '
        f'{_EXAMPLE}.'
      )
    for name in ('timeout_seconds', 'patience_seconds'):
      called = getattr(self.names, name)
      seconds = checks.check_number(called, getattr(self, name))
      if not 0 < seconds < math.inf:
        raise ValueError(f'{called} is {seconds}; it must be a positive number.')
    files = self.files()
    if self.num_local is None:
      hosts = [host for host, _ in self.parsed()]
      if self.trusted_network:
        self._check_trust(hosts, files is not None)
      elif files is None:
        for host in hosts:
          credentials.check_plain(
            host,
            False,
            self.names.addresses,
            self._names_of_files,
            self.names.trusted_network,
          )
    elif files is not None:
      raise ValueError(
        f'{self._said} are on this machine, where they are reached '
        'through a directory of this user alone; leave the certificate out.'
      )
    elif self.trusted_network:
      raise credentials.own_machine(self._said, self.names.trusted_network)
    if files is not None:
      files.channel()  # Or it would be refused only when all else is ready.

  def _check_trust(self, hosts: list[str], has_files: bool) -> None:
    """Refuses a trusted network that allows nothing."""
    credentials.check_trust(
      hosts, self._said, has_files, self._names_of_files, self.names.trusted_network
    )

  @property
  def _said(self) -> str:
    return f'{self.names.addresses}={self.addresses!r}'

  @property
  def _names_of_files(self) -> tuple[str, str, str]:
    return self.names.certificate, self.names.key, self.names.authority

  @property
  def num_local(self) -> Optional[int]:
    """How many are started here; `None` if they are elsewhere."""
    match = _LOCAL.fullmatch(self.addresses.strip())
    if match is None:
      return None
    number = int(match[1])
    if not 1 <= number <= 1024:
      raise ValueError(f'{self._said}: give 1 to 1024 of them.')
    return number

  def files(self) -> Optional[credentials.Files]:
    """The files of the certificate; `None` without."""
    return credentials.files(
      self.certificate, self.key, self.authority, self._names_of_files
    )

  def why_not(self, address: str, port: int, host: str) -> Optional[str]:
    """Why a worker that is there takes no calls; `None` if certificates are no reason.

    Args:
      address: Where it is.
      port: Where it listens.
      host: The name or address by which it was given.
    """
    try:
      files = self.files()
      return diagnosis.why_not(address, port, files, host, self._names_of_files)
    except credentials.CredentialsError:
      return None  # They are being renewed: those that were read before are in use.

  def parsed(self) -> list[tuple[str, int]]:
    """Hosts and ports, of workers that are not started here."""
    found: list[tuple[str, int]] = []
    for text in self.addresses.split(','):
      match = _ADDRESS.fullmatch(text.strip())
      if match is None:
        raise ValueError(f'{self._said} {_why_none(text.strip())}.')
      port = int(match[3])
      if not 1 <= port <= 65535:
        raise ValueError(f'{self._said}: {port} is no port; they are 1 to 65535.')
      found.append((match[1] or match[2], port))
    if len(set(found)) != len(found):
      raise ValueError(f'{self._said} has an address twice.')
    return found


def _why_none(text: str) -> str:
  """Why a text is no address, and what to give."""
  if not text:
    return f'has an empty address; give host:port, {_EXAMPLE}'
  if text.count(':') > 1:
    return 'has more than one colon outside of brackets; IPv6 is [address]:port'
  return f'has no port; give host:port, {_EXAMPLE}'

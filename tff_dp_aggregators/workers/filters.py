"""Whose packets a listening socket takes, by filters that its owner may set.

A classic BPF filter (socket(7), SO_ATTACH_FILTER) sees each packet before the kernel
answers it, and needs no privilege, though some kernels keep it for root. It cannot see
whose program sent a packet. But no other program can send one from the address and port
at which a socket of ours is connected, without the right to make packets by itself
(CAP_NET_RAW). So at first no handshake is completed, then that of a connection of which
both ends are known, and then none again. What comes of a handshake keeps the filter
that there was at its end.
"""

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

_ATTACH = 26  # SO_ATTACH_FILTER, which Python has no name for.
# Offsets from here on are into the header of IP; others into TCP's (linux/filter.h).
_IP = -0x100000 & 0xFFFFFFFF
# Instructions: loads of a byte, of two and of four, arithmetic, a jump, and the end.
_BYTE, _TWO, _FOUR = 0x30, 0x28, 0x20
_AND, _SHIFT, _IS, _RETURN = 0x54, 0x74, 0x15, 0x06
_INSTRUCTION = struct.Struct('@HBBI')
_ALL, _NOTHING = 0xFFFFFFFF, 0
_SYN, _ACK = 0x02, 0x10


class Ends(NamedTuple):
  """Both ends of a connection, in IPv4.

  Attributes:
    source: Address of the end that called.
    source_port: Its port.
    target: Address of the end that was called; its port is the listening one's.
  """

  source: str
  source_port: int
  target: str


class _Check(NamedTuple):
  """What a packet has to have: these instructions make a number, and it is that."""

  load: Sequence[tuple[int, int]]
  number: int


def complete_no_handshake(listening: socket.socket) -> None:
  """Has a socket answer the first packets of handshakes, and take no others.

  Args:
    listening: What listens, by TCP.

  Raises:
    OSError: If the kernel takes no filter.
  """
  flags = ((_BYTE, 13), (_AND, _SYN | _ACK))
  _attach(listening, [_Check(flags, _SYN)])


def complete_one_handshake(listening: socket.socket, ends: Ends) -> None:
  """Has a socket take the packets of one connection, and no others.

  Args:
    listening: What listens, by TCP, of IPv4 or both.
    ends: Those of the connection.

  Raises:
    OSError: If the kernel takes no filter.
  """
  _attach(
    listening,
    [
      _Check(((_BYTE, _IP), (_SHIFT, 4)), 4),
      _Check(((_FOUR, _IP + 12),), int(ipaddress.IPv4Address(ends.source))),
      _Check(((_FOUR, _IP + 16),), int(ipaddress.IPv4Address(ends.target))),
      _Check(((_TWO, 0),), ends.source_port),
    ],
  )


def _attach(listening: socket.socket, checks: Sequence[_Check]) -> None:
  """Has a socket take packets that pass all checks."""
  program = b''
  for load, number in checks:
    program += b''.join(_instruction(code, operand) for code, operand in load)
    # If it is that number, what comes next is skipped.
    program += _instruction(_IS, number, skip=1) + _instruction(_RETURN, _NOTHING)
  program += _instruction(_RETURN, _ALL)
  kept = ctypes.create_string_buffer(program, len(program))
  length = len(program) // _INSTRUCTION.size
  described = struct.pack('@HP', length, ctypes.addressof(kept))
  listening.setsockopt(socket.SOL_SOCKET, _ATTACH, described)


def _instruction(code: int, operand: int, skip: int = 0) -> bytes:
  return _INSTRUCTION.pack(code, skip, 0, operand)

"""Kinds of faults: how each begins, how long it lasts, and how it ends."""

import contextlib
import dataclasses
import random
import resource
from typing import Callable, Optional

import psutil

from benchmarks.faults import sites as sites_lib

# What ends a fault; `None` where nothing has to.
_End = Optional[Callable[[], None]]


class NotPossible(Exception):
  """A worker that has not what the fault is done to at the moment."""


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of fault.

  Attributes:
    name: What it is called.
    begin: Begins it at a worker; returns what ends it.
    seconds: Shortest and longest time that it lasts.
    weight: How often it comes, beside the others.
    fails: Whether calls fail by it that say nothing of the worker's loss. What fails on
      two workers is the training's mistake, so there may be one such worker at a time,
      beside a sound one.
    needs_network: Whether it is for workers on a network of their own alone.
  """

  name: str
  begin: Callable[[sites_lib.Site, random.Random], _End]
  seconds: tuple[float, float] = (0.0, 0.0)
  weight: float = 1.0
  fails: bool = False
  needs_network: bool = False


def _some(process: Optional[psutil.Process]) -> psutil.Process:
  if process is None:
    raise NotPossible
  return process


def _kill_binary(site: sites_lib.Site, rng: random.Random) -> _End:
  _some(site.binary()).kill()
  return None


def _stop(process: psutil.Process) -> _End:
  process.suspend()

  def end() -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.resume()

  return end


def _stop_binary(site: sites_lib.Site, rng: random.Random) -> _End:
  return _stop(_some(site.binary()))


def _stop_worker(site: sites_lib.Site, rng: random.Random) -> _End:
  return _stop(_some(site.worker))


def _kill_worker(site: sites_lib.Site, rng: random.Random) -> _End:
  worker = _some(site.worker)
  worker.kill()
  worker.wait()
  return site.start


def _take_memory(site: sites_lib.Site, rng: random.Random) -> _End:
  """Nothing can be mapped any more, beyond what is mapped already."""
  binary = _some(site.binary())
  _, hard = binary.rlimit(resource.RLIMIT_AS)
  binary.rlimit(resource.RLIMIT_AS, (binary.memory_info().vms // 2, hard))

  def end() -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
      binary.rlimit(resource.RLIMIT_AS, (hard, hard))

  return end


def _cut_link(site: sites_lib.Site, rng: random.Random) -> _End:
  network = site.network
  assert network is not None
  network.set('down')
  return lambda: network.set('up')


def _wire(kind: str) -> Callable[[sites_lib.Site, random.Random], _End]:
  def begin(site: sites_lib.Site, rng: random.Random) -> _End:
    site.pass_through(wire=kind, seed=sites_lib.seed_of(rng))
    return site.pass_through

  return begin


def _lie(
  kind: str, other: bytes = b''
) -> Callable[[sites_lib.Site, random.Random], _End]:
  def begin(site: sites_lib.Site, rng: random.Random) -> _End:
    site.pass_through(lie=kind, seed=sites_lib.seed_of(rng), other=other)
    return site.pass_through

  return begin


def all_kinds(other_answer: bytes, longest_pack_seconds: float) -> tuple[Kind, ...]:
  """All kinds.

  Args:
    other_answer: A well-formed answer of another type.
    longest_pack_seconds: After which a worker is given up that never answers.
  """
  return (
    Kind('worker_binary killed', _kill_binary),
    Kind('worker_binary stopped', _stop_binary, (0.5, 9.0), 1.5),
    Kind('worker_binary out of memory', _take_memory, (2.0, 5.0), fails=True),
    Kind('worker killed, comes back', _kill_worker, (0.2, 4.0), 1.5),
    Kind('worker stopped', _stop_worker, (0.5, 8.0), 1.5),
    Kind('connections refused', _wire('refuse'), (0.5, 6.0)),
    Kind('connections closed', _wire('close')),
    Kind('bytes swallowed', _wire('swallow'), (0.5, 6.0)),
    Kind('bytes late', _wire('delay'), (2.0, 6.0)),
    Kind('random bytes', _lie('random'), (0.5, 2.0), fails=True),
    Kind('a value of another type', _lie('other', other_answer), (0.5, 2.0)),
    Kind('one bit flipped', _lie('bit'), (0.5, 2.0)),
    Kind('an earlier answer', _lie('earlier'), (0.5, 2.0)),
    Kind('garbage as status', _lie('status'), (1.0, 2.5)),
    Kind('INTERNAL errors', _lie('internal'), (0.5, 3.0), fails=True),
    Kind('results never come', _lie('mute'), (longest_pack_seconds + 10.0,) * 2, 0.3),
    Kind('link down', _cut_link, (0.5, 8.0), 3.0, needs_network=True),
  )

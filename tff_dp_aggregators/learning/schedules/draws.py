"""Uniform draws whose cost is that of what is drawn, not of what it is drawn from."""

import numpy as np


def generator(seed: int, *key: int) -> np.random.Generator:
  """A generator for one purpose, such as a round; others have streams of their own.

  Args:
    seed: Same seed, same stream.
    *key: What it is for, numbers from 0.
  """
  sequence = np.random.SeedSequence(seed, spawn_key=key)
  return np.random.Generator(np.random.PCG64(sequence))


def number_type(num_clients: int) -> type:
  """The smallest integers that client numbers fit into: a population may be large."""
  return np.int32 if num_clients <= 2**31 else np.int64


class Pool:
  """A set of numbers from which some are drawn and removed, and others put back.

  It is an array in no order, filled from the left. What is drawn leaves holes, into
  which the last numbers move: the set is the same, and a draw costs its own size.
  """

  def __init__(self, numbers: np.ndarray):
    """Initializes the pool.

    Args:
      numbers: What is in it; not copied, and changed.
    """
    self._numbers = numbers
    self._size = len(numbers)

  def __len__(self) -> int:
    return self._size

  def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
    """Takes out so many, all subsets of them being equally likely.

    Args:
      count: At most the size of the pool.
      rng: Whose next numbers decide.

    Returns:
      What was drawn, in random order.
    """
    places = rng.choice(self._size, size=count, replace=False)
    drawn = self._numbers[places]
    rest = self._size - count
    stays = np.ones(count, bool)
    stays[places[places >= rest] - rest] = False
    self._numbers[places[places < rest]] = self._numbers[rest : self._size][stays]
    self._size = rest
    return drawn

  def add(self, numbers: np.ndarray) -> None:
    """Puts numbers in that are not there."""
    size = self._size + len(numbers)
    if size > len(self._numbers):
      grown = np.empty(max(size, 2 * self._size), numbers.dtype)
      grown[: self._size] = self._numbers[: self._size]
      self._numbers = grown
    self._numbers[self._size : size] = numbers
    self._size = size

"""Deals out examples without clients to clients that are made."""

import numpy as np


def split_with_label_skew(
  labels: np.ndarray,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Deals examples out to clients of equal size and skewed label distributions.

  Each client draws a label distribution from a Dirichlet and then its examples, label
  by label from it, among those that are left. Every example is dealt out once.

  `labels`: Class numbers, int [num_examples]; clients are no more than these.
  """
  classes = np.unique(labels)
  pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
  parts = []
  for size in equal_sizes(len(labels), num_clients):
    wanted = rng.dirichlet(np.full(len(classes), dirichlet_alpha))
    part: list[int] = []
    while len(part) < size:
      part += _drawn(pools, wanted, size - len(part), rng)
    parts.append(np.array(part))
  return parts


def _drawn(
  pools: list[list[int]], wanted: np.ndarray, count: int, rng: np.random.Generator
) -> list[int]:
  """Draws examples of a client, as if one by one, until a label is used up."""
  left = np.array([len(pool) > 0 for pool in pools])
  weights = np.where(left, wanted, 0.0)
  if weights.sum() <= 0:  # The client's labels are used up: any other.
    weights = left.astype(float)
  state = rng.bit_generator.state
  chosen = rng.choice(len(pools), size=count, p=weights / weights.sum())
  taken: list[int] = []
  for label in chosen:
    taken.append(pools[label].pop())
    if not pools[label]:
      break
  if len(taken) < count:
    # As many numbers as were used, and no more.
    rng.bit_generator.state = state
    rng.choice(len(pools), size=len(taken), p=weights / weights.sum())
  return taken


def equal_sizes(num_examples: int, num_clients: int) -> np.ndarray:
  """How many examples each client gets, of sizes that differ by at most one."""
  sizes = np.full(num_clients, num_examples // num_clients)
  sizes[: num_examples % num_clients] += 1
  return sizes


def skewed_sizes(
  num_examples: int,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> np.ndarray:
  """How many examples each client gets, by shares from a Dirichlet; at least one."""
  shares = rng.dirichlet(np.full(num_clients, dirichlet_alpha))
  more = rng.multinomial(num_examples - num_clients, shares / shares.sum())
  return np.asarray(1 + more)

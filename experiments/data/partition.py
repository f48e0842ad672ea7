"""Deals out examples that belong to nobody to clients."""

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

  Args:
    labels: Class numbers, int of shape [num_examples].
    num_clients: Clients; sizes differ by at most one.
    dirichlet_alpha: Concentration; positive.
    rng: Source of randomness.

  Returns:
    For each client, the indices of its examples.

  Raises:
    ValueError: If there are more clients than examples, or alpha is not positive.
  """
  if not 1 <= num_clients <= len(labels):
    raise ValueError(
      f'num_clients must be between 1 and {len(labels)}, the number of training '
      f'examples; got {num_clients}.'
    )
  if not dirichlet_alpha > 0:
    raise ValueError(f'dirichlet_alpha must be positive; got {dirichlet_alpha}.')
  classes = np.unique(labels)
  pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
  sizes = np.full(num_clients, len(labels) // num_clients)
  sizes[: len(labels) % num_clients] += 1
  parts = []
  for size in sizes:
    wanted = rng.dirichlet(np.full(len(classes), dirichlet_alpha))
    part = []
    for _ in range(size):
      left = np.array([len(pool) > 0 for pool in pools])
      weights = np.where(left, wanted, 0.0)
      if weights.sum() <= 0:  # The client's labels are used up: any other.
        weights = left.astype(float)
      part.append(pools[rng.choice(len(classes), p=weights / weights.sum())].pop())
    parts.append(np.array(part))
  return parts

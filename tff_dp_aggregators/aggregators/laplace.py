"""Laplace noise: private means with delta = 0, of few or sparse numbers."""

from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory


def laplace(
  participation: Optional[strategies.Participation] = None,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Independent Laplace noise in every round (Dwork et al. 2006, theorem 1).

  Each round of a client costs epsilon = 1 / `noise_multiplier` with delta = 0. Clients
  are clipped in L1 norm, which for a vector of d entries is up to sqrt(d) times its L2
  norm: for models of more than a few numbers, Gaussian noise is the smaller one.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L1 bound of one client's contribution to one round.
    noise_multiplier: Scale of the noise of the *sum* over `clip_norm`; its standard
      deviation is sqrt(2) times that.
    clients_per_round: Denominator of the mean.
    seed: Reproducible noise, for simulations; `None` for secret noise: see
      `noise.Seed`.
    generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> histogram = aggregators.laplace(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=100
    ... )
    >>> process = histogram.create(tff.TensorType(np.float32, [10]))
    >>> votes = [np.eye(10, dtype=np.float32)[3]] * 100
    >>> output = process.next(process.initialize(), votes)
    >>> aggregators.extract_dp_event(output.state).all_rounds_so_far
    LaplaceDpEvent(noise_multiplier=2.0)
  """
  return factory.from_query(
    queries.LaplaceSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

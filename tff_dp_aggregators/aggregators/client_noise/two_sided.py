"""Gaussian noise on both sides: of each client, and of the server on top."""

from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory


def two_sided_gaussian(
  participation: Optional[strategies.Participation] = None,
  *,
  clip_norm: float,
  noise_multiplier: float,
  server_noise_multiplier: float,
  clients_per_round: float,
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Gaussian noise of each client, on what it sends, and of the server, on the sum.

  That is where NbAFL (arXiv:1911.00222) puts it: uplink noise against whoever reads
  what a client sends, downlink noise against those who see the mean. The noise of all
  clients is in the mean as well, so the server's counts for the central guarantee
  alone, `accounting.local.central_event(..., server_noise_multiplier=...)`, and not for
  the local one, which is what `extract_dp_event` says. What `local_gaussian` tells of
  keys, seeds and rounds holds here.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of *one client's* noise over `clip_norm`.
    server_noise_multiplier: Standard deviation of the server's noise of the *sum* over
      `clip_norm`; 0 for none.
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
    ValueError: If a number is out of range; or, of `create`, if there is
      a seed, which clients cannot share.

  Example:
    >>> aggregator = two_sided_gaussian(
    ...   clip_norm=1.0,
    ...   noise_multiplier=4.0,
    ...   server_noise_multiplier=10.0,
    ...   clients_per_round=10,
    ... )
  """
  return factory.from_query(
    queries.LocalGaussianSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    server_noise_multiplier=server_noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

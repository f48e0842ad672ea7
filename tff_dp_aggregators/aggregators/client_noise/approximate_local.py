"""SIMULATION ONLY: local privacy as it would come out, with noise of the server.

Noise for each of thousands of clients is most of the work of simulating local privacy.
Of the sum of their noise only the variance matters, or nearly so; and that can be drawn
at once. `benchmarks/local_privacy.py` measures what is saved.
"""

import functools
from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import factory


def approximate_local_gaussian(
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
  """SIMULATION ONLY: `local_gaussian` with noise of the server in its place, faster.

  What clients send has no noise, so nothing is hidden from the server, and the events
  say that (`NonPrivateDpEvent`). The mean has the distribution that it has with noise
  of the clients who reported, up to rounding on the grid of the sums.

  What the real thing would spend says `accounting.local.local_event`.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of *one client* that is stood for
      over `clip_norm`.
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
    >>> aggregator = approximate_local_gaussian(
    ...   clip_norm=1.0, noise_multiplier=4.0, clients_per_round=1000
    ... )
    >>> aggregator.query.noise_site
    'local_approximate'
  """
  return factory.from_query(
    functools.partial(queries.ApproximateLocalSumQuery, noise=noises.GAUSSIAN.name),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )


def approximate_local_laplace(
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
  """SIMULATION ONLY: `local_laplace` with Gaussian noise of the server in its place.

  What clients send has no noise, so nothing is hidden from the server, and the events
  say that (`NonPrivateDpEvent`). The mean has the mean and covariance that it has with
  noise of the clients who reported, and their distribution in the limit of many: with m
  clients the excess kurtosis of their noise is 3 / m, and here it is 0.

  What the real thing would spend says `accounting.local.local_event`.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L1 bound of one client's contribution to one round.
    noise_multiplier: Scale of the Laplace noise of *one client* that is stood for over
      `clip_norm`; its standard deviation is sqrt(2) times that.
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
    >>> aggregator = approximate_local_laplace(
    ...   clip_norm=1.0, noise_multiplier=4.0, clients_per_round=1000
    ... )
  """
  return factory.from_query(
    functools.partial(queries.ApproximateLocalSumQuery, noise=noises.LAPLACE.name),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

"""Local privacy: noise of each client, which hides it from the server too."""

from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory


def local_gaussian(
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
  """Gaussian noise that each client adds to its own update, before it sends anything.

  What a client sends has noise of standard deviation `clip_norm * noise_multiplier` in
  each coordinate, of a key that nobody else ever has (`queries.client_noise`); the mean
  of m clients has sqrt(m) / `clients_per_round` times that. So the noise multiplier is
  relative to *one* client's clip norm, and of a size that hides one client: for the
  same error in the mean, sqrt(m) times smaller than that of `gaussian`.

  `extract_dp_event` says what a client's own reports cost against everybody, under
  zero-out neighbours. Local privacy is mostly meant for any two updates of a client,
  `accounting.local.local_event(..., adjacency='replace_one')`: half the noise
  multiplier. Against those who see means alone there is more privacy,
  `accounting.local.central_event`. Clients do not tell whether their update was finite:
  `nonfinite_count` stays 0.

  A seed is for packed simulations (`learning.packed`), which number clients: `create`
  refuses it. A round that is run again has other noise; if both results are seen, both
  are to be accounted for.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of *one client's* noise over `clip_norm`.
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
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> aggregator = local_gaussian(
    ...   clip_norm=1.0, noise_multiplier=4.0, clients_per_round=10
    ... )
    >>> process = aggregator.create(tff.TensorType(np.float32, [3]))
    >>> updates = [np.zeros(3, np.float32)] * 10
    >>> output = process.next(process.initialize(), updates)
    >>> aggregators.extract_dp_event(output.state).all_rounds_so_far
    GaussianDpEvent(noise_multiplier=4.0)
  """
  return factory.from_query(
    queries.LocalGaussianSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )


def local_laplace(
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
  """Laplace noise that each client adds to its own update, before it sends anything.

  A report costs a client epsilon = 1 / `noise_multiplier` under zero-out neighbours,
  and twice that for any two updates of it, with delta = 0, against everybody.
  Clients are clipped in L1 norm, which for a vector of d entries is up to sqrt(d) times
  its L2 norm. What `local_gaussian` tells of keys, seeds and rounds holds here.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L1 bound of one client's contribution to one round.
    noise_multiplier: Scale of *one client's* noise over `clip_norm`; its standard
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
    ValueError: If a number is out of range; or, of `create`, if there is
      a seed, which clients cannot share.

  Example:
    >>> aggregator = local_laplace(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=10
    ... )
  """
  return factory.from_query(
    queries.LocalLaplaceSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

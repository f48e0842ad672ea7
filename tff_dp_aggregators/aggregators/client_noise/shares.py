"""Central Gaussian noise whose site are the clients: each makes a share of it."""

import functools
import math
from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks


def gaussian_shares(
  participation: Optional[strategies.Participation] = None,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  min_clients: Optional[int] = None,
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """The Gaussian mechanism with noise that clients make in shares, not the server.

  Each client adds Gaussian noise of standard deviation
  `clip_norm * noise_multiplier / sqrt(min_clients)` to its update before it sends it.
  The sum of `min_clients` of them is that of `gaussian` with the same numbers; more
  clients make more noise. A round with fewer fails: its noise would be too little.

  The guarantee is central, that of `gaussian`, and rests on a sum that is secure, or a
  server that forgets: one client's share hardly hides what it sent
  (`accounting.local.local_event` says how little). A client of the round knows its own
  share: against it the noise is sqrt((m - 1) / m) times as large, m being
  `min_clients`; `accounting.local.central_event(..., known_shares=1)`. Noise that is
  correlated over rounds cannot be made like this (`accounting.noises.check`).

  A seed is for packed simulations (`learning.packed`), which number clients: `create`
  refuses it. A round that is run again has other noise; if both results are seen, both
  are to be accounted for.

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of the *sum* of `min_clients`
      clients over `clip_norm`.
    clients_per_round: Denominator of the mean.
    min_clients: How many clients have to report; a round with fewer fails, and what
      they sent is discarded. `None` for all of `clients_per_round`.
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
    >>> aggregator = gaussian_shares(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=100, min_clients=80
    ... )
    >>> aggregator.min_clients, round(aggregator.query.client_noise_multiplier, 4)
    (80, 0.2236)
  """
  checks.check_number('clients_per_round', clients_per_round)
  if min_clients is None:
    min_clients = max(1, math.floor(clients_per_round))
  return factory.from_query(
    functools.partial(queries.GaussianSharesSumQuery, min_clients=min_clients),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

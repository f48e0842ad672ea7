"""Noise that clients make: each for itself, each a share, or what stands for it.

`approximate_local_...` are for simulations alone: noise for each of thousands of
clients is most of the work of simulating local privacy. Of the sum of their noise only
the variance matters, or nearly so; and that can be drawn at once by the server.
`benchmarks/local_privacy.py` measures what is saved.

All take the arguments of `aggregators.gaussian` (`factory.IndependentMean`), and say
what else they take. A seed is for packed simulations (`learning.packed`), which number
clients: where clients add noise, `create` refuses it. A round that is run again has
other noise; if both results are seen, both are to be accounted for.
"""

import math
from typing import Optional

from typing_extensions import Unpack

from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks


def local_gaussian(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Gaussian noise that each client adds to its own update, before it sends anything.

  See `queries.LocalGaussianSumQuery`, also for what `extract_dp_event` says of it. The
  mean of m clients has sqrt(m) / `clients_per_round` times the noise of one. So the
  noise multiplier is relative to *one* client's clip norm, and of a size that hides one
  client: for the same error in the mean, sqrt(m) times smaller than that of `gaussian`.
  Clients do not tell whether their update was finite: `nonfinite_count` stays 0.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
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
  return factory.from_query(queries.LocalGaussianSumQuery, participation, **arguments)


def local_laplace(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Laplace noise that each client adds to its own update, before it sends anything.

  See `queries.LocalLaplaceSumQuery`. Clients are clipped in L1 norm, and the noise
  multiplier is the scale of *one client's* noise.
  """
  return factory.from_query(queries.LocalLaplaceSumQuery, participation, **arguments)


def gaussian_shares(
  participation: Optional[strategies.Participation] = None,
  *,
  clients_per_round: float,
  min_clients: Optional[int] = None,
  **arguments: Unpack[factory.Mean],
) -> factory.DPMeanFactory:
  """The Gaussian mechanism with noise that clients make in shares, not the server.

  See `queries.GaussianSharesSumQuery`. A round with fewer clients than `min_clients`
  fails: its noise would be too little. The guarantee is central, that of `gaussian`,
  and rests on a sum that is secure, or a server that forgets: one client's share hardly
  hides what it sent (`accounting.local.local_event` says how little). Noise that is
  correlated over rounds cannot be made like this (`accounting.noises.check`).

  Args:
    participation: As for `gaussian`.
    clients_per_round: Denominator of the mean.
    min_clients: How many clients have to report; a round with fewer fails, and what
      they sent is discarded. `None` for all of `clients_per_round`.
    **arguments: As for `gaussian`.

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
    queries.GaussianSharesSumQuery,
    participation,
    min_clients=min_clients,
    clients_per_round=clients_per_round,
    **arguments,
  )


def two_sided_gaussian(
  participation: Optional[strategies.Participation] = None,
  *,
  server_noise_multiplier: float,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Gaussian noise of each client, on what it sends, and of the server, on the sum.

  That is where NbAFL (arXiv:1911.00222) puts it: uplink noise against whoever reads
  what a client sends, downlink noise against those who see the mean. The server's
  counts for the central guarantee alone,
  `accounting.local.central_event(..., server_noise_multiplier=...)`, and not for the
  local one, which is what `extract_dp_event` says, as for `local_gaussian`.

  Args:
    participation: As for `gaussian`.
    server_noise_multiplier: Standard deviation of the server's noise of the *sum* over
      `clip_norm`; 0 for none.
    **arguments: As for `local_gaussian`.
  """
  return factory.from_query(
    queries.LocalGaussianSumQuery,
    participation,
    server_noise_multiplier=server_noise_multiplier,
    **arguments,
  )


def approximate_local_gaussian(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """SIMULATION ONLY: `local_gaussian` with noise of the server in its place, faster.

  See `queries.ApproximateLocalSumQuery`: nothing is hidden from the server, and the
  events say that.
  """
  return factory.from_query(
    queries.ApproximateLocalSumQuery,
    participation,
    noise=noises.GAUSSIAN.name,
    **arguments,
  )


def approximate_local_laplace(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """SIMULATION ONLY: `local_laplace` with Gaussian noise of the server in its place.

  As `approximate_local_gaussian`: mean and covariance are those with noise of the
  clients who reported, but with m clients the excess kurtosis of their noise is 3 / m,
  and here it is 0.
  """
  return factory.from_query(
    queries.ApproximateLocalSumQuery,
    participation,
    noise=noises.LAPLACE.name,
    **arguments,
  )

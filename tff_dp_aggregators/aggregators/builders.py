"""One function for each mechanism: from its numbers to a TFF factory.

What they share has the same name, order and default in each of them, and is explained
in `gaussian`. For secure aggregation pass `secure_sum()` as
`record_aggregation_factory`: the counts of clients and of values that are not finite
are summed securely then, too.
"""

import functools
import math
from typing import Any, Optional

from typing_extensions import Unpack

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options


def gaussian(
  participation: Optional[strategies.Participation] = None,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.IndependentOptions],
) -> factory.DPMeanFactory:
  """Independent Gaussian noise in every round (DP-FedAvg, arXiv:1710.06963).

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None`, for independent noise alone, serves any number and assumes that a
      client may take part in all of them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of the *sum* over `clip_norm`; of
      correlated noise that of z, in a tree that of a node; 0 adds none.
    clients_per_round: Denominator of the mean.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
    **noise_options: See `noise.Options`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> aggregator = gaussian(
    ...   clip_norm=0.5, noise_multiplier=1.0, clients_per_round=100
    ... )
    >>> import numpy as np
    >>> import tensorflow_federated as tff
    >>> process = aggregator.create(tff.TensorType(np.float32, [10]))
    >>> state = process.initialize()
  """
  return factory.from_query(
    queries.GaussianSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def tree(
  participation: strategies.Participation,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  honaker: bool = True,
  restart_every: Optional[int] = None,
  cumulative: bool = False,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """Tree-aggregation noise (DP-FTRL, arXiv:2103.00039).

  Arguments are those of `gaussian`, and:

  * `honaker`: Honaker's estimator, with less noise, or the plain one, with less state.
  * `restart_every`: Rounds after which a fresh tree begins; `None` for a single one.
  * `cumulative`: Whether rounds return the sum of all means so far, for an optimizer
    that works on sums (FTRL), or the mean of the round, whose noise cancels in sums.

  Example:
    >>> aggregator = tree(
    ...   strategies.Participation(2000, min_separation=314, max_participations=6),
    ...   clip_norm=0.3,
    ...   noise_multiplier=7.0,
    ...   clients_per_round=6500,
    ... )
    >>> round(aggregator.effective_noise_multiplier, 4)
    0.7876
  """
  return factory.from_query(
    queries.TreeCumulativeSumQuery if cumulative else queries.TreeResidualSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    honaker=honaker,
    restart_every=restart_every,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def banded(
  participation: strategies.Participation,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  num_bands: Optional[int] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """Banded matrix factorization noise (arXiv:2306.08153).

  Arguments are those of `gaussian`, and `num_bands`: bands of the strategy, the one
  with the least RMSE of those; the noise of `num_bands - 1` rounds is remembered.
  `None` means `min_separation`, the most there can be; they cost no sensitivity.

  Example:
    >>> aggregator = banded(
    ...   strategies.Participation(num_rounds=100, min_separation=25),
    ...   clip_norm=0.3,
    ...   noise_multiplier=2.0,
    ...   clients_per_round=100,
    ... )
    >>> round(aggregator.effective_noise_multiplier, 4)  # Four participations.
    1.0
  """
  strategies.participation.require(participation)
  if num_bands is None:
    num_bands = strategies.participation.free_bands(participation)
  return from_strategy(
    strategies.banded.optimize(
      participation.num_rounds, num_bands=num_bands, participation=participation
    ),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def from_strategy(
  strategy: strategies.Strategy,
  participation: strategies.Participation,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  workload: Optional[strategies.Workload] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """The noise of any strategy: BLT, banded, banded inverse, dense, ...

  Arguments are those of `gaussian`, and:

  * `strategy`: Strategy matrix C, for the rounds planned; one more is an error.
  * `participation`: Who may take part when, in as many rounds.
  * `workload`: `None` to return the mean of each round; a `Workload` to return its rows
    applied to all means so far: prefix sums, with momentum, learning rates and weight
    decay if it has them. It is for the strategy's rounds, or a ValueError.
  """
  return factory.from_query(
    queries.MatrixMechanismQuery,
    strategy,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    workload=workload,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def adaptive(
  *,
  strategy: Optional[strategies.Strategy] = None,
  participation: Optional[strategies.Participation] = None,
  noise_multiplier: float,
  clients_per_round: float,
  initial_clip_norm: float = 0.1,
  target_quantile: float = 0.5,
  learning_rate: float = 0.2,
  clipped_count_stddev: Optional[float] = None,
  update_every: Optional[int] = None,
  workload: Optional[strategies.Workload] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """Noise of any strategy, with a clip norm that adapts (arXiv:1905.03871).

  `gaussian_adaptive` and `tree_adaptive` of
  `tff.aggregators.DifferentiallyPrivateFactory`, whose default numbers it has. What
  clients say of their norms is covered by `noise_multiplier`. Under `dp_query_metrics`
  there are two more private estimates, `quantile_estimate` and `fraction_below`;
  `clip_norm` is that of the next round.

  Arguments are those of `queries.AdaptiveClippingQuery`, but for the records' specs,
  and of `from_strategy`:

  * `strategy`: `None` for independent noise in every round, which remembers nothing:
    `storage` is refused.
  * `participation`: A strategy or a workload needs one. Without either, `None` serves
    any number of rounds and assumes that a client may take part in all of them.
  * `clients_per_round`: Denominator of the mean, and of the fraction of small norms.

  Raises:
    TypeError: As `queries.AdaptiveClippingQuery`, or if `participation` is missing.
    ValueError: As that, or if strategy, participation and workload are not for the same
      rounds.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
    >>> aggregator = adaptive(noise_multiplier=1.0, clients_per_round=100)
    >>> process = aggregator.create(tff.TensorType(np.float32, [2]))
    >>> values = [np.array([3.0, 4.0], np.float32)] * 100
    >>> output = process.next(process.initialize(), values)
    >>> clip_norm = output.measurements['dp_query_metrics']['clip_norm']
    >>> bool(clip_norm > 0.1)  # It was far too small.
    True
  """
  if 'clip_norm' in noise_options:
    raise TypeError('the clip norm adapts: give initial_clip_norm, not clip_norm.')
  first: tuple[Any, ...] = (strategy, participation)
  query: Any = queries.AdaptiveClippingQuery
  if strategy is None:
    options.checked(noise_options, noise.IndependentOptions)
    first = (participation,)
    if workload is None:
      query = queries.AdaptiveGaussianSumQuery
    else:
      planned = strategies.participation.require(participation)
      first = (strategies.Identity(planned.num_rounds), planned)
  if workload is not None:
    query = functools.partial(query, workload=workload)
  return factory.from_query(
    # Which divides counts by it.
    functools.partial(query, clients_per_round=clients_per_round),
    *first,
    initial_clip_norm=initial_clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    target_quantile=target_quantile,
    learning_rate=learning_rate,
    clipped_count_stddev=clipped_count_stddev,
    update_every=update_every,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def laplace(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Independent Laplace noise in every round (Dwork et al. 2006, theorem 1).

  See `queries.LaplaceSumQuery`. Arguments are those of `gaussian`; `clip_norm` bounds
  the L1 norm, and `noise_multiplier` is the scale of the noise of the *sum* over it.
  """
  return factory.from_query(queries.LaplaceSumQuery, participation, **arguments)


def norm_clip(
  *,
  clip_norm: float,
  clients_per_round: float,
  order: float = 2.0,
  record_aggregation_factory: factory.SumOfRecords = None,
) -> factory.DPMeanFactory:
  """The mean of clipped values, without noise and without privacy.

  To see what clipping does. `clip_norm` bounds the p-norm of a client's contribution to
  one round, p being `order`, from 1 to infinity (`math.inf` clips each entry). What
  `extract_dp_event` says of its states is `NonPrivateDpEvent`.
  """

  def build_query(record_specs: Any) -> queries.NormClipSumQuery:
    return queries.NormClipSumQuery(
      order=order, clip_norm=clip_norm, record_specs=record_specs
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )


# Noise that clients make: each for itself, each a share, or what stands for it.
#
# All take the arguments of `gaussian`, and say what else they take. A seed is for
# packed simulations (`learning.packed`), which number clients: where clients add noise,
# `create` refuses it. A round that is run again has other noise; if both results are
# seen, both are to be accounted for.


def local_gaussian(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Gaussian noise that each client adds to its own update, before it sends anything.

  See `queries.LocalGaussianSumQuery`, also for what `extract_dp_event` says of it. The
  noise multiplier is relative to *one* client's clip norm: for the same error in the
  mean of m clients, sqrt(m) times smaller than that of `gaussian`. Clients do not tell
  whether their update was finite: `nonfinite_count` stays 0.
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

  See `queries.GaussianSharesSumQuery`. The guarantee is central, that of `gaussian`,
  and rests on a sum that is secure, or a server that forgets: one client's share hardly
  hides what it sent (`accounting.local.local_event` says how little).

  Arguments are those of `gaussian`, and `min_clients`: how many clients have to report;
  a round with fewer fails, for its noise would be too little, and what they sent is
  discarded. `None` for all of `clients_per_round`.

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

  As in NbAFL (arXiv:1911.00222). The server's counts for the central guarantee alone,
  `accounting.local.central_event(..., server_noise_multiplier=...)`, and not for the
  local one, which is what `extract_dp_event` says, as for `local_gaussian`.

  Arguments are those of `local_gaussian`, and `server_noise_multiplier`: standard
  deviation of the server's noise of the *sum* over `clip_norm`; 0 for none.
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

  Of the sum of clients' noise only the variance matters, or nearly so, and that is
  drawn at once (`benchmarks/local_privacy.py`). See `queries.ApproximateLocalSumQuery`:
  nothing is hidden from the server, and the events say that.
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

"""One function for each mechanism; each returns a TFF aggregation factory.

Arguments that the functions share have the same name, order and default in each of
them, and are explained in `gaussian`. For secure aggregation pass `secure_sum()` as
`record_aggregation_factory`; the counts of clients and of values that are not finite
are then summed securely, too.
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
    participation: Who may take part when, and the number of rounds; one round more is
      an error. `None`, for independent noise only, allows any number of rounds and
      assumes that a client may take part in all of them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of the *sum* over `clip_norm`. For
      correlated noise it is that of z, in a tree that of a node; 0 adds no noise.
    clients_per_round: Denominator of the mean.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
    **noise_options: See `noise.Options`.

  Raises:
    TypeError: If an argument has the wrong type.
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
  * `restart_every`: Rounds after which a new tree begins; `None` for a single tree.
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

  Arguments are those of `gaussian`, and `num_bands`: the number of bands of the
  strategy, which is optimized for the least RMSE. The noise of `num_bands - 1` rounds
  is remembered. `None` means `min_separation`, the maximum, which costs no sensitivity.

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

  * `strategy`: Strategy matrix C. One round more than it has is an error.
  * `participation`: Who may take part when, for the same number of rounds.
  * `workload`: `None` to return the mean of each round; a `Workload` to return its rows
    applied to all means so far: prefix sums, with momentum, learning rates and weight
    decay if it has them. ValueError if its number of rounds is not the strategy's.
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
  """Noise of any strategy, with an adaptive clip norm (arXiv:1905.03871).

  It corresponds to `gaussian_adaptive` and `tree_adaptive` of
  `tff.aggregators.DifferentiallyPrivateFactory`, and has their default numbers. The
  cost of comparing clients' norms with the estimate is included in `noise_multiplier`.
  `dp_query_metrics` contains two more private estimates, `quantile_estimate` and
  `fraction_below`; its `clip_norm` is that of the next round.

  Arguments are those of `from_strategy` and `queries.AdaptiveClippingQuery`:

  * `strategy`: `None` for independent noise in every round, for which `storage` is
    refused, because there is nothing to store.
  * `participation`: Required with a strategy or a workload. Without either, `None`
    allows any number of rounds and assumes that a client may take part in all of them.
  * `clients_per_round`: Denominator of the mean, and of the fraction of small norms.

  Raises:
    TypeError: As `queries.AdaptiveClippingQuery`, if `participation` is missing, or if
      `clip_norm` is given.
    ValueError: As `queries.AdaptiveClippingQuery`, or if the numbers of rounds of
      strategy, participation and workload differ.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
    >>> aggregator = adaptive(noise_multiplier=1.0, clients_per_round=100)
    >>> process = aggregator.create(tff.TensorType(np.float32, [2]))
    >>> values = [np.array([3.0, 4.0], np.float32)] * 100
    >>> output = process.next(process.initialize(), values)
    >>> clip_norm = output.measurements['dp_query_metrics']['clip_norm']
    >>> bool(clip_norm > 0.1)  # The first clip norm was far too small.
    True
  """
  if 'clip_norm' in noise_options:
    raise TypeError('the clip norm adapts: give initial_clip_norm, not clip_norm.')
  positional: tuple[Any, ...] = (strategy, participation)
  query: Any = queries.AdaptiveClippingQuery
  if strategy is None:
    options.checked(noise_options, noise.IndependentOptions)
    positional = (participation,)
    if workload is None:
      query = queries.AdaptiveGaussianSumQuery
    else:
      planned = strategies.participation.require(participation)
      positional = (strategies.Identity(planned.num_rounds), planned)
  if workload is not None:
    query = functools.partial(query, workload=workload)
  return factory.from_query(
    # The query divides the noised counts by it.
    functools.partial(query, clients_per_round=clients_per_round),
    *positional,
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

  It shows the effect of clipping alone. `clip_norm` bounds the p-norm of a client's
  contribution to one round, with p = `order` from 1 to infinity (`math.inf` clips each
  entry). `extract_dp_event` returns `NonPrivateDpEvent` for its states.
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


# Noise that clients add (local noise, or shares of central noise), and approximations.
#
# These functions take the arguments of `gaussian` and those in their docstrings. A seed
# only works in packed simulations (`learning.packed`), which number clients: `create`
# refuses a seed if clients add noise. A round that is run again has different noise; if
# both results are seen, both have to be accounted for.


def local_gaussian(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Gaussian noise that each client adds to its own update, before it sends anything.

  See `queries.LocalGaussianSumQuery`, also for the event that `extract_dp_event`
  returns. The noise multiplier is that of *one* client's noise: for the same error in
  the mean of m clients it is sqrt(m) times smaller than that of `gaussian`. Clients do
  not report whether their update was finite: `nonfinite_count` stays 0.
  """
  return factory.from_query(queries.LocalGaussianSumQuery, participation, **arguments)


def local_laplace(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[factory.IndependentMean],
) -> factory.DPMeanFactory:
  """Laplace noise that each client adds to its own update, before it sends anything.

  See `queries.LocalLaplaceSumQuery`. Updates are clipped in L1 norm, and the noise
  multiplier is the scale of *one client's* noise over `clip_norm`.
  """
  return factory.from_query(queries.LocalLaplaceSumQuery, participation, **arguments)


def gaussian_shares(
  participation: Optional[strategies.Participation] = None,
  *,
  clients_per_round: float,
  min_clients: Optional[int] = None,
  **arguments: Unpack[factory.Mean],
) -> factory.DPMeanFactory:
  """The Gaussian mechanism, with noise of which each client adds a share.

  See `queries.GaussianSharesSumQuery`. The guarantee is the central one of `gaussian`.
  It needs secure aggregation, or a server that discards what single clients sent: a
  share hardly hides it (`accounting.local.local_event` computes how little).

  Arguments are those of `gaussian`, and `min_clients`: the minimum number of clients
  that have to report. A round with fewer has too little noise: it fails, and what they
  sent is discarded. `None` for all of `clients_per_round`.

  Example:
    >>> aggregator = gaussian_shares(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=100, min_clients=80
    ... )
    >>> aggregator.min_clients, round(aggregator.query.client_noise_multiplier, 4)
    (80, 0.2236)
  """
  factory.check_clients_per_round(clients_per_round)
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
  """Gaussian noise of each client on what it sends, and of the server on the sum.

  As in NbAFL (arXiv:1911.00222). The server's noise only counts for the central
  guarantee, `accounting.local.central_event(..., server_noise_multiplier=...)`, and not
  for the local one, whose event `extract_dp_event` returns as for `local_gaussian`.

  Arguments are those of `local_gaussian`, and `server_noise_multiplier`: the standard
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
  """SIMULATION ONLY: replaces the clients' noise of `local_gaussian` by server noise.

  The server draws noise with the variance of the sum of the clients' noise once, which
  is faster, with nearly the same distribution (`benchmarks/local_privacy.py`). Nothing
  is hidden from the server, as the event says: see `queries.ApproximateLocalSumQuery`.
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
  """SIMULATION ONLY: replaces the noise of `local_laplace` by Gaussian server noise.

  As in `approximate_local_gaussian`, mean and covariance are those of the reporting
  clients' noise. Its sum has excess kurtosis 3 / m for m clients, and 0 here.
  """
  return factory.from_query(
    queries.ApproximateLocalSumQuery,
    participation,
    noise=noises.LAPLACE.name,
    **arguments,
  )

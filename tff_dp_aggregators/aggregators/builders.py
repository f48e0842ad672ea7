"""One function for each mechanism: from its numbers to a TFF factory.

For secure aggregation pass a `record_aggregation_factory`; to have the count of
non-finite values summed securely as well, use `factory.DPMeanFactory` itself.
"""

from typing import Any, Optional

import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory


def gaussian(
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  *,
  num_rounds: Optional[int] = None,
  min_separation: int = 1,
  max_participations: Optional[int] = None,
  seed: Optional[int] = None,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Independent Gaussian noise in every round (DP-FedAvg, arXiv:1710.06963).

  Args:
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of the *sum* over `clip_norm`.
    clients_per_round: Denominator of the mean.
    num_rounds: Rounds planned for. `None` serves any number and assumes that a
      client may take part in all of them.
    min_separation: Smallest difference of two rounds of one client.
    max_participations: Most rounds of one client; `None` for as many as fit.
    seed: Reproducible noise, for simulations; `None` for secret noise.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    ValueError: If a number is out of range, or a participation limit is given
      without `num_rounds`.

  Example:
    >>> aggregator = gaussian(
    ...   clip_norm=0.5, noise_multiplier=1.0, clients_per_round=100
    ... )
    >>> import numpy as np
    >>> process = aggregator.create(tff.TensorType(np.float32, [10]))
    >>> state = process.initialize()
  """
  participation = None
  if num_rounds is not None:
    participation = strategies.Participation(
      num_rounds, min_separation, max_participations
    )
  elif min_separation != 1 or max_participations is not None:
    raise ValueError(
      'min_separation and max_participations need num_rounds as well: they limit '
      'a client within a planned number of rounds.'
    )

  def build_query(record_specs: Any) -> queries.GaussianSumQuery:
    return queries.GaussianSumQuery(
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      seed=seed,
    )

  return factory.DPMeanFactory(
    build_query, clients_per_round, record_aggregation_factory
  )


def tree(
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  *,
  num_rounds: int,
  min_separation: int = 1,
  max_participations: Optional[int] = None,
  honaker: bool = True,
  restart_every: Optional[int] = None,
  cumulative: bool = False,
  storage: noise.Storage = 'auto',
  seed: Optional[int] = None,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Tree-aggregation noise (DP-FTRL, arXiv:2103.00039).

  Args:
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of a tree node's noise over `clip_norm`.
    clients_per_round: Denominator of the mean.
    num_rounds: Rounds planned for; one more is an error.
    min_separation: Smallest difference of two rounds of one client.
    max_participations: Most rounds of one client; `None` for as many as fit.
    honaker: Honaker's estimator, with less noise, or the plain one, with less state.
    restart_every: Rounds after which a fresh tree begins; `None` for a single one.
    cumulative: Whether each round returns the sum of all means so far, for an optimizer
      that works on sums (FTRL), or the mean of the round, whose noise cancels in sums.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> aggregator = tree(
    ...   clip_norm=0.3,
    ...   noise_multiplier=7.0,
    ...   clients_per_round=6500,
    ...   num_rounds=2000,
    ...   min_separation=314,
    ...   max_participations=6,
    ... )
    >>> round(aggregator.effective_noise_multiplier, 4)
    0.7876
  """
  participation = strategies.Participation(
    num_rounds, min_separation, max_participations
  )

  query = queries.TreeCumulativeSumQuery if cumulative else queries.TreeResidualSumQuery

  def build_query(record_specs: Any) -> queries.MatrixMechanismQuery:
    return query(
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      honaker=honaker,
      restart_every=restart_every,
      storage=storage,
      seed=seed,
    )

  return factory.DPMeanFactory(
    build_query, clients_per_round, record_aggregation_factory
  )


def banded(
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  *,
  num_rounds: int,
  min_separation: int = 1,
  max_participations: Optional[int] = None,
  num_bands: Optional[int] = None,
  storage: noise.Storage = 'auto',
  seed: Optional[int] = None,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Banded matrix factorization noise (arXiv:2306.08153).

  Args:
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of z over `clip_norm`.
    clients_per_round: Denominator of the mean.
    num_rounds: Rounds planned for; one more is an error.
    min_separation: Smallest difference of two rounds of one client.
    max_participations: Most rounds of one client; `None` for as many as fit.
    num_bands: Bands of the strategy, the one with the least RMSE of those; the noise of
      `num_bands - 1` rounds is remembered. `None` means `min_separation`, the most
      there can be; they cost no sensitivity.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> aggregator = banded(
    ...   clip_norm=0.3,
    ...   noise_multiplier=2.0,
    ...   clients_per_round=100,
    ...   num_rounds=100,
    ...   min_separation=25,
    ... )
    >>> round(aggregator.effective_noise_multiplier, 4)  # Four participations.
    1.0
  """
  participation = strategies.Participation(
    num_rounds, min_separation, max_participations
  )
  return from_strategy(
    accounting.mechanism.strategy_for('banded', participation, num_bands=num_bands),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    storage=storage,
    seed=seed,
    record_aggregation_factory=record_aggregation_factory,
  )


def from_mechanism(
  mechanism: accounting.Mechanism,
  clip_norm: float,
  clients_per_round: float,
  *,
  storage: noise.Storage = 'auto',
  seed: Optional[int] = None,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """The factory of a mechanism that accounting planned.

  Args:
    mechanism: Strategy, participation and noise, for instance calibrated to a
      privacy target by `accounting.Mechanism.for_target`.
    clip_norm: L2 bound of one client's contribution to one round.
    clients_per_round: Denominator of the mean.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    ValueError: If a number is out of range, or the mechanism rests on sampling or
      pays for adaptive clipping.

  Example:
    >>> mechanism = accounting.Mechanism.for_target(
    ...   'banded',
    ...   strategies.Participation(num_rounds=100, min_separation=25),
    ...   target_epsilon=8.0,
    ...   target_delta=1e-6,
    ... )
    >>> aggregator = from_mechanism(mechanism, clip_norm=0.5, clients_per_round=100)
    >>> round(aggregator.noise_multiplier, 3)
    1.306
  """
  if mechanism.is_sampled:
    raise ValueError(
      'a sampled mechanism cannot be built by name, because nothing here draws the '
      'clients; plan with limits on participation, or use from_strategy and account '
      'for the sampling yourself.'
    )
  if mechanism.clipped_count_stddev is not None:
    raise ValueError(
      'the mechanism pays for adaptive clipping; build it with aggregators.adaptive, '
      'from its strategy, limits, noise_multiplier and clipped_count_stddev.'
    )
  return from_strategy(
    mechanism.strategy,
    mechanism.limits,
    clip_norm=clip_norm,
    noise_multiplier=mechanism.noise_multiplier,
    clients_per_round=clients_per_round,
    storage=storage,
    seed=seed,
    record_aggregation_factory=record_aggregation_factory,
  )


def from_strategy(
  strategy: strategies.Strategy,
  participation: Optional[strategies.Participation],
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  *,
  workload: Optional[strategies.Workload] = None,
  storage: noise.Storage = 'auto',
  seed: Optional[int] = None,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """The noise of any strategy: BLT, banded, banded inverse, dense, ...

  Args:
    strategy: Strategy matrix C, for the number of rounds planned; one more is an error.
    participation: Who may take part when; `None` means a single participation.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of z over `clip_norm`.
    clients_per_round: Denominator of the mean.
    workload: `None` to return the mean of each round; a `Workload` to return its rows
      applied to all means so far: prefix sums, with momentum and learning rates if it
      has them.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    ValueError: If a number is out of range, or strategy, participation and workload
      are not for the same rounds.

  Example:
    >>> participation = strategies.Participation(num_rounds=100, min_separation=25)
    >>> strategy = strategies.blt.optimize(
    ...   100, num_buffers=2, participation=participation
    ... )
    >>> aggregator = from_strategy(
    ...   strategy,
    ...   participation,
    ...   clip_norm=0.5,
    ...   noise_multiplier=2.0,
    ...   clients_per_round=100,
    ... )
  """

  def build_query(record_specs: Any) -> queries.MatrixMechanismQuery:
    return queries.MatrixMechanismQuery(
      strategy,
      participation,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      workload=workload,
      storage=storage,
      seed=seed,
    )

  return factory.DPMeanFactory(
    build_query, clients_per_round, record_aggregation_factory
  )

"""One function for each mechanism: from its numbers to a TFF factory.

All take what is known about clients as a `strategies.Participation`, and all numbers by
name. What they share has the same name, order, default and words in each of them; the
tests compare.

For secure aggregation pass `secure_sum()` as `record_aggregation_factory`: the counts
of clients and of values that are not finite are summed securely then, too.
"""

from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory


def gaussian(
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
  """Independent Gaussian noise in every round (DP-FedAvg, arXiv:1710.06963).

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error. `None` serves any number and assumes that a client may take part in all of
      them.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of the noise of the *sum* over `clip_norm`.
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
    >>> aggregator = gaussian(
    ...   clip_norm=0.5, noise_multiplier=1.0, clients_per_round=100
    ... )
    >>> import numpy as np
    >>> process = aggregator.create(tff.TensorType(np.float32, [10]))
    >>> state = process.initialize()
  """
  return factory.from_query(
    queries.GaussianSumQuery,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
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
  storage: noise.Storage = 'auto',
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Tree-aggregation noise (DP-FTRL, arXiv:2103.00039).

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of a tree node's noise over `clip_norm`.
    clients_per_round: Denominator of the mean.
    honaker: Honaker's estimator, with less noise, or the plain one, with less state.
    restart_every: Rounds after which a fresh tree begins; `None` for a single one.
    cumulative: Whether each round returns the sum of all means so far, for an optimizer
      that works on sums (FTRL), or the mean of the round, whose noise cancels in sums.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise: see
      `noise.Seed`.
    generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    TypeError: If an argument is not of its type; `participation` may not be `None`.
    ValueError: If a number is out of range.

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
    storage=storage,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )


def banded(
  participation: strategies.Participation,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  num_bands: Optional[int] = None,
  storage: noise.Storage = 'auto',
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Banded matrix factorization noise (arXiv:2306.08153).

  Args:
    participation: Who may take part when, and for how many rounds; one more is an
      error.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of z over `clip_norm`.
    clients_per_round: Denominator of the mean.
    num_bands: Bands of the strategy, the one with the least RMSE of those; the noise of
      `num_bands - 1` rounds is remembered. `None` means `min_separation`, the most
      there can be; they cost no sensitivity.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise: see
      `noise.Seed`.
    generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    TypeError: If an argument is not of its type; `participation` may not be `None`.
    ValueError: If a number is out of range.

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
  return from_strategy(
    accounting.mechanism.strategy_for('banded', participation, num_bands=num_bands),
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    storage=storage,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )


def from_strategy(
  strategy: strategies.Strategy,
  participation: strategies.Participation,
  *,
  clip_norm: float,
  noise_multiplier: float,
  clients_per_round: float,
  workload: Optional[strategies.Workload] = None,
  storage: noise.Storage = 'auto',
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """The noise of any strategy: BLT, banded, banded inverse, dense, ...

  Args:
    strategy: Strategy matrix C, for the number of rounds planned; one more is an error.
    participation: Who may take part when, in as many rounds.
    clip_norm: L2 bound of one client's contribution to one round.
    noise_multiplier: Standard deviation of z over `clip_norm`.
    clients_per_round: Denominator of the mean.
    workload: `None` to return the mean of each round; a `Workload` to return its rows
      applied to all means so far: prefix sums, with momentum, learning rates and weight
      decay if it has them.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise: see
      `noise.Seed`.
    generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory.

  Raises:
    TypeError: If an argument is not of its type; `participation` may not be `None`.
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
  return factory.from_query(
    queries.MatrixMechanismQuery,
    strategy,
    participation,
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients_per_round,
    workload=workload,
    storage=storage,
    seed=seed,
    generator=generator,
    record_aggregation_factory=record_aggregation_factory,
  )

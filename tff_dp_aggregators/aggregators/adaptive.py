"""Private means whose clip norm need not be known: it follows the clients' norms."""

from typing import Any, Optional

import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.noise import seeds


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
  storage: noise.Storage = 'auto',
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """Noise of any strategy, with a clip norm that adapts (arXiv:1905.03871).

  The counterpart of `gaussian_adaptive` and `tree_adaptive` of
  `tff.aggregators.DifferentiallyPrivateFactory`, whose default numbers it has. What
  each client says of its norm is one more number beside its value, and covered by
  `noise_multiplier`.

  The measurements have two more numbers under `dp_query_metrics`, `quantile_estimate`
  and `fraction_below`, both of them private estimates; `clip_norm` is that of the next
  round. A client whose value is not finite counts as a zero vector, thus as unclipped.

  Args:
    strategy: Strategy matrix C, for the number of rounds planned; one more is an error.
      `None` for independent noise in every round.
    participation: Who may take part when, and for how many rounds; a strategy needs
      one. Without a strategy, `None` serves any number of rounds and assumes that a
      client may take part in all of them.
    noise_multiplier: Standard deviation of z over the clip norm that would be as
      private as means and clip norms together; 0 adds no noise to either.
    clients_per_round: Denominator of the mean, and of the fraction of small norms.
    initial_clip_norm: L2 bound of one client's contribution in the first rounds, and
      the first estimate.
    target_quantile: Which fraction of clients is to be left unclipped.
    learning_rate: The estimate changes by a factor of at most exp(learning_rate) a
      round.
    clipped_count_stddev: Standard deviation of z for the count of small norms; `None`
      for what fits every cohort: a twentieth of `clients_per_round`, or as much as
      takes a tenth of the budget (`accounting.adaptive_clipping`).
    update_every: For how many rounds a clip norm is kept, while the estimate moves on;
      `None` means until the restart for a tree that restarts, and else 1.
    workload: `None` to return the mean of each round; a `Workload` to return its rows
      applied to all means so far.
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise: see
      `noise.Seed`.
    generator: 'chacha20', 'philox' or 'auto': see `noise.Seed`.
    record_aggregation_factory: Sums the clipped values, each with its count of -1/2 or
      1/2; `None` for `tff.aggregators.SumFactory`. It must not make either larger.

  Returns:
    An unweighted aggregation factory.

  Raises:
    TypeError: If an argument is not of its type; `participation` may not be `None`
      with a strategy.
    ValueError: If a number is out of range, `clipped_count_stddev` at most half of
      `noise_multiplier`, `update_every` not a multiple of the tree's restarts, or
      strategy, participation and workload not for the same rounds.

  Example:
    >>> aggregator = adaptive(noise_multiplier=1.0, clients_per_round=100)
    >>> import numpy as np
    >>> process = aggregator.create(tff.TensorType(np.float32, [2]))
    >>> values = [np.array([3.0, 4.0], np.float32)] * 100
    >>> output = process.next(process.initialize(), values)
    >>> clip_norm = output.measurements['dp_query_metrics']['clip_norm']
    >>> bool(clip_norm > 0.1)  # It was far too small.
    True
  """
  numbers: dict[str, Any] = {
    'initial_clip_norm': initial_clip_norm,
    'noise_multiplier': noise_multiplier,
    'clients_per_round': clients_per_round,
    'target_quantile': target_quantile,
    'learning_rate': learning_rate,
    'clipped_count_stddev': clipped_count_stddev,
    'update_every': update_every,
    'generator': generator,
  }
  if strategy is None and participation is not None:
    participation = strategies.participation.require(participation)
    strategy = strategies.Identity(participation.num_rounds)
  if strategy is None and workload is not None:
    raise ValueError(
      'a workload needs a participation as well: it is for a planned number of rounds; '
      f'got {workload}.'
    )

  next_seed = seeds.for_factory(seed)

  def build_query(record_specs: Any) -> queries.AdaptiveClippingQuery:
    if strategy is None:
      return queries.AdaptiveGaussianSumQuery(
        record_specs=record_specs, seed=next_seed(), **numbers
      )
    return queries.AdaptiveClippingQuery(
      strategy,
      strategies.participation.require(participation),
      record_specs=record_specs,
      workload=workload,
      storage=storage,
      seed=next_seed(),
      **numbers,
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )

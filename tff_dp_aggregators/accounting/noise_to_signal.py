"""The noise-to-signal ratio of a mechanism, for a model of a given size.

In round t a server releases the sum of the clients' clipped updates with noise of
standard deviation `noise_multiplier * clip_norm * ||row t of C^-1||` in each of the
model's d coordinates. So the norm of the noise is about sqrt(d) times that, and the
norm of the sum of m updates is at most m clip norms: their ratio is `by_round`. Above
1, a round's update is dominated by the noise, unless updates point the same way in many
rounds: `of_sums`, the ratio of sums over rounds, should be used to compare mechanisms.

Clip norms cancel, also adaptive ones. If parts have their own clip norms, the squared
norms of noise and of signal add up over the parts.
"""

import math
from collections.abc import Mapping
from typing import Callable, NamedTuple, Optional, Union

import numpy as np

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.base import checks


class Points(NamedTuple):
  """Noise-to-signal ratios of a run."""

  first_round: float
  worst_round: float  # The maximum over all rounds.
  last_round: float
  all_rounds: float  # The ratio for the sum of all rounds.

  def times(self, factor: float) -> 'Points':
    """All ratios times a factor: for another size of the model, or of the cohort."""
    return Points(*(factor * each for each in self))


# Number of trainable parameters; for a joint mechanism, by the name of the part.
Size = Union[int, Mapping[str, int]]


def by_round(
  mechanism: joint_mechanism.AnyMechanism, model_size: Size, clients_per_round: float
) -> np.ndarray:
  """Norm of each round's noise over the maximum norm of the clients' sum, shape [n].

  `model_size` is d, the number of trainable parameters; with parts, of each part by
  name. `clients_per_round` is m; with Poisson sampling, its expectation.
  """

  def of_round(one: mechanism_lib.Mechanism, clients: float) -> np.ndarray:
    return one.sum_noise_multiplier(clients) * one.strategy.noise_row_norms()

  return _ratio(of_round, mechanism, model_size, clients_per_round)


def of_sums(
  mechanism: joint_mechanism.AnyMechanism, model_size: Size, clients_per_round: float
) -> np.ndarray:
  """The same for sums over rounds 0 to t, of at most (t + 1) m clip norms."""

  def of_sum(one: mechanism_lib.Mechanism, clients: float) -> np.ndarray:
    rounds = np.arange(1, one.strategy.num_rounds + 1)
    noise = one.sum_noise_multiplier(clients)
    return noise * np.sqrt(one.strategy.per_query_error()) / rounds

  return _ratio(of_sum, mechanism, model_size, clients_per_round)


def summary(
  mechanism: joint_mechanism.AnyMechanism,
  model_size: Size,
  clients_per_round: float = 1,
) -> Points:
  """`by_round` of the first, the worst and the last round, and `of_sums` of all."""
  rounds = by_round(mechanism, model_size, clients_per_round)
  sums = of_sums(mechanism, model_size, clients_per_round)
  return Points(
    float(rounds[0]), float(rounds.max()), float(rounds[-1]), float(sums[-1])
  )


def remark(
  mechanism: joint_mechanism.AnyMechanism, model_size: Size, clients_per_round: float
) -> Optional[str]:
  """A warning if the first round's ratio is above 1; else `None`."""
  noise = summary(mechanism, model_size, clients_per_round)
  if noise.first_round <= 1:
    return None
  word = 'Warning' if noise.all_rounds > 1 else 'Note'
  size = model_size if isinstance(model_size, int) else sum(model_size.values())
  return (
    f'{word}: the noise of the first round is {noise.first_round:.3g} times as long as '
    f'the sum of {clients_per_round:g} clipped updates can be, that of all '
    f'{mechanism.strategy.num_rounds} rounds together {noise.all_rounds:.3g} times. '
    f'More clients a round, fewer than {size:,} parameters or a larger epsilon would '
    'lower both.'
  )


def _ratio(
  noise_of: Callable[[mechanism_lib.Mechanism, float], np.ndarray],
  mechanism: joint_mechanism.AnyMechanism,
  model_size: Size,
  clients_per_round: float,
) -> np.ndarray:
  """Ratios from a coordinate's noise; for parts, combined by their clip norms."""
  if isinstance(mechanism, mechanism_lib.Mechanism):
    model_size = checks.check_positive_int('model_size', model_size)
    clients = checks.check_positive('clients_per_round', clients_per_round)
    return math.sqrt(model_size) / clients * noise_of(mechanism, clients)
  names = {part.name for part in mechanism.parts}
  if not isinstance(model_size, Mapping) or set(model_size) != names:
    raise TypeError(
      f'model_size must be the number of parameters of each part, {sorted(names)}; got '
      f'{model_size!r}.'
    )
  noise_squares = sum(
    (
      part.clip_norm
      * _ratio(noise_of, part.mechanism, model_size[part.name], clients_per_round)
    )
    ** 2
    for part in mechanism.parts
  )
  signal_squares = sum(part.clip_norm**2 for part in mechanism.parts)
  return np.asarray(np.sqrt(noise_squares / signal_squares))

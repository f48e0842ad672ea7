"""Factories whose clients add shares of integer noise, for secure aggregation.

Nobody has to trust the server: it only sees masked numbers and the released sum.
`accounting.distributed_noise` plans bits and noise for a target. The clip norm is
fixed: an adaptive clip norm from counts with noise of the *server*, as in
`tff.learning.ddp_secure_aggregator`, has no guarantee against the server.
"""

from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import Required
from typing_extensions import TypedDict
from typing_extensions import Unpack

from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks


class DistributedMean(TypedDict, total=False):
  """Arguments of both functions; see `distributed_discrete_gaussian`."""

  clip_norm: Required[float]
  noise_multiplier: Required[float]
  record_aggregation_factory: factory.SumOfRecords
  clients_per_round: Required[float]
  bits: Required[int]
  min_clients: Optional[int]
  max_clients: Optional[int]
  max_wrap_probability: float
  beta: float


def distributed_discrete_gaussian(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[DistributedMean],
) -> factory.DPMeanFactory:
  """Discrete Gaussian shares of noise from each client (arXiv:2102.06387).

  Arguments are those of `gaussian` without seed and generator (clients draw keys) and:

  * `noise_multiplier`: Standard deviation of the noise of a *sum* of `min_clients` over
    `clip_norm`. `accounting.distributed_noise.plan` finds one for a privacy target.
  * `bits`: Sums are modulo 2^bits, from 2 to 30. `create` fails if these are too few.
  * `min_clients`: Minimum number of clients in a round; fewer add less noise, and the
    round fails. If some clients may collude with the server, count only the others,
    because only their shares are secret. `None` for `clients_per_round`.
  * `max_clients`: Maximum number of clients in a round; a sum of more may wrap around,
    and the round fails. `None` for `clients_per_round`.
  * `max_wrap_probability`: Maximum probability that an entry of a round's sum wraps
    around; 1e-6 by default. The grid is the finest for which this holds.
  * `beta`: Maximum probability that a client rounds a value again; 1e-6 by default.
  * `record_aggregation_factory`: Sums the shares; `None` for
    `tff.aggregators.SumFactory`, for simulations, and `secure_modular_sum(bits)` for
    secure aggregation.
  """
  return of_noise('discrete_gaussian', participation, **arguments)


def distributed_skellam(
  participation: Optional[strategies.Participation] = None,
  **arguments: Unpack[DistributedMean],
) -> factory.DPMeanFactory:
  """Skellam shares of noise from each client (arXiv:2110.04995).

  Sums of Skellam numbers have a Skellam distribution, so nothing is lost with many
  clients, nor on a fine grid. On coarse grids discrete Gaussians need less noise.
  Arguments are those of `distributed_discrete_gaussian`.

  Example:
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> aggregator = distributed_skellam(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=5, bits=16
    ... )
    >>> process = aggregator.create(tff.TensorType(np.float32, [10]))
    >>> updates = [np.zeros(10, np.float32)] * 5
    >>> output = process.next(process.initialize(), updates)
    >>> event = aggregators.extract_dp_event(output.state).all_rounds_so_far
    >>> type(event).__name__, event.num_clients
    ('SkellamDpEvent', 5)
  """
  return of_noise('skellam', participation, **arguments)


def secure_modular_sum(*, bits: int) -> tff.aggregators.SecureModularSumFactory:
  """Returns a `record_aggregation_factory` that sums shares securely, modulo 2^bits.

  `bits` are those of the mechanism. It runs where `secure_sum` does.
  """
  # The modulus has the dtype of shares, because TFF does not convert it.
  modulus = np.int64(2 ** checks.check_int('bits', bits, at_least=2))
  return tff.aggregators.SecureModularSumFactory(modulus)


def of_noise(
  noise: str,
  participation: Optional[strategies.Participation],
  *,
  clients_per_round: float,
  bits: int,
  min_clients: Optional[int] = None,
  max_clients: Optional[int] = None,
  dimension: Optional[int] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **numbers: Any,
) -> factory.DPMeanFactory:
  """Returns the factory for a kind of noise: 'skellam' or 'discrete_gaussian'.

  If `dimension`, the number of entries of a value, is given, `create` refuses others.
  """
  for name in numbers.keys() - DistributedMean.__annotations__.keys():
    raise TypeError(
      f'{name!r} is not an argument of this function. Clients draw keys of their own: '
      'leave out seed and generator.'
    )
  factory.check_clients_per_round(clients_per_round)
  minimum = _clients('min_clients', min_clients, clients_per_round)
  maximum = _clients('max_clients', max_clients, clients_per_round)
  count_sum_factory = None
  if type(record_aggregation_factory) is tff.aggregators.SecureModularSumFactory:
    # TFF has no public accessor; this package requires one exact version of TFF.
    modulus: Any = record_aggregation_factory._modulus
    if record_aggregation_factory._symmetric_range or int(modulus) % 2**bits:
      raise ValueError(
        f'record_aggregation_factory sums modulo {modulus}, and shares are modulo '
        f'2^{bits}: their sum would be wrong. Use secure_modular_sum(bits={bits}).'
      )
    # The sum only has to be exact modulo 2^bits.
    record_aggregation_factory = factory.ExactSum(record_aggregation_factory)
    count_sum_factory = tff.aggregators.SecureSumFactory(1, 0)

  def build_query(record_specs: Any) -> queries.DistributedSumQuery:
    query = queries.DistributedSumQuery(
      participation,
      noise=noise,
      min_clients=minimum,
      max_clients=maximum,
      bits=bits,
      record_specs=record_specs,
      **numbers,
    )
    padded = query.mechanism.dimension
    if dimension is not None and distributed_noise.padded(dimension) != padded:
      raise ValueError(
        f'the mechanism was planned for dimension={dimension}, and values here have '
        f'{padded} numbers once padded to a power of two: epsilon would be that of '
        'another. Plan it for as many as the model has.'
      )
    return query

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
    count_sum_factory=count_sum_factory,
    sample_specs=tf.TensorSpec([dimension or 1], tf.float32),
  )


def _clients(name: str, value: Optional[int], clients_per_round: float) -> int:
  if value is not None:
    return checks.check_positive_int(name, value)
  if clients_per_round != int(clients_per_round):
    raise ValueError(
      f'{name} must be given where clients_per_round is not a whole number; got '
      f'clients_per_round={clients_per_round}.'
    )
  return int(clients_per_round)

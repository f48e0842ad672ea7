"""What is said of integer noise: its grid, what rounding costs, and when sums wrap.

All of it follows from the mechanism (`accounting.distributed_noise`), and is relative
to the clip norm: the grid is.
"""

import math
from typing import Any, Optional, cast

from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib


def of(inputs: inputs_lib.Inputs) -> Optional[dict[str, Any]]:
  """What a statement says of it; `None` for noise of real numbers.

  Args:
    inputs: With a mechanism for all weights, and perhaps a ledger, whose rounds may
      have had more clients than the grid was planned for.

  Returns:
    A JSON-ready dict, described by `schema.load`.

  Example:
    >>> from tff_dp_aggregators import accounting, strategies
    >>> limits = strategies.Participation(4)
    >>> mechanism = accounting.Mechanism(
    ...   'skellam', limits, 2.0, min_clients=100, dimension=1000, bits=18
    ... )
    >>> said = of(inputs_lib.Inputs(mechanism, 1e-6))
    >>> said['padded_dimension'], said['wrap_probability'] <= 1e-6
    (1024, True)
    >>> round(said['rounding_factor'], 4)  # What one client sends is so much longer.
    1.0005
  """
  mechanism = cast(mechanism_lib.Mechanism, inputs.mechanism)
  noise = mechanism.noise
  if not noise.is_integer:
    return None
  grid = distributed_noise.design(
    noise.name,
    clip_norm=1.0,
    noise_multiplier=mechanism.noise_multiplier,
    **dict(noise.numbers),
  )
  entries = () if inputs.ledger is None else inputs.ledger.entries
  clients = max([grid.max_clients, *(each.cohort_reported or 0 for each in entries)])
  return {
    'padded_dimension': grid.dimension,
    'steps': grid.scaled_clip_norm,
    'local_stddev': grid.local_stddev,
    'l2_sensitivity': grid.l2_sensitivity,
    'l1_sensitivity': grid.l1_sensitivity,
    'rounding_factor': grid.l2_sensitivity / grid.scaled_clip_norm,
    'rounding_error': math.sqrt(clients) / 2 / grid.scaled_clip_norm,
    'beta': grid.beta,
    'clients': clients,
    'wrap_probability': grid.wrap_probability_with(clients),
  }

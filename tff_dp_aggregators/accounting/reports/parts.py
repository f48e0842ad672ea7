"""What is said of a mechanism, or of those of all parts of a model and all together."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, cast

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import joint_mechanism as joint_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib

# From a mechanism, its clip norm and what else is known to JSON-ready values.
Describe = Callable[
  [mechanism_lib.Mechanism, Optional[float], inputs_lib.Inputs], dict[str, Any]
]


def mechanism_of(
  inputs: inputs_lib.Inputs, clip_norm: Optional[float], describe: Describe
) -> dict[str, Any]:
  """What is said of the mechanism, or of those of the parts and of all together.

  Args:
    inputs: What the statement is made of.
    clip_norm: Of a mechanism of all weights.
    describe: Says it of one mechanism.

  Returns:
    JSON-ready, described by `schema.load`.
  """
  if not inputs.mechanism.parts:
    alone = cast(mechanism_lib.Mechanism, inputs.mechanism)
    return describe(alone, clip_norm, inputs)
  joint = cast(joint_lib.JointMechanism, inputs.mechanism)
  shares, of_mu_squared = joint.shares, joint.shares_of_mu_squared
  parts = []
  for part in joint.parts:
    weights = (inputs.weights_of_parts or {}).get(part.name)
    of_part = dataclasses.replace(inputs, mechanism=part.mechanism, ledger=None)
    parts.append(
      {
        'part': part.name,
        'patterns': list(part.weights),
        'weights': None if weights is None else list(weights),
        'shapes': None if weights is None else list(weights.values()),
        'num_parameters': None if weights is None else _size(weights.values()),
        'share': shares[part.name],
        'share_of_mu_squared': of_mu_squared.get(part.name),
        **describe(part.mechanism, part.clip_norm, of_part),
      }
    )
  return {
    'name': joint.name,
    'num_rounds': joint.participation.num_rounds,
    'noise_site': joint.noise_site,
    'strategy_checksum': joint.strategy.checksum,
    'adaptive_clipping': None,
    'noise_multiplier': None,
    'sensitivity_squared': None,
    'sensitivity_kind': joint.sensitivity_kind,
    'effective_noise_multiplier': joint.effective_noise_multiplier,
    'noise_source': inputs.noise_source,
    'parts': parts,
  }


def _size(shapes: Iterable[Sequence[int]]) -> int:
  """How many numbers weights of these shapes have."""
  return sum(math.prod(shape) for shape in shapes)


def strategy_of(
  mechanism: joint_lib.AnyMechanism,
  describe: Callable[[strategies.Strategy], Optional[dict[str, Any]]],
) -> Optional[dict[str, Any]]:
  """The strategy as JSON-ready values; with parts, those of all of them by name.

  Args:
    mechanism: Which one.
    describe: Writes a strategy; `None` of a large one.

  Returns:
    `None` if it, or one of them, is large.
  """
  if not mechanism.parts:
    return describe(cast(mechanism_lib.Mechanism, mechanism).strategy)
  found = {part.name: describe(part.mechanism.strategy) for part in mechanism.parts}
  return None if None in found.values() else found

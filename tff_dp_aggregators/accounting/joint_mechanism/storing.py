"""A mechanism that a run or a report has, joint or not."""

import json
from typing import Any, Optional, Union, cast

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.joint_mechanism import joint
from tff_dp_aggregators.accounting.joint_mechanism import strategy as strategy_lib

# What a run may have.
AnyMechanism = Union[mechanism_lib.Mechanism, joint.JointMechanism]


# Of which it has a strategy, or strategies.
AnyStrategy = Union[strategies.Strategy, strategy_lib.JointStrategy]


def stored(
  data: dict[str, Any], strategy: Optional[AnyStrategy] = None
) -> AnyMechanism:
  """The mechanism that a configuration or a report has, joint or not.

  Args:
    data: As `to_json` of either wrote it.
    strategy: Its strategy, or strategies; `None` to find them anew.

  Raises:
    ValueError: As `from_json` of either does.
  """
  if _is_joint(data):
    return joint.JointMechanism.from_json(
      data, cast(Optional[strategy_lib.JointStrategy], strategy)
    )
  return mechanism_lib.Mechanism.from_json(
    data, cast(Optional[strategies.Strategy], strategy)
  )


def load_strategy(data: dict[str, Any], path: str) -> AnyStrategy:
  """The strategy, or strategies, of a stored mechanism, from a file of a run.

  Args:
    data: The mechanism, as `to_json` wrote it.
    path: Of the file.

  Raises:
    OSError: If it cannot be read.
    ValueError: If it is no such file, or of other parts.
  """
  if _is_joint(data):
    return strategy_lib.JointStrategy.load(
      path, [part['name'] for part in data['parts']]
    )
  return strategies.Strategy.load(path)


def strategy_from_json(data: dict[str, Any], written: dict[str, Any]) -> AnyStrategy:
  """The strategy, or strategies, that a report has of a mechanism in it.

  Args:
    data: The mechanism, as `to_json` wrote it.
    written: The strategy as `Strategy.to_json` wrote it; of a joint mechanism those of
      its parts by name.

  Raises:
    ValueError: If it is none.
  """
  if not _is_joint(data):
    return strategies.Strategy.from_json(json.dumps(written))
  return strategy_lib.JointStrategy(
    {
      part['name']: strategies.Strategy.from_json(json.dumps(written[part['name']]))
      for part in data['parts']
    }
  )


def _is_joint(data: dict[str, Any]) -> bool:
  return data.get('name') == joint.NAME

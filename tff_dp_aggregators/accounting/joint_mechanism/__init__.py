"""Parts of a model with mechanisms of their own, under one name and one accountant.

A client takes part in all parts of a model at once, so what its rounds cost is the
composition of what the parts cost. Each part bounds what a client contributes to it by
a clip norm of its own, and has its own strategy and noise. Gaussian parts together are
one Gaussian, whose mu^2 is the sum of theirs; with Laplace noise among them, epsilon is
composed numerically.

A target for all of them does not say how to divide it: `JointMechanism.for_target`
takes shares.
"""

from tff_dp_aggregators.accounting.joint_mechanism.joint import JointMechanism
from tff_dp_aggregators.accounting.joint_mechanism.part import JointPart
from tff_dp_aggregators.accounting.joint_mechanism.storing import AnyMechanism
from tff_dp_aggregators.accounting.joint_mechanism.storing import AnyStrategy
from tff_dp_aggregators.accounting.joint_mechanism.storing import load_strategy
from tff_dp_aggregators.accounting.joint_mechanism.storing import stored
from tff_dp_aggregators.accounting.joint_mechanism.storing import strategy_from_json
from tff_dp_aggregators.accounting.joint_mechanism.strategy import JointStrategy

__all__ = [
  'AnyMechanism',
  'AnyStrategy',
  'JointMechanism',
  'JointPart',
  'JointStrategy',
  'load_strategy',
  'stored',
  'strategy_from_json',
]


def __dir__() -> list[str]:
  return sorted(__all__)

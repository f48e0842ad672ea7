"""A kind is built for a workload as its own optimiser does, if it adapts at all.

Claims: under momentum, kinds that adapt have less error than without being told, and
the sensitivity that the limits give; others are what they are; prefix sums in any form
are the default.
"""

import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import registry

_LIMITS = strategies.Participation(32, min_separation=8)
_MOMENTUM = strategies.Workload(32, momentum=0.9)


@pytest.mark.few(4)
@pytest.mark.parametrize('name', sorted(registry.KINDS))
def test_kinds_that_adapt_have_less_error_under_the_workload(name):
  kind = registry.kind(name)
  if not kind.adapts:
    assert kind.build_for(_LIMITS, _MOMENTUM) == kind.build(_LIMITS)
    return
  options = {'num_bands': 4} if name.endswith('banded_inverse') else {}
  adapted = kind.build_for(_LIMITS, _MOMENTUM, **options)
  general = kind.build(_LIMITS, **options)
  assert isinstance(adapted, kind.strategy)
  assert adapted.rmse(_LIMITS, _MOMENTUM) < 0.995 * general.rmse(_LIMITS, _MOMENTUM)


@pytest.mark.parametrize(
  'workload', [None, strategies.Workload(32), strategies.Workload(32, 0.0, (1.0,) * 32)]
)
def test_prefix_sums_in_any_form_are_the_default(workload):
  kind = registry.kind('toeplitz')
  assert kind.build_for(_LIMITS, workload, num_bands=4) == kind.build(
    _LIMITS, num_bands=4
  )

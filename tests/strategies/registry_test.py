"""Tests of building strategies of each registered kind for a workload."""

import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import registry

_LIMITS = strategies.Participation(32, min_separation=8)
_MOMENTUM = strategies.Workload(32, momentum=0.9)


@pytest.mark.few(4)
@pytest.mark.parametrize('name', sorted(registry.KINDS))
def test_kinds_that_adapt_have_less_error_and_others_ignore_workload(name):
  kind = registry.kind(name)
  if not kind.adapts:
    assert kind.build_for(_LIMITS, _MOMENTUM) == kind.build(_LIMITS)
    return
  options = {'num_bands': 4} if name.endswith('banded_inverse') else {}
  adapted = kind.build_for(_LIMITS, _MOMENTUM, **options)
  unadapted = kind.build(_LIMITS, **options)
  assert isinstance(adapted, kind.strategy)
  assert adapted.rmse(_LIMITS, _MOMENTUM) < 0.995 * unadapted.rmse(_LIMITS, _MOMENTUM)


@pytest.mark.parametrize(
  'workload', [None, strategies.Workload(32), strategies.Workload(32, 0.0, (1.0,) * 32)]
)
def test_build_for_prefix_sums_equals_build(workload):
  kind = registry.kind('toeplitz')
  assert kind.build_for(_LIMITS, workload, num_bands=4) == kind.build(
    _LIMITS, num_bands=4
  )

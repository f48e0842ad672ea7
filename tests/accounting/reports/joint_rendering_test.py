"""What reports say of joint mechanisms."""

import numpy as np
import pytest

from tests.accounting.reports import rendered
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import rendering

LIMITS = rendered.PARTICIPATION
OF_BOUND = 'upper bound: the exact privacy curve of a Gaussian mechanism'
EXACT = 'exact: the privacy curve of a Gaussian mechanism'


def _joint(*kinds, shares=None):
  parts = [
    accounting.JointPart(
      f'p{number}', f'{number}', accounting.Mechanism(kind, LIMITS, 9.0), 0.5
    )
    for number, kind in enumerate(kinds)
  ]
  if shares is None:
    return accounting.JointMechanism(tuple(parts))
  return accounting.JointMechanism.for_target(
    parts, 6.0, rendered.DELTA, shares=dict(zip(('p0', 'p1', 'p2'), shares))
  )


SAME = rendered.build(_joint('banded', 'banded'), with_curves=True)
OTHER = rendered.build(_joint('tree', 'banded'), with_curves=True)
# Of contributions that may cancel each other, four of a client.
_RANDOM = np.tril(np.random.default_rng(0).uniform(-1, 1, (20, 20)), -1) + np.eye(20)
OF_BOUND_ALONE = accounting.Mechanism(
  'file', LIMITS, 9.0, strategy=strategies.Dense(20, _RANDOM)
)


@pytest.mark.parametrize('output_format', (*rendered.PEOPLE, 'json'))
def test_epsilon_is_exact_or_a_bound_everywhere(output_format):
  read = {
    'json': lambda built: rendered.plain(rendering.render(built, 'json')),
  }.get(output_format, lambda built: rendered.read(built, output_format))
  exact, bound = read(SAME), read(OTHER)
  assert rendered.plain(EXACT) in exact and rendered.plain(OF_BOUND) not in exact
  assert rendered.plain(OF_BOUND) in bound and rendered.plain(EXACT) not in bound
  if output_format == 'json':
    return
  assert 'nosmallerepsilonholds' in exact and 'sothismuisanupperbound' not in exact
  assert 'nosmallerepsilonholds' not in bound and 'sothismuisanupperbound' in bound
  assert rendered.plain('epsilon (exact)') in exact
  assert rendered.plain('epsilon (exact)') not in bound
  assert rendered.plain('epsilon (exact, of an upper bound') in bound


def test_a_bound_of_all_weights_is_called_one():
  assert OF_BOUND_ALONE.sensitivity_kind == 'bound'
  built = rendered.build(OF_BOUND_ALONE)
  (listed,) = [e for e in built['guarantee']['accountants'] if e['name'] == 'exact']
  assert listed['kind'].startswith(OF_BOUND)
  rendered.says(built, 'markdown', 'so that a smaller epsilon may hold', OF_BOUND)

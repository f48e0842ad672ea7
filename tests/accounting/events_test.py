"""Privacy events of rounds and runs, their simplification, and their JSON."""

import json
import math

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events

Gaussian = dp_accounting.GaussianDpEvent
Composed = dp_accounting.ComposedDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
NoOp = dp_accounting.NoOpDpEvent
NonPrivate = dp_accounting.NonPrivateDpEvent
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(2.0))
LAPLACE = dp_accounting.LaplaceDpEvent(3.0)

MECHANISMS = [
  (strategies.Identity(30), strategies.Participation(30, 7)),
  (strategies.BinaryTree(33), strategies.Participation(33, 5, 4)),
  (strategies.BandedToeplitz.square_root(40, 40), strategies.Participation(40, 3, 5)),
  (strategies.BandedToeplitz(25, (1.0, -0.5, 0.3)), strategies.Participation(25, 4)),
]
each_mechanism = pytest.mark.parametrize('strategy, participation', MECHANISMS)


@each_mechanism
def test_run_event_is_one_gaussian_with_total_sensitivity(strategy, participation):
  event = events.run_event(strategy, participation, 7.0)
  assert event == Gaussian(7.0 / strategy.sensitivity(participation))
  assert type(event.noise_multiplier) is float


@each_mechanism
def test_round_noise_multipliers_compose_to_run_event(strategy, participation):
  by_round, cumulative = events.round_noise_multipliers(strategy, participation, 3.0)
  profile = strategy.sensitivity_squared_by_round(participation)
  accountant = accountants.GaussianAccountant()
  for t, noise_multiplier in enumerate(by_round):
    accountant.compose(Gaussian(noise_multiplier))
    assert accountant.mu == pytest.approx(math.sqrt(profile[t]) / 3.0, rel=1e-13)
    assert accountant.mu == pytest.approx(1 / cumulative[t], rel=1e-13)
  run = events.run_event(strategy, participation, 3.0)
  assert accountant.mu == pytest.approx(accountants.gdp_mu(run), rel=1e-13)
  assert cumulative[-1] == pytest.approx(run.noise_multiplier, rel=1e-14)
  assert np.all(np.diff(cumulative) <= 0)


def test_zero_noise_multiplier_gives_nonprivate_event():
  tree, limits = strategies.BinaryTree(8), strategies.Participation(8)
  run = events.run_event(tree, limits, 0.0)
  assert run == NonPrivate()
  assert accountants.epsilon(run, 1e-6) == math.inf
  by_round, cumulative = events.round_noise_multipliers(tree, limits, 0)
  assert np.all(cumulative == 0) and by_round[0] == 0
  assert events.simplify(Composed([Gaussian(z) for z in by_round])) == NonPrivate()


@pytest.mark.parametrize('function', [events.run_event, events.round_noise_multipliers])
def test_noise_multiplier_out_of_range_and_no_participation_are_refused(function):
  for noise_multiplier in (-1.0, math.nan, math.inf):
    with pytest.raises(ValueError, match='noise_multiplier'):
      function(strategies.Identity(3), strategies.Participation(3), noise_multiplier)
  with pytest.raises(TypeError, match='participation'):
    function(strategies.Identity(3), None, 1.0)


@pytest.mark.parametrize(
  'event, expected',
  [
    (Gaussian(1e-200), NonPrivate()),  # The square underflows, to the safe side.
    (Composed([NoOp(), Gaussian(math.inf)]), NoOp()),
    (Repeated(NonPrivate(), 0), NoOp()),
    (Composed([Repeated(Repeated(Gaussian(6.0), 2), 2)] * 9), Gaussian(1.0)),
    (Composed([Gaussian(0.0), LAPLACE]), NonPrivate()),
    (Repeated(Repeated(SAMPLED, 3), 2), Repeated(SAMPLED, 6)),
    (Composed([SAMPLED]), SAMPLED),
    (
      Composed([LAPLACE, Gaussian(2.0), SAMPLED, NoOp(), Gaussian(2.0), LAPLACE]),
      Composed([LAPLACE, SAMPLED, LAPLACE, Gaussian(math.sqrt(2))]),
    ),
    (
      Composed([Gaussian(1.0), dp_accounting.UnsupportedDpEvent()]),
      Composed([dp_accounting.UnsupportedDpEvent(), Gaussian(1.0)]),
    ),
  ],
  ids=str,
)
def test_simplify_combines_gaussians_and_keeps_other_events(event, expected):
  simplified = events.simplify(event)
  if isinstance(expected, Gaussian):
    assert simplified.noise_multiplier == pytest.approx(expected.noise_multiplier)
  elif isinstance(expected, Composed):
    assert simplified.events[:-1] == expected.events[:-1]
    assert simplified.events[-1].noise_multiplier == pytest.approx(
      expected.events[-1].noise_multiplier
    )
  else:
    assert simplified == expected


@pytest.mark.parametrize(
  'event',
  [
    Gaussian(1 / 3),
    Gaussian(math.inf),
    NonPrivate(),
    Repeated(SAMPLED, 9),
    dp_accounting.SampledWithoutReplacementDpEvent(100, 7, Gaussian(2.0)),
    Repeated(events.AllocatedDpEvent(7, 5, Gaussian(1.5)), 3),
    events.EpsilonDeltaDpEvent(0.5, 1e-7),
    Composed([SAMPLED, LAPLACE, Gaussian(3.0)]),
  ],
  ids=str,
)
def test_json_round_trip_is_exact(event):
  written = json.loads(json.dumps(events.to_json(event), allow_nan=False))
  assert events.from_json(written) == events.simplify(event)
  assert events.to_json(events.from_json(written)) == written


@pytest.mark.parametrize(
  'schema',
  [
    sampling.BallsInBins(12, 4),
    sampling.RandomAllocation(12, 5),
  ],
  ids=str,
)
def test_mixture_event_json_has_checksum_instead_of_strategy(schema):
  strategy = strategies.BandedToeplitz.square_root(12, 3)
  if isinstance(schema, sampling.RandomAllocation):
    strategy = strategies.Identity(12)
  event = run_events.event(strategy, schema, 1.5)
  written = json.loads(json.dumps(events.to_json(event)))
  assert written['strategy_checksum'] == strategy.checksum
  read = events.from_json(written)
  assert read == event and hash(read) == hash(event)
  assert read.strategy is None and event.strategy is strategy
  assert events.to_json(read) == written
  # Without the strategy, its bound is accounted for, alone and composed.
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  for first, second in ((read, event.bound), (Composed([read] * 2), [event.bound] * 2)):
    bound = Composed(second) if isinstance(second, list) else second
    epsilon = accountants.epsilon(first, 1e-6, relation=relation)
    assert epsilon == accountants.epsilon(bound, 1e-6, 'pld', relation)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='monte_carlo'):
    accountants.epsilon(read, 1e-6, 'monte_carlo', relation)
  for change in ({'strategy_checksum': 'sha256:0'}, {'noise_multiplier': 1.6}):
    assert events.from_json({**written, **change}) != event


def test_mixture_event_refuses_wrong_strategy_checksum():
  strategy = strategies.Identity(4)
  with pytest.raises(ValueError, match="strategy_checksum is 'x'"):
    events.BallsInBinsDpEvent(strategy, 2, 1.0, Gaussian(1.0), 'x')
  with pytest.raises(ValueError, match="strategy_checksum is ''"):
    events.BallsInBinsDpEvent(None, 2, 1.0, Gaussian(1.0))


def test_to_json_refuses_unsupported_events():
  event = Composed([dp_accounting.UnsupportedDpEvent(), Gaussian(1.0)])
  with pytest.raises(ValueError, match='cannot be written'):
    events.to_json(event)


@pytest.mark.parametrize(
  'data, message',
  [
    ({'type': 'UnsupportedDpEvent'}, 'UnsupportedDpEvent'),
    ({'type': ['x']}, 'type .*x'),
    ({'type': 'EpsilonDeltaDpEvent', 'epsilon': 1.0, 'delta': 1.0}, 'delta'),
    (
      {'type': 'EpsilonDeltaDpEvent', 'epsilon': -1.0, 'delta': 0.0},
      'not negative; got',
    ),
    ({'type': 'GaussianDpEvent'}, 'its fields'),
    ({'type': 'GaussianDpEvent', 'noise_multiplier': '3'}, 'noise_multiplier'),
    ({'type': 'GaussianDpEvent', 'noise_multiplier': -3.0}, 'noise_multiplier'),
    ([], 'as an object'),
  ],
)
def test_from_json_refuses_invalid_events(data, message):
  with pytest.raises(ValueError, match=message):
    events.from_json(data)

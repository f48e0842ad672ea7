"""SpentByRound: an upper bound on epsilon after each round."""

import math

import dp_accounting
import pytest

from tests.accounting import mechanisms
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import spent_by_round

DELTA = 1e-6


def _epsilon(mechanism, rounds, accountant=None):
  """Epsilon of the events that a ledger has after so many rounds."""
  event = dp_accounting.ComposedDpEvent(list(mechanism.round_events[:rounds]))
  return accountants.epsilon(event, DELTA, accountant, mechanism.relation)


@pytest.fixture(
  scope='module', params=['poisson', 'cyclic', 'add_or_remove', 'replace_one', 'parts']
)
def mechanism(request):
  return mechanisms.BY_NAME[request.param]


@pytest.fixture(scope='module')
def by_round(mechanism):
  spent = spent_by_round.SpentByRound(mechanism, DELTA)
  return [spent.after(rounds) for rounds in range(21)]


def test_spent_is_upper_bound_on_epsilon(mechanism, by_round):
  for rounds in (1, 11, 19):
    assert by_round[rounds] >= _epsilon(mechanism, rounds) > 0


def test_spent_after_last_round_equals_mechanism_epsilon(mechanism, by_round):
  assert by_round[-1] == mechanism.epsilon(DELTA) == _epsilon(mechanism, 20)


def test_spent_never_decreases_and_is_at_most_quick_bound(mechanism, by_round):
  assert by_round[0] == 0 < by_round[1]
  assert by_round == sorted(by_round)
  assert len(set(by_round)) > 2
  for rounds in range(1, 21):
    end = rounds
    if mechanism.parts:  # One part spends more until a client's next turn.
      end = -(-rounds // 4) * 4
    quick_bound = _epsilon(mechanism, end, accountants.QUICK_BOUND)
    assert by_round[rounds] <= quick_bound * (1 + 1e-12)


def test_spent_does_not_depend_on_earlier_calls(mechanism, by_round):
  spent = spent_by_round.SpentByRound(mechanism, DELTA)
  assert [spent.after(rounds) for rounds in (20, 13)] == [by_round[20], by_round[13]]


def test_spent_stays_within_target():
  scheme = sampling.PoissonSampling(50, 0.05)
  mechanism = accounting.Mechanism.for_target('gaussian', scheme, 2.0, DELTA)
  spent = spent_by_round.SpentByRound(mechanism, DELTA)
  assert spent.after(49) <= spent.after(50) <= 2.0
  assert spent.after(50) == pytest.approx(2.0, rel=1e-3)


def test_unsupported_mechanism_delta_or_round_is_refused():
  limits = accounting.Mechanism('gaussian', strategies.Participation(5), 1.0)
  with pytest.raises(ValueError, match='without sampling'):
    spent_by_round.SpentByRound(limits, DELTA)
  sampled = mechanisms.BY_NAME['poisson']
  with pytest.raises(ValueError, match='delta'):
    spent_by_round.SpentByRound(sampled, 1.0)
  spent = spent_by_round.SpentByRound(sampled, DELTA)
  with pytest.raises(ValueError, match='rounds must be .* from 0 to 20'):
    spent.after(21)


def test_rounds_within_is_all_or_none_for_balls_in_bins():
  scheme = sampling.BallsInBins(20, cycle_length=5)
  mechanism = accounting.Mechanism('gaussian', scheme, noise_multiplier=3.0)
  epsilon = mechanism.epsilon(DELTA)
  assert mechanism.rounds_within(1.01 * epsilon, DELTA) == 20
  assert mechanism.rounds_within(0.5 * epsilon, DELTA) == 0


def test_spent_is_infinite_without_noise():
  mechanism = accounting.Mechanism('gaussian', sampling.PoissonSampling(5, 0.1), 0.0)
  spent = spent_by_round.SpentByRound(mechanism, DELTA)
  assert [spent.after(rounds) for rounds in (0, 1, 5)] == [0, math.inf, math.inf]

"""What a mechanism whose rounds compose has spent after each round: a bound."""

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
  """Of the events that a ledger has of so many rounds."""
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


def test_it_is_a_bound_after_every_round(mechanism, by_round):
  for rounds in (1, 11, 19):
    assert by_round[rounds] >= _epsilon(mechanism, rounds) > 0


def test_after_the_last_round_it_is_that_of_the_report(mechanism, by_round):
  assert by_round[-1] == mechanism.epsilon(DELTA) == _epsilon(mechanism, 20)


def test_it_never_falls_and_is_at_most_the_quick_bound(mechanism, by_round):
  assert by_round[0] == 0 < by_round[1]
  assert by_round == sorted(by_round)
  assert len(set(by_round)) > 2
  for rounds in range(1, 21):
    end = rounds
    if mechanism.parts:  # Of which one spends more until the next turn.
      end = -(-rounds // 4) * 4
    quick = _epsilon(mechanism, end, accountants.QUICK_BOUND)
    assert by_round[rounds] <= quick * (1 + 1e-12)


def test_it_depends_on_nothing_but_the_round(mechanism, by_round):
  alone = spent_by_round.SpentByRound(mechanism, DELTA)
  assert [alone.after(rounds) for rounds in (20, 13)] == [by_round[20], by_round[13]]


def test_no_round_is_above_the_target():
  scheme = sampling.PoissonSampling(50, 0.05)
  mechanism = accounting.Mechanism.for_target('gaussian', scheme, 2.0, DELTA)
  spent = spent_by_round.SpentByRound(mechanism, DELTA)
  assert spent.after(49) <= spent.after(50) <= 2.0
  assert spent.after(50) == pytest.approx(2.0, rel=1e-3)


def test_what_it_is_not_for_is_refused():
  limits = accounting.Mechanism('gaussian', strategies.Participation(5), 1.0)
  with pytest.raises(ValueError, match='without sampling'):
    spent_by_round.SpentByRound(limits, DELTA)
  sampled = mechanisms.BY_NAME['poisson']
  with pytest.raises(ValueError, match='delta'):
    spent_by_round.SpentByRound(sampled, 1.0)
  spent = spent_by_round.SpentByRound(sampled, DELTA)
  with pytest.raises(ValueError, match='rounds'):
    spent.after(21)


def test_rounds_that_do_not_compose_are_within_a_target_together():
  drawn = sampling.BallsInBins(20, cycle_length=5)
  mechanism = accounting.Mechanism('gaussian', drawn, noise_multiplier=3.0)
  epsilon = mechanism.epsilon(DELTA)
  assert mechanism.rounds_within(1.01 * epsilon, DELTA) == 20
  assert mechanism.rounds_within(0.5 * epsilon, DELTA) == 0


def test_without_noise_it_is_infinite():
  bare = accounting.Mechanism('gaussian', sampling.PoissonSampling(5, 0.1), 0.0)
  spent = spent_by_round.SpentByRound(bare, DELTA)
  assert [spent.after(rounds) for rounds in (0, 1, 5)] == [0, math.inf, math.inf]

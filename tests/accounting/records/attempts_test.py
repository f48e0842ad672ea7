"""A ledger's attempts against the reporting goal that a schedule states.

Claims: a ledger whose aborted attempts missed the stated goal, and whose rounds reached
it, is accepted; one with another goal, with attempts where there is no goal, or with a
round that should have been aborted is refused. What states no goal refuses nothing.
"""

import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators.accounting.records import ledger


@pytest.fixture
def read(tmp_path):
  """Two rounds of 9 clients, the second after an attempt of 5 with a goal of 8."""
  path = str(tmp_path / 'ledger.jsonl')
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
    writer.append_aborted(
      round=1, attempt=0, cohort_requested=10, cohort_reported=5, reporting_goal=8
    )
    ledgers.append(writer)
  return ledger.read(path)


@pytest.mark.parametrize(
  'schedule', [{'reporting_goal': 8}, {'schedule': 'replay'}, {}, None, 'unknown']
)
def test_what_the_schedule_says_is_accepted(read, schedule):
  ledger.check_schedule(read, schedule)


def test_another_goal_or_none_is_refused(read):
  for goal in (7, None):
    with pytest.raises(ValueError, match=f'at round 1 .* 8, but that of .* is {goal}:'):
      ledger.check_schedule(read, {'reporting_goal': goal})


def test_a_round_that_should_have_been_aborted_is_refused(tmp_path):
  path = str(tmp_path / 'ledger.jsonl')
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, cohort_reported=7)
  with pytest.raises(ValueError, match='in round 0 of the ledger 7 clients reported'):
    ledger.check_schedule(ledger.read(path), {'reporting_goal': 8})

"""The statement says what ran, and its numbers are those of the accountants."""

import json

import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import ledger
from tff_dp_aggregators.accounting import statement

PARTICIPATION = strategies.Participation(20, min_separation=5)
MECHANISM = accounting.Mechanism('banded', PARTICIPATION, noise_multiplier=2.0)


def _entries(path, num_rounds, mechanism=MECHANISM):
  multipliers, _ = events.round_noise_multipliers(
    mechanism.strategy, mechanism.participation, mechanism.noise_multiplier
  )
  with ledger.LedgerWriter(str(path), delta=1e-6) as writer:
    for multiplier in multipliers[:num_rounds]:
      writer.append(
        event=events.dp_accounting.GaussianDpEvent(float(multiplier)),
        cohort_requested=10,
        cohort_reported=10,
        clip_norm=0.5,
        noise_multiplier=mechanism.noise_multiplier,
        strategy_checksum=mechanism.strategy.checksum,
      )
  return ledger.read(str(path)).entries


def test_published_gboard_run():
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = statement.build(gboard, 1e-10)
  guarantee, mechanism = built['guarantee'], built['mechanism']
  assert mechanism['sensitivity_squared'] == pytest.approx(79, rel=1e-14)
  assert guarantee['zcdp_rho'] == pytest.approx(0.8061224489795918, rel=1e-12)
  assert guarantee['gdp_mu'] == pytest.approx(1.2697420596165128, rel=1e-12)
  assert guarantee['epsilon'] == pytest.approx(8.526093443452096, rel=1e-9)
  assert guarantee['epsilon_rdp'] == pytest.approx(8.898605012965973, rel=1e-9)
  assert guarantee['epsilon_zcdp'] == pytest.approx(9.422770368323311, rel=1e-12)
  assert guarantee['epsilon_pld'] == pytest.approx(8.526093518188764, rel=1e-6)


def test_both_noise_multipliers_stand_under_their_own_names():
  mechanism = statement.build(MECHANISM, 1e-6)['mechanism']
  assert mechanism['noise_multiplier'] == 2.0
  # Four participations of unit columns.
  assert mechanism['sensitivity'] == pytest.approx(2.0, rel=1e-12)
  assert mechanism['effective_noise_multiplier'] == pytest.approx(1.0, rel=1e-12)


def test_a_run_cut_short_is_charged_for_its_rounds_alone(tmp_path):
  entries = _entries(tmp_path / 'ledger.jsonl', num_rounds=7)
  built = statement.build(MECHANISM, 1e-6, entries=entries)
  assert built['run']['rounds_completed'] == 7
  assert built['run']['rounds_planned'] == 20
  prefix = MECHANISM.strategy.sensitivity_squared_by_round(PARTICIPATION)[6]
  expected = accounting.gaussian.epsilon_of(prefix**0.5 / 2.0, 1e-6)
  assert built['guarantee']['epsilon'] == pytest.approx(expected, rel=1e-12)
  planned = accountants.epsilon(MECHANISM.event, 1e-6)
  assert built['run']['epsilon_planned'] == planned
  assert built['guarantee']['epsilon'] < planned
  text = statement.to_markdown(built)
  assert 'This run stopped after 7 of 20 rounds.' in text
  assert f'In any case epsilon = {planned:.4f}' in text
  assert '| rounds | 7 of 20 |' in text


def test_a_complete_run_spends_what_was_planned(tmp_path):
  entries = _entries(tmp_path / 'ledger.jsonl', num_rounds=20)
  built = statement.build(MECHANISM, 1e-6, entries=entries)
  planned = statement.build(MECHANISM, 1e-6)['guarantee']['epsilon']
  assert built['guarantee']['epsilon'] == pytest.approx(planned, rel=1e-12)
  assert 'stopped' not in statement.to_markdown(built)


def test_a_ledger_of_another_mechanism_is_refused(tmp_path):
  other = accounting.Mechanism('tree', PARTICIPATION, 2.0)
  entries = _entries(tmp_path / 'ledger.jsonl', num_rounds=3, mechanism=other)
  with pytest.raises(ValueError, match='round 0 of the ledger used strategy'):
    statement.build(MECHANISM, 1e-6, entries=entries)


def test_markdown_states_what_a_reviewer_asks_for():
  text = statement.to_markdown(
    statement.build(MECHANISM, 1e-6, clip_norm=0.5, enforced_by='the scheduler')
  )
  for claim in (
    'central differential privacy',
    'one client with all its data',
    'zeroing out',
    'all intermediate models',
    'choosing hyperparameters',
    '| clip norm (L2) | 0.5000 |',
    'any two rounds of a client differ by at least | 5 (4 rounds between them)',
    'the scheduler',
    MECHANISM.strategy.checksum,
    'RDP, upper bound',
    'dp-accounting 0.4.3',
  ):
    assert claim in text, claim


@pytest.mark.parametrize('name', accounting.mechanism.NAMES)
def test_every_mechanism_is_written_in_json_without_infinities(name):
  built = statement.build(accounting.Mechanism(name, PARTICIPATION, 1.0), 1e-6)
  assert json.loads(json.dumps(built, allow_nan=False)) == built
  assert '|' in statement.to_markdown(built)


def test_without_noise_there_is_no_guarantee():
  built = statement.build(accounting.Mechanism('tree', PARTICIPATION, 0.0), 1e-6)
  assert built['guarantee']['epsilon'] is None
  assert 'Guarantee: none (the noise is zero)' in statement.to_markdown(built)
  assert 'Guarantee: none.' in statement.to_markdown(statement.build_without_privacy())


def test_delta_out_of_range_is_refused():
  with pytest.raises(ValueError, match='delta must be between 0 and 1'):
    statement.build(MECHANISM, 1.0)


def test_the_report_says_whether_the_sensitivity_is_exact():
  built = statement.build(MECHANISM, 1e-6)
  assert built['mechanism']['sensitivity_kind'] == 'exact'
  assert '(squared: 4.000000), exact |' in statement.to_markdown(built)
  built['mechanism']['sensitivity_kind'] = 'bound'
  text = statement.to_markdown(built)
  assert '(squared: 4.000000), an upper bound |' in text
  assert 'is no bound\nbut for that of the sensitivity.' in text

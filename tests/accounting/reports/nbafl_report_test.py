"""Tests of reports of NbAFL plans, which show what formulas claim and what holds."""

import json
import math

import dp_accounting
import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as accounting_mechanism
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import rounding

PLAN = nbafl.Nbafl(
  0.8,
  1e-5,
  clip_norm=1.5,
  num_exposures=2,
  num_rounds=40,
  num_clients=50,
  min_examples=1000,
)
TOO_LARGE = 'epsilon=4 is not below 1, and the constant'


def test_nbafl_guarantee_is_for_clients_against_readers_of_models():
  built = statement.build_nbafl(PLAN)
  assert built['guarantee']['adjacency'] == 'zero_out'
  noise = math.hypot(
    PLAN.client_noise_multiplier * math.sqrt(50), PLAN.server_noise_multiplier
  )
  event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), 40)
  expected = accountants.epsilon(event, 1e-5)
  assert built['guarantee']['epsilon'] == pytest.approx(expected, rel=1e-9)
  assert built['mechanism']['uplink_stddev'] == PLAN.uplink_stddev
  rows = PLAN.guarantees()
  assert len(rows) == len(built['guarantees'])
  for row, stated in zip(rows, built['guarantees']):
    assert stated == {name: getattr(row, name) for name in stated}
  assert statements.violations(built) == []


def test_verify_detects_altered_guarantee_of_nbafl_report(tmp_path):
  more = ('--clients_per_round=10', '--calibration=exact')
  report = statements.by_flags(tmp_path, *statements.NBAFL_FLAGS, *more)
  assert report['guarantee']['adjacency'] == 'replace_one'
  report['guarantees'][2]['epsilon'] *= 1 + 1e-7
  (difference,) = statements.verify(tmp_path, report).differences
  assert 'guarantees[2].epsilon' in difference


def test_nbafl_report_shows_claimed_and_actual_guarantees():
  built = statement.build_nbafl(PLAN)
  text = ' '.join(rendering.render(built, 'markdown').split())
  assert 'the formulas claim 0.8 for each example' in text
  for each in built['guarantees']:
    assert rounding.up(each['epsilon']) in text
  mechanism = accounting_mechanism.Mechanism(**PLAN.mechanism_arguments())
  epsilon = rounding.up(mechanism.epsilon(1e-5))
  assert f'a run with this noise begins with epsilon = {epsilon} at' in text


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (
      statements.NBAFL_FLAGS[:-1],
      "missing 1 required positional argument: 'min_examples'",
    ),
    ((*statements.NBAFL_FLAGS, '--mechanism=tree'), '--mechanism does not go with'),
    (('--nbafl', '--target_epsilon=4', *statements.NBAFL_FLAGS[2:]), TOO_LARGE),
  ],
)
def test_incompatible_nbafl_flags_are_refused(flags, message, capsys):
  assert report_program.execute(flags) == 2
  assert message in capsys.readouterr().err


def test_nbafl_report_does_not_compose_with_others(tmp_path):
  report = statements.by_flags(tmp_path, *statements.NBAFL_FLAGS)
  (tmp_path / 'nbafl.json').write_text(json.dumps(report))
  with pytest.raises(ValueError, match='or it is an NbAFL plan'):
    statements.compose([statement.build_nbafl(PLAN)] * 2)
  copied = statements.by_flags(tmp_path, f'--report={tmp_path}/nbafl.json')
  assert copied == report

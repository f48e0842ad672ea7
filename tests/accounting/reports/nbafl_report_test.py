"""Reports of NbAFL plans: what the formulas claim beside what holds."""

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
from tff_dp_aggregators.accounting.reports import schema as schema_lib
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
OFFERED = 'epsilon=4 is not below 1, and the constant'


def test_the_guarantee_is_that_of_a_client_towards_who_sees_the_models():
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
  assert list(schema_lib.violations(built)) == []


def test_flags_give_the_same_and_an_altered_row_is_found(tmp_path):
  more = ('--clients_per_round=10', '--calibration=exact')
  report = statements.by_flags(tmp_path, *statements.OF_NBAFL, *more)
  assert report['guarantee']['adjacency'] == 'replace_one'
  report['guarantees'][2]['epsilon'] *= 1 + 1e-7
  (difference,) = statements.verify(tmp_path, report).differences
  assert 'guarantees[2].epsilon' in difference


def test_claims_are_shown_beside_what_holds():
  built = statement.build_nbafl(PLAN)
  text = ' '.join(rendering.render(built, 'markdown').split())
  assert 'the formulas claim 0.8 for each example' in text
  for each in built['guarantees']:
    assert rounding.up(each['epsilon']) in text
  of_a_run = accounting_mechanism.Mechanism(**PLAN.mechanism_arguments())
  begins_with = rounding.up(of_a_run.epsilon(1e-5))
  assert f'a run with this noise begins with epsilon = {begins_with} at' in text


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (statements.OF_NBAFL[:-1], '--nbafl needs --min_examples as well'),
    ((*statements.OF_NBAFL, '--mechanism=tree'), '--mechanism does not go with'),
    (('--nbafl', '--target_epsilon=4', *statements.OF_NBAFL[2:]), OFFERED),
  ],
)
def test_flags_that_do_not_fit_are_refused(flags, message, capsys):
  assert report_program.execute(flags) == 2
  assert message in capsys.readouterr().err


def test_it_composes_with_none(tmp_path):
  report = statements.by_flags(tmp_path, *statements.OF_NBAFL)
  (tmp_path / 'nbafl.json').write_text(json.dumps(report))
  with pytest.raises(ValueError, match='part 1 is of an NbAFL plan'):
    statements.compose([statement.build_nbafl(PLAN)] * 2)
  again = statements.by_flags(tmp_path, f'--report={tmp_path}/nbafl.json')
  assert again == report

"""Violations of the JSON schema are named, in the alternative that comes closest."""

from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import schema
from tff_dp_aggregators.accounting.reports import statement


def test_violations_name_the_value_in_the_alternative_it_comes_closest_to():
  mechanism = accounting.Mechanism('tree', strategies.Participation(12, 4), 5.0)
  built = statement.build(reports.Inputs(mechanism, 1e-6), with_curves=False)
  assert list(schema.violations(built)) == []
  built['guarantee']['accountants'][0]['epsilon'] = '8'
  built['mechanism']['adaptive_clipping'] = {'clipped_count_stddev': 1.0}
  built['mechanism']['num_rounds'] = True
  built['participation']['num_rounds'] = 12.0
  del built['participation']['assumed_at_most']
  built['extra'] = 1
  assert set(schema.violations(built)) == {
    "guarantee.accountants[0].epsilon is '8', which is not of type 'number'",
    'mechanism.adaptive_clipping.values_noise_multiplier is missing',
    "mechanism.num_rounds is True, which is not of type 'integer'",
    'participation.assumed_at_most is missing',
    "participation.num_rounds is 12.0, which is not of type 'integer'",
    'extra is in no report',
  }
  assert list(schema.violations([])) == [
    "the report is [], which is not of type 'object'"
  ]


def test_violations_of_parts_are_those_of_the_part():
  mechanism = accounting.Mechanism('tree', strategies.Participation(12, 4), 5.0)
  built = statement.build(reports.Inputs(mechanism, 1e-6), with_curves=False)
  composed = statement.compose([built, built])
  assert list(schema.violations(composed)) == []
  del composed['parts'][1]['mechanism']['rmse']
  assert list(schema.violations(composed)) == ['parts[1].mechanism.rmse is missing']

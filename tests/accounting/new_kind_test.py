"""A registered kind of strategy appears in mechanisms, plans, reports and flags.

No other module is changed for it.
"""

import dataclasses
import json

import pytest
from absl import flags as absl_flags

from tests import executing
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import views
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.strategies import registry

LIMITS = strategies.Participation(20, min_separation=5)


@dataclasses.dataclass(frozen=True)
class Echo(strategies.BandedToeplitz):
  """Each round takes back a part of the noise of one earlier round."""

  kind = 'echo'

  @property
  def delay(self):
    return self.num_bands - 1


def _build(limits, num_delays=2):
  bands = (1.0, *[0.0] * (num_delays - 1), 0.5)
  return Echo(limits.num_rounds, bands)


KIND = registry.Kind(
  'echo',
  Echo,
  _build,
  words='noise that comes back as an echo',
  citations=('arXiv:0000.00001',),
  options=(
    registry.Option(
      'num_delays',
      help='rounds until the echo, by default 2',
      read=lambda strategy: strategy.delay,
      words=('an echo at once', 'an echo after {}'),
      title='delay',
      written='{} rounds',
      meaning='until the echo',
    ),
  ),
)


@pytest.fixture
def echo():
  registry.register(KIND)
  yield
  del registry.KINDS[KIND.name]


@pytest.fixture(scope='module', autouse=True)
def echo_is_removed():
  yield
  assert 'echo' not in registry.KINDS
  strategies.Strategy._kinds.pop('echo')


def _values(*arguments, groups=flags_lib.groups):
  values = absl_flags.FlagValues()
  program.define(values, groups())
  values(['program', *arguments])
  return values


def _planned(*arguments):
  fixed = ('--num_rounds=20', '--min_separation=5', '--target_delta=1e-6')
  return flags_lib.planned(_values(*arguments, *fixed))


def test_mechanism_accepts_registered_kind_and_its_option(echo):
  made = accounting.Mechanism('echo', LIMITS, 2.0, num_delays=3)
  assert made.strategy == Echo(20, (1.0, 0.0, 0.0, 0.5))
  assert made.to_json()['num_delays'] == 3
  data = json.loads(json.dumps(made.to_json()))
  assert accounting.Mechanism.from_json(data) == made
  assert accounting.Mechanism('tree', LIMITS, 2.0).to_json()['num_delays'] is None
  with pytest.raises(ValueError, match='num_delays=3 is for echo, not for tree'):
    accounting.Mechanism('tree', LIMITS, 2.0, num_delays=3)


def test_plan_has_row_of_registered_kind(echo):
  task = planning.Task(
    LIMITS, 1000, 1e-6, target_epsilon=3.0, mechanisms=('echo', 'gaussian')
  )
  comparison = planning.compare(dataclasses.replace(task, options={'num_delays': 1}))
  assert 'echo, an echo at once' in views.to_text(comparison)
  rows = views.to_json(comparison)['rows']
  assert {row['num_delays'] for row in rows} == {1, None}


def test_report_describes_registered_kind_and_is_verified(echo, tmp_path):
  plan = _planned('--mechanism=echo', '--num_delays=3', '--noise_multiplier=2')
  report = statement.build(sources.from_plan(plan))
  assert statements.violations(report) == []
  schema = schema_lib.load()['$defs']['Mechanism']['properties']['num_delays']
  assert schema['description'] == 'For echo: delay, until the echo. Null for others.'
  text = ' '.join(rendering.render(report, 'text').split())
  assert 'echo: noise that comes back as an echo (arXiv:0000.00001)' in text
  assert '3 rounds' in text
  path = tmp_path / 'report.json'
  path.write_text(rendering.render(report, 'json'))
  result = verification.verify(str(path))
  assert result.ok, result.differences


def test_report_written_before_registration_is_verified(request, tmp_path):
  report = statement.build(
    reports.Inputs(accounting.Mechanism('tree', LIMITS, 2.0), 1e-6), with_curves=False
  )
  assert statements.violations(report) == []
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  request.getfixturevalue('echo')
  result = verification.verify(str(path))
  assert result.ok, result.differences
  report['mechanism']['num_delays'] = 2
  path.write_text(json.dumps(report))
  (difference,) = verification.verify(str(path)).differences
  assert difference == 'mechanism.num_delays is 2, computed None'


def test_verification_compares_nothing_without_kind(echo, tmp_path, monkeypatch):
  path, limits = tmp_path / 'report.json', ('--num_rounds=20', '--target_delta=1e-6')
  options = ('--mechanism=echo', '--noise_multiplier=2', '--format=json', *limits)
  assert executing.execute(report_program, *options, f'--output={path}').returncode == 0
  monkeypatch.delitem(registry.KINDS, 'echo')
  result = executing.execute(report_program, f'--verify={path}')
  assert (result.returncode, result.stdout) == (2, '')
  assert "nothing was compared, as name 'echo' of a mechanism" in result.stderr


def test_report_is_verified_without_kind_that_it_does_not_have(
  echo, tmp_path, monkeypatch
):
  report = statement.build(
    reports.Inputs(accounting.Mechanism('tree', LIMITS, 2.0), 1e-6), with_curves=False
  )
  monkeypatch.delitem(registry.KINDS, 'echo')
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  result = verification.verify(str(path))
  assert 'num_delays' in report['mechanism'] and result.ok, result.differences
  # A key that is unexpected or missing is named.
  report['mechanism']['num_delays'] = report['mechanism'].pop('rmse')
  path.write_text(json.dumps(report))
  differences = verification.verify(str(path)).differences
  assert set(differences) == {
    "mechanism: 'rmse' is a required property",
    f"mechanism.num_delays: {report['mechanism']['num_delays']} is not of type 'null'",
  }

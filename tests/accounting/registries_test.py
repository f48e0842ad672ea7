"""Registered accountants and sampling schemes appear in flags, reports and plans."""

import dataclasses
import json
import types

import dp_accounting
import pytest
from absl import flags as absl_flags

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import round_sampling


class _Doubled(accountants.GaussianAccountant):
  """Doubles the exact epsilon, which is a valid bound as well."""

  name = 'doubled'
  rank = None
  tolerance = 1e-9

  def get_epsilon(self, target_delta):
    return 2 * super().get_epsilon(target_delta)


@dataclasses.dataclass(frozen=True)
class DiceSampling(round_sampling.RoundSampling):
  """A client takes part in a round if its own die, with `sides` sides, shows one."""

  name = 'dice_sampling'
  flag = 'dice'
  relations = (dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,)

  num_rounds: int
  sides: int

  def __post_init__(self):
    checks.check_positive_int('sides', self.sides)

  @classmethod
  def of_cohort(cls, num_rounds, num_clients, clients_per_round):
    return cls(num_rounds, num_clients // clients_per_round)

  def sampled(self, on_everybody):
    return dp_accounting.PoissonSampledDpEvent(1 / self.sides, on_everybody)

  def drawing(self, seed, keys):
    raise NotImplementedError


@pytest.fixture
def doubled():
  accountants.register(_Doubled)
  terms.ACCOUNTANTS['doubled'] = types.SimpleNamespace(
    what='upper bound: twice the exact epsilon',
    keeps='doubled: half of what there is',
    title='doubling',
  )
  yield
  del accountants.ACCOUNTANTS['doubled'], terms.ACCOUNTANTS['doubled']


@pytest.fixture
def dice(monkeypatch):
  monkeypatch.setitem(sampling.SCHEMES, 'dice_sampling', DiceSampling)
  sides = program.Flag('sides', int, 'Sides of the dice.')
  monkeypatch.setitem(table.SCHEME_FLAGS, 'sides', sides)
  assumption = planning.Assumption('sampling by dice', DiceSampling)
  monkeypatch.setitem(planning.ASSUMPTIONS, 'dice', assumption)


def _from_flags(*arguments):
  values = absl_flags.FlagValues()
  program.define(values, flags_lib.groups())
  values(['program', '--target_delta=1e-6', '--num_rounds=20', *arguments])
  return values, flags_lib.planned(values)


def _statement(inputs, tmp_path):
  """Builds the statement, and checks it by its JSON schema and by verification."""
  built = reports.statement.build(inputs)
  assert statements.violations(built) == []
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(built))
  result = reports.verification.verify(str(path))
  assert result.ok, result.text
  return built


def test_registered_accountant_is_used_by_flags_and_reports(doubled, tmp_path):
  _, inputs = _from_flags(
    '--mechanism=tree', '--target_epsilon=4', '--accountant=doubled'
  )
  mechanism = inputs.mechanism
  assert mechanism.epsilon(1e-6) == pytest.approx(2.0, rel=1e-7)
  assert mechanism.epsilon(1e-6, accountant='doubled') <= 4.0
  guarantee = _statement(inputs, tmp_path)['guarantee']
  assert guarantee['accountant'] == 'doubled'
  assert guarantee['epsilon'] == mechanism.epsilon(1e-6, accountant='doubled')
  built = reports.statement.build(inputs, with_curves=False)
  text = reports.rendering.render(built, 'markdown')
  assert 'twice the exact epsilon' in text
  assert 'half of what there is' in text
  # Without a rank, it is used only if it is named.
  assert accountants.tightest(mechanism.event) == 'exact'


def test_registered_scheme_is_used_by_flags_and_reports(dice, tmp_path):
  values, inputs = _from_flags(
    '--mechanism=gaussian', '--noise_multiplier=2', '--sampling=dice', '--sides=50'
  )
  text = values['sampling'].help
  assert 'dice: A client takes part' in text and ', with --sides, or ' in text
  schema = inputs.mechanism.participation
  assert schema == DiceSampling(20, 50)
  assert sampling.from_json(sampling.to_json(schema)) == schema
  poisson = accounting.Mechanism('gaussian', sampling.PoissonSampling(20, 1 / 50), 2.0)
  assert inputs.mechanism.epsilon(1e-6) == poisson.epsilon(1e-6)
  built = _statement(inputs, tmp_path)
  assert built['participation']['schema'] == 'dice_sampling'
  assert built['participation']['sides'] == 50
  assert 'rounds=20, sides=50)' in reports.rendering.render(built, 'markdown')


def test_flag_of_registered_scheme_is_refused_without_it(dice):
  with pytest.raises(ValueError, match="argument 'sides'"):
    _from_flags('--mechanism=gaussian', '--noise_multiplier=2', '--sides=3')


def test_register_refuses_names_already_taken(doubled, dice):
  with pytest.raises(ValueError, match='doubled'):
    accountants.register(_Doubled)
  with pytest.raises(ValueError, match='dice_sampling'):
    sampling.register(DiceSampling)
  with pytest.raises(ValueError, match='poisson'):
    sampling.register(type('Other', (DiceSampling,), {'name': 'o', 'flag': 'poisson'}))


def test_mechanism_refuses_participation_of_wrong_type():
  with pytest.raises(TypeError, match='must be one of Participation'):
    accounting.Mechanism('gaussian', 3, 1.0)

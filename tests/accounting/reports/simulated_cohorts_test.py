"""Reports of runs with the noise of a larger cohort: no guarantee, and a condition."""

import dp_accounting
import pytest

from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement


@pytest.fixture(name='run_dir')
def _run_dir(tmp_path):
  return statements.run_of_larger_cohort(tmp_path / 'run')


def test_it_has_no_guarantee_and_names_both_cohorts(run_dir, tmp_path):
  stated = statement.build(sources.from_run_dir(run_dir))
  assert list(schema_lib.violations(stated)) == []
  assert stated['guarantee']['epsilon'] is None
  assert not stated['guarantee']['is_private'] and stated['mechanism'] is None
  private = statements.with_ledger(tmp_path)
  found = stated['simulated_cohort']
  epsilon = private['stopped']['epsilon_completed']
  assert found['simulated_epsilon'] == pytest.approx(epsilon, rel=1e-9)
  assert (found['noise_multiplier'], found['simulated_noise_multiplier']) == (0.5, 5.0)
  text = ' '.join(rendering.render(stated, 'markdown').split()).replace('**', '')
  assert 'Guarantee: none' in text
  assert 'simulated cohort of 100 clients a round; the rounds had 10' in text
  assert 'It carries no privacy guarantee' in text
  assert 'differential privacy for each client' not in text
  assert 'class="guarantee none"' in rendering.render(stated, 'html')


@pytest.mark.parametrize(
  'alter',
  [
    lambda config: config['simulated_cohort'].update(num_clients=4000),
    lambda config: config['simulated_cohort']['as_planned'].update(delta=1e-3),
    lambda config: config.update(simulated_cohort=None),
  ],
)
def test_an_altered_configuration_is_found(run_dir, tmp_path, alter):
  path = tmp_path / 'run' / 'report.json'
  stated = statement.build(sources.from_run_dir(run_dir))
  path.write_text(rendering.render(stated, 'json'))
  with statements.edited(tmp_path / 'run') as config:
    alter(config)
  assert reporting.execute(f'--verify={path}').returncode == 1


def test_nothing_with_it_has_a_guarantee(run_dir, tmp_path):
  private = statements.run_dir(tmp_path / 'private')
  composed = reporting.execute(f'--run_dir={run_dir}', f'--run_dir={private}')
  assert composed.returncode == 2
  assert 'has no guarantee: there is no mechanism' in composed.stderr
  # Nor its ledger, whatever noise is said to be that of the mechanism.
  for noise_multiplier in (0.5, 5.0):
    flags = [flag for flag in statements.OF_TREE if 'noise' not in flag]
    flags += [f'--noise_multiplier={noise_multiplier}', f'--ledger={run_dir}/']
    flags[-1] += 'ledger.jsonl'
    assert reporting.execute(*flags).returncode == 2
  # Nor if the configuration hides it.
  with statements.edited(tmp_path / 'run') as config:
    config['privacy'] = config.pop('simulated_cohort')['as_planned']
  hidden = reporting.execute(f'--run_dir={run_dir}')
  assert hidden.returncode == 2 and 'noise multiplier 0.5' in hidden.stderr


@pytest.mark.parametrize(
  ('noise_multiplier', 'event', 'message'),
  [
    (5.0, None, 'noise multiplier 5.0, but .* 0.5. .* a cohort 10 times as large'),
    (0.5, dp_accounting.GaussianDpEvent(0.5), 'no round of it is private'),
  ],
)
def test_ledgers_of_other_runs_are_refused(
  run_dir, tmp_path, noise_multiplier, event, message
):
  path = tmp_path / 'run' / 'ledger.jsonl'
  path.unlink()
  statements.ledger_of_larger_cohort(path, noise_multiplier, event)
  with pytest.raises(ValueError, match=message):
    statement.build(sources.from_run_dir(run_dir))


@pytest.mark.parametrize('changes', [{'scale': 0.5}, {'num_clients': True}])
def test_wrong_cohorts_in_a_configuration_are_refused(tmp_path, changes):
  run_dir = statements.run_of_larger_cohort(tmp_path / 'run', **changes)
  with pytest.raises(ValueError, match=next(iter(changes))):
    sources.from_run_dir(run_dir)


_LIMITS = strategies.Participation(9, min_separation=3)


@pytest.mark.parametrize('rounds', [4, 9])
@pytest.mark.parametrize(
  'mechanism',
  [
    accounting.Mechanism('tree', _LIMITS, 2.0),
    accounting.Mechanism('banded', _LIMITS, 2.0, clipped_count_stddev=4.0),
    accounting.Mechanism('gaussian', sampling.PoissonSampling(9, 0.1), 1.0),
  ],
)
def test_rounds_spend_what_a_ledger_of_a_private_run_adds_up(
  tmp_path, mechanism, rounds
):
  path = tmp_path / 'ledger.jsonl'
  total = statements.ledger_of(mechanism, path, num_rounds=rounds).total_event
  event = statement.event_of_rounds(mechanism, rounds)
  epsilons = [
    accounting.accountants.epsilon(each, 1e-6, relation=mechanism.relation)
    for each in (event, total)
  ]
  assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-9)


def test_a_composition_has_what_each_part_computed_besides():
  parts = [statements.build(not_covered=(each,)) for each in ('First.', 'Second.')]
  not_covered = statements.compose(parts)['definition']['not_covered']
  assert not_covered[-2:] == ['First.', 'Second.']
  assert not_covered[:-2] == parts[0]['definition']['not_covered'][:-1]


@pytest.mark.parametrize('not_covered', ['One text.', [1], [' '], ['Two\nlines.']])
def test_what_is_no_sentence_is_refused(not_covered):
  with pytest.raises(ValueError, match='not_covered must'):
    reports.inputs.check_not_covered(not_covered)


@pytest.mark.parametrize('stated', [(0, 1.0), (2, float('nan'))])
def test_what_is_no_tuning_is_refused(stated):
  with pytest.raises(ValueError, match='tuning'):
    reports.inputs.check_tuning(reports.inputs.Tuning(*stated))


def test_tuning_without_privacy_is_infinite_and_comes_back():
  tuning = reports.inputs.Tuning(3, float('inf'))
  assert tuning.to_json() == {'num_runs': 3, 'epsilon': None}
  assert reports.inputs.Tuning.from_json(tuning.to_json()) == tuning

"""Tests of reports of runs that simulate a larger cohort, which have no guarantee."""

import dp_accounting
import msgspec
import pytest

from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement


@pytest.fixture(name='run_dir')
def _run_dir(tmp_path):
  return statements.write_larger_cohort_run(tmp_path / 'run')


def test_simulated_cohort_report_has_no_guarantee(run_dir, tmp_path):
  stated = statement.build(sources.from_run_dir(run_dir))
  assert statements.violations(stated) == []
  assert stated['guarantee']['epsilon'] is None
  assert not stated['guarantee']['is_private'] and stated['mechanism'] is None
  private = statements.with_ledger(tmp_path)
  facts = stated['simulated_cohort']
  epsilon = private['stopped']['epsilon_completed']
  assert facts['simulated_epsilon'] == pytest.approx(epsilon, rel=1e-9)
  assert (facts['noise_multiplier'], facts['simulated_noise_multiplier']) == (0.5, 5.0)
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
def test_verify_detects_altered_configuration(run_dir, tmp_path, alter):
  path = tmp_path / 'run' / 'report.json'
  stated = statement.build(sources.from_run_dir(run_dir))
  path.write_text(rendering.render(stated, 'json'))
  with statements.edited_config(tmp_path / 'run') as config:
    alter(config)
  assert reporting.execute(f'--verify={path}').returncode == 1


def test_run_with_simulated_cohort_cannot_pass_as_private(run_dir, tmp_path):
  private = statements.run_dir(tmp_path / 'private')
  composed = reporting.execute(f'--run_dir={run_dir}', f'--run_dir={private}')
  assert composed.returncode == 2
  assert 'has no guarantee that composes: there is no mechanism' in composed.stderr
  # Its ledger is refused, whatever noise multiplier flags state.
  for noise_multiplier in (0.5, 5.0):
    flags = [flag for flag in statements.TREE_FLAGS if 'noise' not in flag]
    flags += [f'--noise_multiplier={noise_multiplier}', f'--ledger={run_dir}/']
    flags[-1] += 'ledger.jsonl'
    assert reporting.execute(*flags).returncode == 2
  # A configuration that hides the simulation is refused.
  with statements.edited_config(tmp_path / 'run') as config:
    config['privacy'] = config.pop('simulated_cohort')['as_planned']
  hidden = reporting.execute(f'--run_dir={run_dir}')
  assert hidden.returncode == 2 and 'noise multiplier 0.5' in hidden.stderr


@pytest.mark.parametrize(
  ('noise_multiplier', 'event', 'message'),
  [
    (5.0, None, 'noise multiplier 5.0, but .* 0.5. .* a cohort 10 times as large'),
    (0.5, dp_accounting.GaussianDpEvent(0.5), 'simulates a cohort 10 times as large'),
  ],
)
def test_ledger_that_does_not_fit_simulated_cohort_is_refused(
  run_dir, tmp_path, noise_multiplier, event, message
):
  path = tmp_path / 'run' / 'ledger.jsonl'
  path.unlink()
  statements.write_larger_cohort_ledger(path, noise_multiplier, event)
  with pytest.raises(ValueError, match=message):
    statement.build(sources.from_run_dir(run_dir))


@pytest.mark.parametrize('changes', [{'scale': 0.5}, {'num_clients': True}])
def test_invalid_simulated_cohort_in_config_is_refused(tmp_path, changes):
  run_dir = statements.write_larger_cohort_run(tmp_path / 'run', **changes)
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
def test_event_of_rounds_matches_total_event_of_ledger(tmp_path, mechanism, rounds):
  path = tmp_path / 'ledger.jsonl'
  total = statements.write_ledger(mechanism, path, num_rounds=rounds).total_event
  event = statement.event_of_rounds(mechanism, rounds)
  epsilons = [
    accounting.accountants.epsilon(each, 1e-6, relation=mechanism.relation)
    for each in (event, total)
  ]
  assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-9)


def test_composition_lists_not_covered_of_all_parts():
  parts = [statements.build(not_covered=(each,)) for each in ('First.', 'Second.')]
  not_covered = statements.compose(parts)['definition']['not_covered']
  assert not_covered[-2:] == ['First.', 'Second.']
  assert not_covered[:-2] == parts[0]['definition']['not_covered'][:-1]


@pytest.mark.parametrize('not_covered', ['One text.', [1], [' '], ['Two\nlines.']])
def test_check_not_covered_refuses_invalid_texts(not_covered):
  with pytest.raises(ValueError, match='not_covered must'):
    reports.sources.check_not_covered(not_covered)


@pytest.mark.parametrize('stated', [(0, 1.0), (2, float('nan'))])
def test_tuning_refuses_invalid_values(stated):
  with pytest.raises(ValueError, match='tuning'):
    reports.Tuning(*stated)


def test_infinite_tuning_epsilon_is_null_in_json():
  tuning = reports.Tuning(3, float('inf'))
  assert tuning.to_json() == {'num_runs': 3, 'epsilon': None}
  assert msgspec.convert(tuning.to_json(), reports.Tuning) == tuning

"""Tests of reports of runs of sampled mechanisms."""

import json

import dp_accounting
import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import guarantees
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement

POISSON = accounting.Mechanism('gaussian', sampling.PoissonSampling(20, 0.1), 2.0)
CYCLIC = accounting.Mechanism(
  'toeplitz', sampling.PoissonSampling(20, 0.1, num_groups=3), 2.0, num_bands=3
)

# Mechanisms whose scheme draws all rounds of a client together.
BINS = accounting.Mechanism('toeplitz', sampling.BallsInBins(20, 10), 2.0, num_bands=3)
ALLOCATED = accounting.Mechanism('gaussian', sampling.RandomAllocation(20, 3), 2.0)
B_MIN_SEP = accounting.Mechanism(
  'toeplitz', sampling.BMinSepSampling(20, 0.2, 4), 2.0, num_bands=3
)


def _write(path, mechanism, num_rounds=7, change=lambda event: event):
  events_of_rounds = [change(event) for event in mechanism.round_events]
  return statements.write_ledger(
    mechanism, path, num_rounds=num_rounds, events=events_of_rounds
  )


@pytest.mark.parametrize('mechanism, turns', [(POISSON, 7), (CYCLIC, 3)])
def test_sampled_run_spends_only_its_fixed_rounds(mechanism, turns, tmp_path):
  path = tmp_path / 'ledger.jsonl'
  run = _write(path, mechanism)
  files = (sources.file_of('ledger', str(path)),)
  options = {'ledger': run, 'files': files, 'rounds_fixed_by': 'a budget'}
  built = statements.build(mechanism, **options, with_curves=True)
  event = dp_accounting.SelfComposedDpEvent(mechanism.round_events[0], turns)
  spent = accountants.epsilon(event, 1e-6, relation=mechanism.relation)
  assert built['guarantee']['epsilon'] == spent < built['run']['epsilon_planned']
  assert built['run']['rounds_completed'] == 7
  points = built['curves']['epsilon_by_round']
  assert len(points) == turns and points[-1][0] <= 7
  assert statements.violations(built) == []
  result = statements.verify(tmp_path, built)
  assert result.ok, result.text


def test_rounds_drawn_together_spend_the_planned_epsilon(tmp_path, monkeypatch):
  monkeypatch.setattr(guarantees, '_STATED_DELTAS', (1e-4,))  # Each draws samples.
  monkeypatch.setattr(guarantees, '_DRAWN_DELTAS', (1e-4, 0.5))
  path = tmp_path / 'ledger.jsonl'
  run = _write(path, B_MIN_SEP, num_rounds=1)
  for entry in run.entries:
    assert entry.epsilon is None and entry.effective_noise_multiplier is None
  files = (sources.file_of('ledger', str(path)),)
  built = statements.build(B_MIN_SEP, 1e-4, ledger=run, files=files)
  planned = B_MIN_SEP.epsilon(1e-4)
  assert built['guarantee']['epsilon'] == planned == built['run']['epsilon_planned']
  result = statements.verify(tmp_path, built)
  assert result.ok, result.text


@pytest.mark.parametrize(
  'stated',
  [
    sampling.BMinSepSampling(20, 0.21, 4),
    sampling.BMinSepSampling(20, 0.2, 5),
    sampling.PoissonSampling(20, 0.2, num_groups=4),
  ],
)
def test_ledger_of_another_b_min_sep_sampling_is_refused(stated, tmp_path):
  run = _write(tmp_path / 'ledger.jsonl', B_MIN_SEP, 1)
  other = accounting.Mechanism(
    'toeplitz', stated, 2.0, num_bands=3, strategy=B_MIN_SEP.strategy
  )
  with pytest.raises(ValueError, match='round 0 of the ledger has the event BMinSepDp'):
    statements.build(other, 1e-4, ledger=run)


def test_ledger_with_only_a_bound_is_accounted_for_by_it(tmp_path):
  run = _write(tmp_path / 'ledger.jsonl', ALLOCATED, change=events.with_bounds)
  built = statements.build(ALLOCATED, 1e-4, ledger=run)
  bound = accountants.epsilon(ALLOCATED.event.bound, 1e-4, 'pld', ALLOCATED.relation)
  assert built['guarantee']['epsilon'] == bound >= ALLOCATED.epsilon(1e-4)
  assert built['guarantee']['accountant'] == 'pld'


def _run_dir(tmp_path, mechanism, schedule, **privacy):
  extra = {'training': {'schedule': schedule}}
  folder = tmp_path / 'run'
  return statements.run_dir(folder, mechanism=mechanism, extra=extra, **privacy)


def _replayed(schema):
  return {'schedule': 'replay', 'sha256': '0', 'stated': schema and {'schema': schema}}


LIMITED = accounting.Mechanism('gaussian', strategies.Participation(7, 3), 2.0)
SCHEME, LIMITS, DRAWN_WITHIN = (
  sampling.to_json(each)
  for each in (B_MIN_SEP.participation, LIMITED.participation, B_MIN_SEP.limits)
)
CLOSER = {**LIMITS, 'min_separation': 2}
MORE_OFTEN = {**LIMITS, 'max_participations': 7}


@pytest.mark.parametrize(
  'mechanism, schedule, matches',
  [
    (B_MIN_SEP, {'schedule': 'x', 'sampling': SCHEME}, True),
    (B_MIN_SEP, _replayed(None), True),  # Stated in its file.
    (B_MIN_SEP, _replayed(DRAWN_WITHIN), False),
    (B_MIN_SEP, {'sampling': {**SCHEME, 'sampling_probability': 0.9}}, False),
    (B_MIN_SEP, {'schedule': 'x', 'participation': DRAWN_WITHIN}, False),
    (LIMITED, {'schedule': 'x', 'participation': LIMITS}, True),
    (LIMITED, _replayed(LIMITS), True),
    (LIMITED, {'schedule': 'x', 'participation': CLOSER}, False),
    (LIMITED, {'schedule': 'x', 'participation': MORE_OFTEN}, False),
    (LIMITED, _replayed(CLOSER), False),
  ],
)
def test_schedule_must_match_accounted_scheme(tmp_path, mechanism, schedule, matches):
  run_dir = _run_dir(tmp_path, mechanism, schedule)
  if matches:
    assert sources.from_run_dir(run_dir).mechanism == mechanism
    return
  with pytest.raises(ValueError, match='its schedule has .*counts on'):
    sources.from_run_dir(run_dir)


def test_schedule_with_another_clients_per_round_is_refused(tmp_path):
  schedule = {'schedule': 'x', 'participation': LIMITS, 'clients_per_round': 9}
  run_dir = _run_dir(tmp_path, LIMITED, schedule, clients_per_round=10)
  with pytest.raises(
    ValueError, match='clients_per_round=9, and its mechanism counts on 10'
  ):
    sources.from_run_dir(run_dir)


def test_unknown_accountant_in_config_is_refused(tmp_path):
  schedule = {'schedule': 'x', 'sampling': sampling.to_json(BINS.participation)}
  run_dir = _run_dir(tmp_path, BINS, schedule, accountant='bogus')
  with pytest.raises(ValueError, match='unknown accountant'):
    sources.from_run_dir(run_dir)


def _sampled(probability, noise_multiplier):
  gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
  return dp_accounting.PoissonSampledDpEvent(probability, gaussian)


@pytest.mark.parametrize(
  'change',
  [
    lambda event: event.event,  # Without sampling, as in a state.
    lambda event: _sampled(0.2, 2.0),
    lambda event: _sampled(0.1, 2.1),
    lambda event: dp_accounting.SampledWithoutReplacementDpEvent(100, 10, event.event),
    lambda event: dp_accounting.NoOpDpEvent(),
  ],
)
def test_ledger_of_another_sampling_is_refused(change, tmp_path):
  run = _write(tmp_path / 'ledger.jsonl', POISSON, change=change)
  with pytest.raises(ValueError, match='round 0 of the ledger has the event'):
    statements.build(POISSON, ledger=run)


def test_aborted_attempt_of_sampled_run_is_refused(tmp_path):
  path = str(tmp_path / 'ledger.jsonl')
  _write(path, POISSON, num_rounds=2)
  with ledger.LedgerWriter(path, 1e-6, resume=True) as writer:
    writer.append_aborted(
      round=2, attempt=0, cohort_requested=10, cohort_reported=3, reporting_goal=5
    )
  with pytest.raises(ValueError, match='aborted attempt at round 2, and a second'):
    statements.build(POISSON, ledger=ledger.read(path))


def test_sampled_ledger_is_refused_without_sampling(tmp_path):
  run = _write(tmp_path / 'ledger.jsonl', POISSON)
  limits = accounting.Mechanism(
    'gaussian', sampling.limits_of(POISSON.participation), 2.0
  )
  with pytest.raises(ValueError, match='has the effective noise multiplier None'):
    statements.build(limits, ledger=run)


@pytest.mark.slow
def test_accountant_that_exceeds_target_states_no_target(tmp_path):
  planned = accounting.Mechanism.for_target(
    'toeplitz', BINS.participation, 3.0, 1e-6, accountant='monte_carlo', num_bands=3
  )
  schedule = {'schedule': 'x', 'sampling': sampling.to_json(BINS.participation)}
  privacy = {'target_epsilon': 3.0, 'accountant': 'monte_carlo'}
  run_dir = _run_dir(tmp_path, planned, schedule, **privacy)
  by_name = {
    name: statement.build(sources.from_run_dir(run_dir, name), with_curves=False)
    for name in (None, 'monte_carlo', 'pld')
  }
  assert by_name[None]['target'] == {'epsilon': 3.0, 'found': 'noise_multiplier'}
  assert by_name[None]['guarantee'] == by_name['monte_carlo']['guarantee']
  assert by_name['pld']['target'] is None
  assert by_name['pld']['guarantee']['epsilon'] > 3.0


@pytest.mark.slow
def test_other_release_keeps_monte_carlo_accountant():
  scheme = sampling.BMinSepSampling(20, 0.05, 2)
  mechanism = accounting.Mechanism('banded', scheme, 2.0, options={'num_bands': 2})
  part = statements.build(mechanism)
  part = json.loads(json.dumps(part))  # As verification reads it.
  release = model.OtherRelease('survey', 0.5, 1e-7)
  total = statements.compose([part], other_releases=[release])['guarantee']
  assert total['accountant'] == part['guarantee']['accountant'] == 'monte_carlo'
  remaining = mechanism.epsilon(9e-7)
  # Outcomes are drawn for another delta, which differs in the last digit.
  assert total['epsilon'] == pytest.approx(remaining + 0.5, rel=1e-2)

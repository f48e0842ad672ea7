"""The report program for parts of a model that have mechanisms of their own."""

import json
import shlex

import dp_accounting
import pytest

from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.accountants import gaussian

LIMITS = ('--num_rounds=20', '--min_separation=5')
SHARED = (*LIMITS, '--target_delta=1e-6')
BODY = '--part=body: weights=0 1, mechanism=tree, clip_norm=0.5, noise_multiplier=4'
HEAD = '--part=head: weights=*, mechanism=gaussian, clip_norm=0.1, noise_multiplier=3'
VOTES = '--part=votes: weights=2, mechanism=laplace, clip_norm=1, noise_multiplier=9'
SHARES = (
  '--part=body: weights=0, mechanism=tree, clip_norm=0.5, share=0.7',
  '--part=votes: weights=2, mechanism=laplace, clip_norm=1, share=0.2',
  '--part=head: weights=*, mechanism=gaussian, clip_norm=0.1, share=0.1',
)
PARTICIPATION = strategies.Participation(20, 5)


def _joint(*others):
  make = accounting.Mechanism
  parts = (
    accounting.JointPart('body', '0 1', make('tree', PARTICIPATION, 4.0), 0.5),
    *others,
    accounting.JointPart('head', '*', make('gaussian', PARTICIPATION, 3.0), 0.1),
  )
  return accounting.JointMechanism(parts)


GAUSSIAN = _joint()
WITH_VOTES = _joint(
  accounting.JointPart(
    'votes', '2', accounting.Mechanism('laplace', PARTICIPATION, 9.0), 1.0
  )
)


def _verified(tmp_path, report):
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  return reporting.execute(f'--verify={path}')


def _refused(*arguments):
  result = reporting.execute(*arguments)
  assert result.returncode == 2 and result.stdout == ''
  assert result.stderr.startswith('error: ') and result.stderr.count('\n') == 1
  return result.stderr


def test_epsilon_of_a_plan_is_that_of_the_composition(tmp_path):
  report = reporting.json_of(*SHARED, BODY, HEAD)
  accountant = dp_accounting.pld.PLDAccountant(
    dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  )
  mu_squared = 0.0
  for part in (
    accounting.Mechanism('tree', PARTICIPATION, 4.0),
    accounting.Mechanism('gaussian', PARTICIPATION, 3.0),
  ):
    effective = part.noise_multiplier / part.strategy.sensitivity(PARTICIPATION)
    accountant.compose(dp_accounting.GaussianDpEvent(effective))
    mu_squared += effective**-2
  epsilon = report['guarantee']['epsilon']
  assert epsilon == pytest.approx(gaussian.epsilon_of(mu_squared**0.5, 1e-6), rel=1e-12)
  assert epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)
  assert [part['patterns'] for part in report['mechanism']['parts']] == [
    ['0', '1'],
    ['*'],
  ]
  assert report['provenance']['clip_norm'] == 'stated'
  assert {part['num_parameters'] for part in report['mechanism']['parts']} == {None}
  verified = _verified(tmp_path, report)
  assert verified.returncode == 0, verified.stdout
  command = shlex.split(report['verification']['command'])
  assert [each for each in command if each.startswith('--part')] == [BODY, HEAD]


def test_a_target_is_kept_with_the_shares_that_were_asked_for(tmp_path):
  report = reporting.json_of(*SHARED, *SHARES, '--target_epsilon=6')
  assert report['guarantee']['epsilon'] <= 6
  assert report['guarantee']['epsilon'] == pytest.approx(6, rel=1e-3)
  assert report['target'] == {'epsilon': 6.0, 'found': 'noise_multiplier'}
  parts = report['mechanism']['parts']
  assert [part['share'] for part in parts] == pytest.approx([0.7, 0.2, 0.1], rel=1e-9)
  of_mu_squared = [part['share_of_mu_squared'] for part in parts]
  assert of_mu_squared[1] is None
  assert of_mu_squared[::2] == pytest.approx([0.875, 0.125], rel=1e-9)
  assert _verified(tmp_path, report).returncode == 0
  parts[1]['share'] = 0.21
  found = _verified(tmp_path, report)
  assert found.returncode == 1 and 'mechanism.parts[1].share is 0.21' in found.stdout


@pytest.mark.parametrize(
  ('mechanism', 'flags'),
  [
    pytest.param(GAUSSIAN, (BODY, HEAD), id='gaussian'),
    pytest.param(WITH_VOTES, (BODY, VOTES, HEAD), id='mixed', marks=pytest.mark.slow),
  ],
)
def test_a_ledger_is_reported_with_its_parts(tmp_path, mechanism, flags):
  path = tmp_path / 'ledger.jsonl'
  ledger = statements.ledger_of(mechanism, path, num_rounds=11)
  report = reporting.json_of(*SHARED, *flags, f'--ledger={path}')
  assert report['run']['rounds_completed'] == 11
  assert report['run']['epsilon_planned'] == pytest.approx(mechanism.epsilon(1e-6))
  assert report['provenance']['clip_norm'] == 'recorded'
  if mechanism is GAUSSIAN:
    assert report['stopped']['epsilon_completed'] == ledger.entries[-1].epsilon
  assert report['stopped']['epsilon_completed'] < report['run']['epsilon_planned']
  assert report['guarantee']['epsilon'] == report['run']['epsilon_planned']
  assert _verified(tmp_path, report).returncode == 0
  # Two runs compose.
  other = tmp_path / 'other.jsonl'
  statements.ledger_of(mechanism, other, num_rounds=9)
  both = reporting.json_of(*SHARED, *flags, f'--ledger={path}', f'--ledger={other}')
  assert both['guarantee']['epsilon'] > report['guarantee']['epsilon']
  assert _verified(tmp_path, both).returncode == 0


def test_a_round_log_gives_rounds_and_limits(tmp_path):
  log = reporting.write_log(tmp_path / 'rounds.csv', 20)
  flags = ('--target_delta=1e-6', BODY, HEAD, f'--round_log={log}')
  report = reporting.json_of(*flags)
  assert report['participation']['num_rounds'] == 20
  assert report['participation']['min_separation'] == 7
  assert _verified(tmp_path, report).returncode == 0
  assert '--num_rounds does not go with --part' in _refused(*flags, LIMITS[0])
  adapting = HEAD.replace('mechanism=gaussian', 'mechanism=blt')
  assert adapting != HEAD
  assert '--strategy_file' in _refused(*flags[:2], adapting, flags[3])
  # With the ledger, the limits are those of the plan, which the log shows kept.
  statements.ledger_of(GAUSSIAN, tmp_path / 'ledger.jsonl', num_rounds=20)
  report = reporting.json_of(*flags, *LIMITS, f'--ledger={tmp_path}/ledger.jsonl')
  assert report['participation']['min_separation'] == 5
  assert _verified(tmp_path, report).returncode == 0


def test_a_ledger_of_parts_says_that_they_are_missing(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  statements.ledger_of(GAUSSIAN, path, num_rounds=11)
  assert 'of parts of a model, --part for each' in _refused(
    '--target_delta=1e-6', f'--ledger={path}'
  )
  said = _refused(
    *SHARED, '--mechanism=tree', '--noise_multiplier=4', f'--ledger={path}'
  )
  assert 'has the parts' in said and "'body'" in said and "'head'" in said
  assert 'State mechanism, parts' in said
  other = _refused(*SHARED, BODY, HEAD.replace('=3', '=3.5'), f'--ledger={path}')
  assert "'clip_norm': 0.1, 'noise_multiplier': 3.0" in other
  assert "'noise_multiplier': 3.5" in other
  limits = ('--num_rounds=20', '--min_separation=4', '--target_delta=1e-6')
  assert 'noise, clip norm, limits' in _refused(*limits, BODY, HEAD, f'--ledger={path}')


def test_a_ledger_of_all_weights_is_refused_with_parts(tmp_path):
  reporting.write_ledger(tmp_path / 'ledger.jsonl', reporting.TREE_OF_20, 5)
  said = _refused(*SHARED, BODY, HEAD, f'--ledger={tmp_path}/ledger.jsonl')
  assert 'has the parts None' in said and 'State mechanism, parts' in said


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((*SHARED, BODY), '--part: a joint mechanism has two parts or more'),
    (
      ('--target_delta=1e-6', BODY, HEAD),
      '--num_rounds is missing, which is not looked for',
    ),
    ((*SHARED, *SHARES), 'without a target each part has its noise_multiplier'),
    ((*SHARED, BODY, HEAD, '--mechanism=tree'), 'in a part it stands as mechanism=...'),
    ((*SHARED, BODY, HEAD, '--clip_norm=2'), 'in a part it stands as clip_norm=...'),
    ((*SHARED, BODY, HEAD, '--strategy_file=x'), 'of one mechanism for all weights'),
    (
      (*SHARED, BODY, HEAD, '--clipped_count_stddev=2'),
      'of one mechanism for all weights',
    ),
    ((*SHARED, BODY, HEAD, '--noise_site=local'), 'of one mechanism for all'),
    (
      ('--num_rounds=20', '--target_delta=1e-6', '--sampling=poisson')
      + ('--sampling_probability=0.1', BODY.replace('tree', 'gaussian'), HEAD),
      'and a joint mechanism cannot',
    ),
    ((BODY, HEAD, '--run_dir=x'), '--part does not go with --run_dir'),
  ],
)
def test_what_does_not_go_with_parts_is_refused_with_the_reason(arguments, message):
  assert message in _refused(*arguments)


def test_other_neighbours_and_accountants_are_those_of_all_parts(tmp_path):
  usual = reporting.json_of(*SHARED, BODY, HEAD)['guarantee']['epsilon']
  replaced = reporting.json_of(*SHARED, BODY, HEAD, '--adjacency=replace_one')
  assert replaced['guarantee']['epsilon'] > 2 * usual
  by_rdp = reporting.json_of(*SHARED, BODY, HEAD, '--accountant=rdp')
  assert by_rdp['guarantee']['accountant'] == 'rdp'
  assert by_rdp['guarantee']['epsilon'] > usual
  for report in (replaced, by_rdp):
    assert _verified(tmp_path, report).returncode == 0

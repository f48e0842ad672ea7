"""Tests of the report program with --part, for parts with their own mechanisms."""

import re
import shlex

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
HEAD_MECHANISM = accounting.Mechanism('gaussian', strategies.Participation(20, 5), 3.0)
JOINT = accounting.JointMechanism(
  (
    accounting.JointPart('body', '0 1', reporting.TREE_OF_20, 0.5),
    accounting.JointPart('head', '*', HEAD_MECHANISM, 0.1),
  )
)


def _refused(*arguments):
  result = reporting.execute(*arguments)
  assert result.returncode == 2 and result.stdout == ''
  assert result.stderr.startswith('error: ') and result.stderr.count('\n') == 1
  return result.stderr


def test_epsilon_of_joint_plan_is_that_of_the_composition(tmp_path):
  report = reporting.json_of(*SHARED, BODY, HEAD)
  mu_squared = sum(
    each.mechanism.effective_noise_multiplier**-2 for each in JOINT.parts
  )
  epsilon = report['guarantee']['epsilon']
  assert epsilon == pytest.approx(gaussian.epsilon_of(mu_squared**0.5, 1e-6), rel=1e-12)
  assert [part['patterns'] for part in report['mechanism']['parts']] == [
    ['0', '1'],
    ['*'],
  ]
  assert report['provenance']['clip_norm'] == 'stated'
  assert {part['num_parameters'] for part in report['mechanism']['parts']} == {None}
  verified = reporting.run_verify(tmp_path, report)
  assert verified.returncode == 0, verified.stdout
  command = shlex.split(report['verification']['command'])
  assert [each for each in command if each.startswith('--part')] == [BODY, HEAD]


def test_numbers_of_parts_may_be_written_as_python_reads_them():
  body = BODY.replace('=0.5', '=+.5').replace('=4', '=04.')
  expected = reporting.json_of(*SHARED, BODY, HEAD)['guarantee']
  assert reporting.json_of(*SHARED, body, HEAD)['guarantee'] == expected


def test_target_is_kept_with_the_given_shares(tmp_path):
  flags = [re.sub('noise_multiplier=.', 'share=0.5', each) for each in (BODY, HEAD)]
  report = reporting.json_of(*SHARED, *flags, '--target_epsilon=6')
  assert report['guarantee']['epsilon'] <= 6
  assert report['guarantee']['epsilon'] == pytest.approx(6, rel=1e-3)
  assert report['target'] == {'epsilon': 6.0, 'found': 'noise_multiplier'}
  parts = report['mechanism']['parts']
  assert [part['share'] for part in parts] == pytest.approx([0.5, 0.5], rel=1e-9)
  assert reporting.run_verify(tmp_path, report).returncode == 0
  parts[1]['share'] = 0.51
  result = reporting.run_verify(tmp_path, report)
  assert result.returncode == 1 and 'mechanism.parts[1].share is 0.51' in result.stdout


def test_ledger_of_joint_run_is_reported_with_its_parts(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger = statements.write_ledger(JOINT, path, num_rounds=11)
  report = reporting.json_of(*SHARED, BODY, HEAD, f'--ledger={path}')
  assert report['run']['rounds_completed'] == 11
  assert report['run']['epsilon_planned'] == pytest.approx(JOINT.epsilon(1e-6))
  assert report['provenance']['clip_norm'] == 'recorded'
  assert report['stopped']['epsilon_completed'] == ledger.entries[-1].epsilon
  assert report['stopped']['epsilon_completed'] < report['run']['epsilon_planned']
  assert report['guarantee']['epsilon'] == report['run']['epsilon_planned']
  assert reporting.run_verify(tmp_path, report).returncode == 0
  # Two runs compose.
  other = tmp_path / 'other.jsonl'
  statements.write_ledger(JOINT, other, num_rounds=9)
  ledgers = (f'--ledger={path}', f'--ledger={other}')
  both = reporting.json_of(*SHARED, BODY, HEAD, *ledgers)
  assert both['guarantee']['epsilon'] > report['guarantee']['epsilon']
  assert reporting.run_verify(tmp_path, both).returncode == 0


def test_round_log_gives_rounds_and_limits_of_parts(tmp_path):
  log = statements.write_round_log(tmp_path, 20)
  flags = ('--target_delta=1e-6', BODY, HEAD, f'--round_log={log}')
  report = reporting.json_of(*flags)
  assert report['participation']['num_rounds'] == 20
  assert report['participation']['min_separation'] == 7
  assert reporting.run_verify(tmp_path, report).returncode == 0
  assert '--num_rounds does not go with a round log' in _refused(*flags, LIMITS[0])
  adapting = HEAD.replace('mechanism=gaussian', 'mechanism=blt')
  assert adapting != HEAD
  assert '--strategy_file' in _refused(*flags[:2], adapting, flags[3])
  # With the ledger, the limits are those of the plan; the log shows them kept.
  statements.write_ledger(JOINT, tmp_path / 'ledger.jsonl', num_rounds=20)
  report = reporting.json_of(*flags, *LIMITS, f'--ledger={tmp_path}/ledger.jsonl')
  assert report['participation']['min_separation'] == 5
  assert reporting.run_verify(tmp_path, report).returncode == 0


def test_ledger_of_parts_is_refused_without_matching_parts(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  statements.write_ledger(JOINT, path, num_rounds=11)
  assert 'of parts of a model, --part for each' in _refused(
    '--target_delta=1e-6', f'--ledger={path}'
  )
  single = (*SHARED, '--mechanism=tree', '--noise_multiplier=4', f'--ledger={path}')
  assert 'has the parts' in _refused(*single)
  error = _refused(*SHARED, BODY, HEAD.replace('=3', '=3.5'), f'--ledger={path}')
  assert "'noise_multiplier': 3.0" in error and "'noise_multiplier': 3.5" in error
  limits = ('--num_rounds=20', '--min_separation=4', '--target_delta=1e-6')
  assert 'limits' in _refused(*limits, BODY, HEAD, f'--ledger={path}')


def test_ledger_of_all_weights_is_refused_with_parts(tmp_path):
  reporting.write_ledger(tmp_path / 'ledger.jsonl', reporting.TREE_OF_20, 5)
  error = _refused(*SHARED, BODY, HEAD, f'--ledger={tmp_path}/ledger.jsonl')
  assert 'has the parts None' in error


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((*SHARED, BODY), '--part: a joint mechanism has two parts or more'),
    (
      ('--target_delta=1e-6', BODY, HEAD),
      '--num_rounds is missing, which is not looked for',
    ),
    (
      (*SHARED, BODY, HEAD.replace('noise_multiplier=3', 'share=1')),
      'without a target each part has its noise_multiplier',
    ),
    ((*SHARED, BODY, HEAD, '--mechanism=tree'), '--mechanism does not go with --part'),
    ((*SHARED, BODY, HEAD, '--strategy_file=x'), 'of one mechanism for all weights'),
    (
      ('--num_rounds=20', '--target_delta=1e-6', '--sampling=poisson')
      + ('--sampling_probability=0.1', BODY.replace('tree', 'gaussian'), HEAD),
      'and a joint mechanism cannot',
    ),
    ((BODY, HEAD, '--run_dir=x'), '--part does not go with --run_dir'),
    (
      (*SHARED, BODY.replace(', mechanism', ' mechanism'), HEAD),
      'a comma is missing in weights=0 1 mechanism=tree',
    ),
  ],
)
def test_flags_that_do_not_go_with_parts_are_refused(arguments, message):
  assert message in _refused(*arguments)

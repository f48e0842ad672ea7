"""The report program.

Claims:

* The published Gboard run comes out, by either name of the separation.
* The command that a report prints gives the same report again.
* Files are written whole and never overwritten; wrong usage is one line and code 2, a
  missed target code 1.
* Reports come from flags, ledgers, round logs, run directories, JSON reports and
  several of them in any mixture, which add up; nothing is silently left out.
* A ledger and a round log of the same run are one report, or an error that names the
  round in which they differ.
* What no program can know is stated, and marked in every format as not verified.
"""

import datetime
import gzip
import hashlib
import json
import math
import os
import re
import shlex
import shutil

import dp_accounting
import numpy as np
import pytest

from tests import executing
from tests import json_schema
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import schema as schema_lib

GBOARD = (
  '--mechanism=tree',
  '--num_rounds=2000',
  '--max_participations=6',
  '--target_delta=1e-10',
)


def _report(*arguments):
  return executing.execute(report_program, *arguments)


def _json(*arguments):
  result = _report('--format=json', *arguments)
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout)


def test_published_gboard_run_by_either_name_of_the_separation():
  between = _json(*GBOARD, '--rounds_between=313', '--noise_multiplier=7')
  difference = _json(*GBOARD, '--min_separation=314', '--noise_multiplier=7')
  for each in (between, difference):
    del each['verification']['command']
  assert between == difference
  assert between['guarantee']['epsilon'] == pytest.approx(8.526093443, rel=1e-9)
  assert between['guarantee']['epsilon_rdp'] == pytest.approx(8.8986050, rel=1e-8)
  assert between['mechanism']['sensitivity_squared'] == pytest.approx(79, rel=1e-14)


def test_the_schema_is_printed_whole():
  result = _report('--schema')
  assert result.returncode == 0, result.stderr
  assert json.loads(result.stdout) == schema_lib.load()
  result = _report('--schema', '--mechanism=tree')
  assert result.returncode == 2
  assert '--mechanism does not go with --schema' in result.stderr


def test_target_gives_the_noise_that_keeps_it():
  report = _json(*GBOARD, '--rounds_between=313', '--target_epsilon=8.526093443452096')
  assert report['mechanism']['noise_multiplier'] == pytest.approx(7, rel=1e-9)
  assert report['guarantee']['epsilon'] <= 8.526093443452096


@pytest.mark.parametrize('target', ['2', '1', '3.3'])
def test_the_printed_noise_keeps_the_target(target):
  arguments = ('--mechanism=tree', '--num_rounds=200', '--min_separation=20')
  arguments += (f'--target_epsilon={target}', '--target_delta=1e-6')
  shown = _report(*arguments, '--format=text').stdout
  (noise,) = re.findall(r'^  noise multiplier +(\S+)$', shown, re.MULTILINE)
  again = _report(*arguments, f'--noise_multiplier={noise}')
  assert again.returncode == 0, again.stderr


def test_the_printed_command_gives_the_same_numbers_again():
  report = _json(
    '--mechanism=banded',
    '--num_rounds=90',
    '--min_separation=9',
    '--num_bands=7',
    '--target_epsilon=2',
    '--target_delta=1e-7',
    '--adjacency=replace_one',
  )
  program, arguments = report['verification']['command'].split('report ', 1)
  assert program == 'python -m tff_dp_aggregators.accounting.'
  assert _json(*shlex.split(arguments)) == report


def test_output_file_is_written_whole_and_never_overwritten(tmp_path):
  path = tmp_path / 'report.md'
  arguments = (*GBOARD, '--noise_multiplier=7', f'--output={path}')
  assert _report(*arguments).returncode == 0
  text = path.read_text()
  assert text.startswith('# Privacy report')
  again = _report(*arguments)
  assert again.returncode == 2
  assert 'exists and is not overwritten' in again.stderr
  assert path.read_text() == text
  assert os.listdir(tmp_path) == ['report.md']


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    ((), 2, '--target_delta is missing'),
    (('--mechanism=oak',), 2, 'should be one of <gaussian|tree'),
    (('--num_rounds=many',), 2, 'flag --num_rounds=many'),
    (('--no_such_flag',), 2, "Unknown command line flag 'no_such_flag'"),
    (('--flagfile=/nowhere',), 2, 'Unable to open flagfile'),
    ((*GBOARD, 'more', '--noise_multiplier=1'), 2, "unexpected arguments ['more']"),
    (('--run_dir=/nowhere',), 2, 'is not a run directory'),
    (('--run_dir=.', '--num_rounds=3'), 2, '--num_rounds does not go with --run_dir'),
    (('--run_dir=.', '--ledger=x'), 2, '. is not a run directory'),
    (('--report=/nowhere',), 2, 'No such file'),
    (('--report=x', '--mechanism=tree'), 2, '--mechanism does not go with --report'),
    (('--report=x', '--accountant=rdp'), 2, 'does not go with a single --report'),
    (('--run_dir=.', '--wait_from=completion'), 2, '--wait_from is for --round_log'),
    (('--mechanism=tree', '--mechanism=gaussian'), 2, '--mechanism is given twice'),
    (('--ledger=x', '--ledger=y', '--round_log=z'), 2, '--ledger is given 2 times and'),
    (
      (*GBOARD, '--ledger=x', '--ledger=y', '--target_epsilon=3'),
      2,
      '--target_epsilon is for one mechanism',
    ),
    (('--verify=x', '--report=y'), 2, '--report does not go with --verify'),
    (('--run_dir=.', '--clip_norm=1'), 2, '--clip_norm does not go with --run_dir'),
    (('--verify=x', '--enforced_by=y'), 2, '--enforced_by does not go with --verify'),
    ((*GBOARD, '--population_name=x'), 2, '--population_name is for --round_log'),
    ((*GBOARD, '--columns=round=x'), 2, '--columns is for --round_log'),
    ((*GBOARD, '--noise_source= '), 2, '--noise_source is empty'),
    ((*GBOARD, '--clip_norm=0'), 2, '--clip_norm must be positive and finite; got 0'),
    ((*GBOARD, '--clip_norm=nan'), 2, '--clip_norm must be positive and finite; got'),
    (
      (*GBOARD, '--clip_norm=1', '--clipped_count_stddev=9'),
      2,
      '--clip_norm does not go with --clipped_count_stddev',
    ),
    (('--verify=/nowhere',), 2, 'No such file'),
    (('--verify=x', '--num_rounds=3'), 2, '--num_rounds does not go with --verify'),
    (('--verify=x', '--min_wait_hours=3'), 2, '--min_wait_hours does not go with'),
    (
      ('--mechanism=gaussian', '--num_rounds=3', '--noise_multiplier=1')
      + ('--target_delta=1e-6', '--sampling=fixed_size', '--population=99')
      + ('--cohort=9', '--accountant=prv'),
      2,
      'Unsupported event',
    ),
    ((*GBOARD, '--noise_multiplier=1', '--ledger=/nowhere'), 2, 'No such file'),
    (
      (*GBOARD, '--noise_multiplier=1', '--target_epsilon=1'),
      1,
      'noise multiplier 1 spends epsilon',
    ),
  ],
)
def test_wrong_usage_is_one_line_and_a_code(arguments, code, message):
  result = _report(*arguments)
  assert result.returncode == code
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert result.stderr.count('\n') == 1
  assert result.stdout == ''


def test_help_and_flagfile_work(tmp_path):
  shown = _report('--help')
  assert shown.returncode == 0
  for flag in ('--mechanism', '--round_log', '--verify', '--strategy_file'):
    assert flag in shown.stdout
  assert 'Exit codes: 0 fine' in shown.stdout
  flagfile = tmp_path / 'flags'
  flagfile.write_text('\n'.join((*GBOARD, '--rounds_between=313')))
  report = _json(f'--flagfile={flagfile}', '--noise_multiplier=7')
  assert report['mechanism']['sensitivity_squared'] == pytest.approx(79, rel=1e-14)


def _write_ledger(path, mechanism, num_rounds):
  multipliers, _ = events.round_noise_multipliers(
    mechanism.strategy, mechanism.participation, mechanism.noise_multiplier
  )
  with ledger.LedgerWriter(str(path), delta=1e-6) as writer:
    for multiplier in multipliers[:num_rounds]:
      writer.append(
        event=dp_accounting.GaussianDpEvent(float(multiplier)),
        cohort_requested=10,
        cohort_reported=10,
        clip_norm=0.5,
        noise_multiplier=mechanism.noise_multiplier,
        strategy_checksum=mechanism.strategy.checksum,
      )


def _write_run(folder, mechanism, num_rounds, seed=None):
  folder.mkdir()
  privacy = {
    'mechanism': mechanism.to_json(),
    'target_epsilon': None,
    'delta': 1e-6,
    'clip_norm': 0.5,
    'enforced_by': 'a test',
    'noise_source': 'a seed',
    'noise_seed': seed,
  }
  (folder / 'config.json').write_text(json.dumps({'privacy': privacy}))
  mechanism.strategy.save(folder / 'strategy.npz')
  _write_ledger(folder / 'ledger.jsonl', mechanism, num_rounds)


def test_a_ledger_is_reported_for_the_mechanism_in_flags(tmp_path):
  mechanism = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  _write_ledger(tmp_path / 'ledger.jsonl', mechanism, 11)
  arguments = ('--mechanism=tree', '--num_rounds=20', '--min_separation=5')
  arguments += ('--target_delta=1e-6', f'--ledger={tmp_path}/ledger.jsonl')
  report = _json(*arguments, '--noise_multiplier=4')
  spent = mechanism.strategy.sensitivity_squared_by_round(mechanism.participation)[10]
  expected = accounting.accountants.gaussian.epsilon_of(spent**0.5 / 4.0, 1e-6)
  assert report['guarantee']['epsilon'] == pytest.approx(expected, rel=1e-9)
  assert report['run']['rounds_completed'] == 11
  (file,) = report['verification']['files']
  content = (tmp_path / 'ledger.jsonl').read_bytes()
  assert file['sha256'] == hashlib.sha256(content).hexdigest()
  other = _report(*arguments, '--noise_multiplier=5')
  assert other.returncode == 2 and 'round 0 of the ledger used' in other.stderr


@pytest.mark.parametrize(
  'given, asked_for',
  [
    ((), '--ledger needs --noise_multiplier and --num_rounds as well'),
    (('--noise_multiplier=4',), '--ledger needs --num_rounds as well'),
  ],
)
def test_a_ledger_without_its_plan_is_refused_by_name(tmp_path, given, asked_for):
  mechanism = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  _write_ledger(tmp_path / 'ledger.jsonl', mechanism, 11)
  ledger = f'--ledger={tmp_path}/ledger.jsonl'
  result = _report('--mechanism=tree', '--target_delta=1e-6', ledger, *given)
  assert result.returncode == 2 and asked_for in result.stderr


def test_runs_on_the_same_clients_compose(tmp_path):
  tree = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  toeplitz = accounting.Mechanism('toeplitz', strategies.Participation(12, 3), 3.0)
  _write_run(tmp_path / 'one', tree, 20)
  _write_run(tmp_path / 'two', toeplitz, 12)
  report = _json(f'--run_dir={tmp_path}/one', f'--run_dir={tmp_path}/two')
  mu = math.hypot(
    1 / tree.effective_noise_multiplier, 1 / toeplitz.effective_noise_multiplier
  )
  assert report['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)
  expected = accounting.accountants.gaussian.epsilon_of(mu, 1e-6)
  assert report['guarantee']['epsilon'] == pytest.approx(expected, rel=1e-9)
  assert [part['mechanism']['name'] for part in report['parts']] == ['tree', 'toeplitz']
  mechanism = report['mechanism']
  assert mechanism['effective_noise_multiplier'] == pytest.approx(1 / mu, rel=1e-9)


def test_runs_that_share_their_noise_do_not_compose(tmp_path):
  tree = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  for name, seed in (('one', 1), ('two', 2), ('other', 1)):
    _write_run(tmp_path / name, tree, 20, seed)
  one, two, other = (f'--run_dir={tmp_path / name}' for name in ('one', 'two', 'other'))
  assert _report(one, two).returncode == 0
  for arguments, message in (
    ((one, two, other), 'have their noise from the same seed'),
    ((one, two, one + '/'), 'a run is given twice'),
  ):
    result = _report(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


def _write_log(path, num_rounds):
  start = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
  lines = ['round,completion_time']
  for number in range(num_rounds):  # A round in three hours: eight in a day.
    time = start + datetime.timedelta(hours=3 * number)
    lines.append(f'{number},{time.isoformat()}')
  path.write_text('\n'.join(lines) + '\n')
  return path


def test_a_round_log_gives_the_limits(tmp_path):
  log = _write_log(tmp_path / 'rounds.csv', 60)
  arguments = ('--mechanism=tree', '--target_delta=1e-6', '--noise_multiplier=7')
  report = _json(*arguments, f'--round_log={log}')
  participation = report['participation']
  assert report['mechanism']['num_rounds'] == 60
  # In any open window of 24 hours, seven rounds are complete.
  assert participation['min_separation'] == 7
  same = _json(
    *arguments,
    '--num_rounds=60',
    f'--min_separation={participation["min_separation"]}',
    f'--max_participations={participation["max_participations"]}',
  )
  assert report['guarantee'] == same['guarantee']
  assert report['verification']['files'][0]['role'] == 'round_log'


TREE_OF_20 = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
OF_TREE_OF_20 = ('--mechanism=tree', '--num_rounds=20', '--min_separation=5')
OF_TREE_OF_20 += ('--noise_multiplier=4', '--target_delta=1e-6')


def _mu(mechanism, num_rounds):
  by_round = mechanism.strategy.sensitivity_squared_by_round(mechanism.participation)
  return by_round[num_rounds - 1] ** 0.5 / mechanism.noise_multiplier


def test_two_ledgers_spend_together(tmp_path):
  _write_ledger(tmp_path / 'one.jsonl', TREE_OF_20, 11)
  _write_ledger(tmp_path / 'two.jsonl', TREE_OF_20, 20)
  one, two = (f'--ledger={tmp_path}/{name}.jsonl' for name in ('one', 'two'))
  report = _json(*OF_TREE_OF_20, one, two)
  mu = math.hypot(_mu(TREE_OF_20, 11), _mu(TREE_OF_20, 20))
  assert report['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)
  for alone in (_json(*OF_TREE_OF_20, one), _json(*OF_TREE_OF_20, two)):
    assert report['guarantee']['epsilon'] > 1.1 * alone['guarantee']['epsilon']
    assert alone in report['parts']
  assert [file['path'] for file in report['verification']['files']] == [
    f'{tmp_path}/one.jsonl',
    f'{tmp_path}/two.jsonl',
  ]
  (tmp_path / 'flags').write_text('\n'.join((*OF_TREE_OF_20, one)))
  from_file = _json(f'--flagfile={tmp_path}/flags', two)
  assert from_file['guarantee'] == report['guarantee']


def test_what_is_composed_can_come_from_anywhere(tmp_path):
  toeplitz = accounting.Mechanism('toeplitz', strategies.Participation(12, 3), 3.0)
  gaussian = accounting.Mechanism('gaussian', strategies.Participation(7), 6.0)
  _write_run(tmp_path / 'run', toeplitz, 12)
  _write_ledger(tmp_path / 'ledger.jsonl', TREE_OF_20, 11)
  _write_ledger(tmp_path / 'other.jsonl', gaussian, 7)
  log = _write_log(tmp_path / 'rounds.csv', 20)
  log_only = ('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6')
  # A ledger of another mechanism, and what already is a composition of two.
  saved = {
    'other': ('--mechanism=gaussian', '--num_rounds=7', '--noise_multiplier=6')
    + ('--target_delta=1e-6', f'--ledger={tmp_path}/other.jsonl'),
    'both': (*log_only, f'--round_log={log}', f'--run_dir={tmp_path}/run'),
  }
  for name, arguments in saved.items():
    path = f'--output={tmp_path}/{name}.json'
    result = _report(*arguments, '--format=json', path)
    assert result.returncode == 0, result.stderr
  report = _json(
    f'--report={tmp_path}/other.json',
    *OF_TREE_OF_20,
    f'--ledger={tmp_path}/ledger.jsonl',
    f'--report={tmp_path}/both.json',
  )
  proved = _json(*log_only, f'--round_log={log}')
  mu = math.hypot(
    _mu(TREE_OF_20, 11),
    _mu(gaussian, 7),
    1 / toeplitz.effective_noise_multiplier,
    proved['guarantee']['gdp_mu'],
  )
  assert report['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)
  assert [part['mechanism']['name'] for part in report['parts']] == [
    'tree',
    'gaussian',
    'composition',
  ]
  arguments = shlex.split(report['verification']['command'].split('report ', 1)[1])
  assert _json(*arguments) == report
  (tmp_path / 'all.json').write_text(json.dumps(report))
  verified = _report(f'--verify={tmp_path}/all.json')
  assert verified.returncode == 0, verified.stdout
  for output_format in ('text', 'markdown', 'html'):
    shown = _report(f'--report={tmp_path}/all.json', f'--format={output_format}')
    assert shown.returncode == 0, shown.stderr
    assert 'in all 3 runs together' in ' '.join(shown.stdout.split())


def test_reports_that_moved_compose_with_their_files_beside_them(tmp_path, monkeypatch):
  (tmp_path / 'old').mkdir()
  _write_ledger(tmp_path / 'old' / 'ledger.jsonl', TREE_OF_20, 11)
  _write_run(tmp_path / 'old' / 'run', TREE_OF_20, 20)
  monkeypatch.chdir(tmp_path / 'old')
  for name, arguments in (
    ('ledger', (*OF_TREE_OF_20, '--ledger=ledger.jsonl')),
    ('run/report', ('--run_dir=run',)),
  ):
    assert _report(*arguments, '--format=json', f'--output={name}.json')[0] == 0
  monkeypatch.chdir(tmp_path)
  report = _json('--report=old/ledger.json', '--report=old/run/report.json')
  assert [file['path'] for file in report['verification']['files']] == [
    'old/ledger.jsonl',
    'old/run/config.json',
    'old/run/strategy.npz',
    'old/run/ledger.jsonl',
  ]
  (tmp_path / 'both.json').write_text(json.dumps(report))
  verified = _report('--verify=both.json')
  assert verified.returncode == 0, verified.stdout


def test_a_run_given_twice_is_refused_whatever_it_comes_as(tmp_path):
  _write_run(tmp_path / 'run', TREE_OF_20, 20)
  log = _write_log(tmp_path / 'rounds.csv', 20)
  ledger_path = tmp_path / 'run' / 'ledger.jsonl'
  (tmp_path / 'copy.jsonl').write_bytes(ledger_path.read_bytes())
  by_ledger = (*OF_TREE_OF_20, f'--ledger={ledger_path}')
  saved = f'{tmp_path}/saved.json'
  assert _report(*by_ledger, '--format=json', f'--output={saved}').returncode == 0
  by_log = ('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6')
  for arguments, what in (
    ((*by_ledger, f'--ledger={ledger_path}'), 'the same ledger'),
    ((*by_ledger, f'--ledger={tmp_path}/copy.jsonl'), 'the same ledger'),
    ((*by_ledger, f'--run_dir={tmp_path}/run'), 'the same ledger'),
    ((*by_ledger, f'--report={saved}'), 'the same ledger'),
    ((f'--report={saved}', f'--report={saved}'), 'the same ledger'),
    ((*by_log, f'--round_log={log}', f'--round_log={log}'), 'the same round log'),
  ):
    result = _report(*arguments)
    assert result.returncode == 2, arguments
    assert 'a run is given twice, in --' in result.stderr
    assert what in result.stderr


def test_runs_that_went_on_from_one_state_do_not_compose(tmp_path):
  # Their noise is the same, so the difference of what they released has none.
  mechanism = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  multipliers, _ = events.round_noise_multipliers(
    mechanism.strategy, mechanism.participation, mechanism.noise_multiplier
  )

  def go_on(path, results, resume):
    with ledger.LedgerWriter(str(path), delta=1e-6, resume=resume) as writer:
      for result in results:
        writer.append(
          event=dp_accounting.GaussianDpEvent(float(multipliers[writer.rounds])),
          cohort_requested=10,
          cohort_reported=10,
          clip_norm=0.5,
          noise_multiplier=4.0,
          strategy_checksum=mechanism.strategy.checksum,
          result_checksum=ledger.checksum_of([np.array([result])]),
        )

  one, fork, again, other = (tmp_path / f'{name}.jsonl' for name in range(4))
  go_on(one, [0.0, 0.1], resume=False)
  shutil.copy(one, fork)
  shutil.copy(one, tmp_path / 'beginning.jsonl')
  go_on(one, [0.2, 0.3], resume=True)
  go_on(fork, [0.4, 0.5], resume=True)
  go_on(again, [0.6, 0.3], resume=False)
  go_on(other, [0.7, 0.8], resume=False)
  flags = ['--mechanism=tree', '--num_rounds=20', '--min_separation=5']
  flags += ['--noise_multiplier=4', '--target_delta=1e-6']
  for second, alike in (
    (fork, 'begin with the same line'),
    (tmp_path / 'beginning.jsonl', 'begin with the same line'),
    (again, 'have the same result'),
  ):
    for pair in ((one, second), (second, one)):
      result = _report(*flags, *(f'--ledger={path}' for path in pair))
      assert result.returncode == 2 and result.stdout == ''
      assert f'{pair[0]} and {pair[1]} {alike}: they are of one run' in result.stderr
  report = _json(*flags, f'--ledger={one}', f'--ledger={other}')
  assert len(report['parts']) == 2


def test_a_plan_counts_as_often_as_it_is_given(tmp_path):
  saved = f'{tmp_path}/plan.json'
  _report(*OF_TREE_OF_20, '--format=json', f'--output={saved}')
  twice = _json(f'--report={saved}', f'--report={saved}')
  mu = math.sqrt(2) / TREE_OF_20.effective_noise_multiplier
  assert twice['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)


def test_what_does_not_compose_is_refused_with_both_values(tmp_path):
  plan = ('--mechanism=gaussian', '--num_rounds=9', '--noise_multiplier=5')
  kinds = {
    'plan': (*plan, '--target_delta=1e-6'),
    'delta': (*plan, '--target_delta=1e-7'),
    'replace': (*plan, '--target_delta=1e-6', '--adjacency=replace_one'),
  }
  for name, arguments in kinds.items():
    _report(*arguments, '--format=json', f'--output={tmp_path}/{name}.json')
  reports = {name: f'--report={tmp_path}/{name}.json' for name in kinds}
  result = _report(reports['plan'], reports['delta'])
  assert result.returncode == 2
  assert f'the same delta; {reports["plan"]} has 1e-06, {reports["delta"]} has' in (
    result.stderr
  )
  result = _report(reports['plan'], reports['replace'])
  assert result.returncode == 2
  assert 'the same adjacency; ' in result.stderr
  altered = json.loads((tmp_path / 'plan.json').read_text())
  altered['guarantee']['epsilon'] /= 2
  (tmp_path / 'altered.json').write_text(json.dumps(altered))
  result = _report(reports['plan'], f'--report={tmp_path}/altered.json')
  assert result.returncode == 2
  assert 'altered.json is not what is computed from its inputs' in result.stderr
  assert 'guarantee.epsilon is ' in result.stderr


def _write_production(folder, rounds=11, hours=4, cohort=10, first=1):
  """A ledger and a packed log of the same run, with columns of other names."""
  _write_ledger(folder / 'ledger.jsonl', TREE_OF_20, 11)
  lines = ['nr\tdone\tn\tlang']
  for number in range(rounds):
    size = cohort(number) if callable(cohort) else cohort
    lines.append(f'{number + first}\t{1.7e9 + 3600 * hours * number}\t{size}\tes')
    lines.append(f'{number + first}\t{1.7e9 + 60 * number}\t7\tfr')
  log = folder / 'rounds.tsv.gz'
  log.write_bytes(gzip.compress('\n'.join(lines).encode()))
  return (
    f'--ledger={folder}/ledger.jsonl',
    f'--round_log={log}',
    '--columns=round=nr,completion_time=done,cohort_size=n,population=lang',
    '--population_name=es',
  )


def test_a_ledger_and_a_log_of_one_run_are_one_report(tmp_path):
  files = _write_production(tmp_path)
  report = _json(*OF_TREE_OF_20, *files)
  assert report['parts'] == []
  assert report['guarantee'] == _json(*OF_TREE_OF_20, files[0])['guarantee']
  source = report['participation']['source']
  assert (source['num_rounds'], source['min_separation']) == (11, 5)
  assert report['participation']['min_separation'] == 5
  assert report['participation']['enforced_by'].startswith('the wait between')
  roles = [file['role'] for file in report['verification']['files']]
  assert sorted(roles) == ['ledger', 'round_log']
  arguments = shlex.split(report['verification']['command'].split('report ', 1)[1])
  assert _json(*arguments) == report
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  verified = _report(f'--verify={path}')
  assert verified.returncode == 0, verified.stdout
  (tmp_path / 'slower').mkdir()
  slower = _write_production(tmp_path / 'slower', hours=7)[1].split('=', 1)[1]
  os.replace(slower, files[1].split('=', 1)[1])
  verified = _report(f'--verify={path}')
  assert verified.returncode == 1
  assert 'the limits were not kept' in verified.stdout


def test_limits_that_are_not_stated_are_those_of_the_log(tmp_path):
  files = _write_production(tmp_path)
  run_for_these = accounting.Mechanism('tree', strategies.Participation(11, 5, 2), 4.0)
  _write_ledger(tmp_path / 'other.jsonl', run_for_these, 11)
  of_tree = ('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6')
  report = _json(*of_tree, f'--ledger={tmp_path}/other.jsonl', *files[1:])
  assert report['participation']['num_rounds'] == 11
  result = _report(*of_tree, *files)  # Of a run that was planned for 20 rounds.
  assert result.returncode == 2
  assert 'round 0 of the ledger used strategy' in result.stderr


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'cohort': lambda number: 10 + (number == 6)},
      'in round 6 (number 7 in the log) the ledger has 10 clients that reported, the '
      'round log 11 clients',
    ),
    (
      {'cohort': lambda number: 10 - (number == 6), 'first': 0},
      'in round 6 the ledger has 10 clients that reported, the round log 9 clients',
    ),
    ({'rounds': 9}, 'round 9 (number 10 in the log) of the ledger is not in the round'),
    ({'rounds': 12, 'first': 0}, 'round 11 of the round log is not in the ledger'),
    (
      {'hours': 7},
      'a device that waits 24 h can be in rounds 1 and 4, which are 3 apart; promised: '
      'at least 5',
    ),
  ],
)
def test_a_ledger_and_a_log_that_disagree_are_refused_with_the_round(
  tmp_path, changes, message
):
  files = _write_production(tmp_path, **changes)
  result = _report(*OF_TREE_OF_20, *files)
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stderr.count('\n') == 1


def test_a_log_says_nothing_of_fixed_epochs(tmp_path):
  result = _report(*OF_TREE_OF_20, '--fixed_epoch', *_write_production(tmp_path))
  assert result.returncode == 2
  assert 'not that they are fixed epochs apart' in result.stderr


def test_client_ids_of_a_log_are_counted_against_the_ledger(tmp_path):
  _write_ledger(tmp_path / 'ledger.jsonl', TREE_OF_20, 11)
  arguments = (*OF_TREE_OF_20, f'--ledger={tmp_path}/ledger.jsonl')
  for missing in (None, 4):
    lines = ['round,client_ids']
    for number in range(11):
      names = [f'{number}.{i}' for i in range(9 if number == missing else 10)]
      lines.append(f'{number},{" ".join(names)}')
    path = tmp_path / f'{missing}.csv'
    path.write_text('\n'.join(lines))
    result = _report(*arguments, f'--round_log={path}', '--format=json')
    if missing is None:
      assert result.returncode == 0, result.stderr
      assert 'what they might have done' in result.stdout
    else:
      assert result.returncode == 2
      assert 'in round 4 the ledger has 10 clients that reported, the round log 9' in (
        result.stderr
      )


def test_pairs_of_ledgers_and_logs_compose(tmp_path):
  pairs = []
  for name in ('one', 'two'):
    (tmp_path / name).mkdir()
    pairs.append(_write_production(tmp_path / name))
  one, two = pairs
  report = _json(*OF_TREE_OF_20, *one, *two[:2])
  mu = math.sqrt(2) * _mu(TREE_OF_20, 11)
  assert report['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)
  for part, files in zip(report['parts'], pairs):
    paths = {file['path'] for file in part['verification']['files']}
    assert paths == {each.split('=', 1)[1] for each in files[:2]}


FACTS = {
  'enforced_by': 'the scheduler of the app',
  'cap_enforced_by': 'its counter of rounds',
  'noise_source': 'a hardware generator',
  'clip_norm': 0.5,
  'code_version': 'trainer 1.2.3',
}


def test_what_is_stated_is_marked_so_in_every_format(tmp_path):
  capped = (*OF_TREE_OF_20, '--max_participations=3')
  plan = (*capped, *(f'--{name}={value}' for name, value in FACTS.items()))
  report = _json(*plan)
  assert report['provenance'] == dict.fromkeys(FACTS, 'stated')
  for name in ('enforced_by', 'cap_enforced_by'):
    assert report['participation'][name] == FACTS[name]
  assert report['mechanism']['noise_source'] == FACTS['noise_source']
  assert report['mechanism']['clip_norm'] == FACTS['clip_norm']
  assert report['code_version'] == FACTS['code_version']
  assert report['guarantee'] == _json(*capped)['guarantee']
  assert not list(json_schema.violations(report, schema_lib.load()))
  arguments = shlex.split(report['verification']['command'].split('report ', 1)[1])
  assert _json(*arguments) == report
  for output_format in ('text', 'markdown', 'html'):
    shown = ' '.join(_report(*plan, f'--format={output_format}').stdout.split())
    shown = re.sub(r'\\|</?span[^>]*>', '', shown)  # A page keeps numbers whole.
    for value in FACTS.values():
      assert f'{value} (stated, not verified)' in shown
    bare = _report(*OF_TREE_OF_20, f'--format={output_format}').stdout
    assert 'not verified' not in bare
  path = tmp_path / 'report.json'
  for name in FACTS:
    for provenance in ('recorded', 'not_stated'):
      changed = json.loads(json.dumps(report))
      changed['provenance'][name] = provenance
      path.write_text(json.dumps(changed))
      assert _report(f'--verify={path}').returncode == 1
  path.write_text(json.dumps(report))
  assert _report(f'--verify={path}').returncode == 0


def test_what_a_file_of_the_run_shows_is_not_marked(tmp_path):
  assert set(_json(*OF_TREE_OF_20)['provenance'].values()) == {'not_stated'}
  _write_run(tmp_path / 'run', TREE_OF_20, 11)
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  config['software'] = {'tff_dp_aggregators': '0.1.0', 'commit': 'c0ffee'}
  (tmp_path / 'run' / 'config.json').write_text(json.dumps(config))
  run = _json(f'--run_dir={tmp_path}/run')
  assert run['provenance'] == {
    **dict.fromkeys(FACTS, 'recorded'),
    'cap_enforced_by': 'not_stated',  # There is none.
  }
  assert run['code_version'] == 'tff_dp_aggregators 0.1.0 (commit c0ffee)'
  (tmp_path / 'production').mkdir()
  files = _write_production(tmp_path / 'production')
  report = _json(*OF_TREE_OF_20, *files, '--clip_norm=0.5', '--enforced_by=the app')
  assert report['provenance'] == {
    'enforced_by': 'stated',
    'cap_enforced_by': 'not_stated',
    'noise_source': 'not_stated',
    'clip_norm': 'recorded',
    'code_version': 'not_stated',
  }
  assert report['participation']['enforced_by'] == (
    'the wait between two rounds of a device; that the limits were kept follows from '
    'it and from when rounds were complete; what enforces the wait: the app'
  )
  unstated = _json(*OF_TREE_OF_20, *files)
  assert unstated['provenance']['enforced_by'] == 'recorded'
  for each in (run, report, unstated):
    assert not list(json_schema.violations(each, schema_lib.load()))
    path = tmp_path / 'report.json'
    path.write_text(json.dumps(each))
    verified = _report(f'--verify={path}')
    assert verified.returncode == 0, verified.stdout


def test_a_stated_clip_norm_that_the_ledger_contradicts_is_refused(tmp_path):
  _write_ledger(tmp_path / 'ledger.jsonl', TREE_OF_20, 11)
  arguments = (*OF_TREE_OF_20, f'--ledger={tmp_path}/ledger.jsonl')
  assert _report(*arguments, '--clip_norm=0.5').returncode == 0
  result = _report(*arguments, '--clip_norm=0.6')
  assert result.returncode == 2
  assert 'clip_norm is 0.6, but 0.5 in round 0 of the ledger' in result.stderr


def test_run_directory_with_a_foreign_or_unprivate_configuration_is_refused(tmp_path):
  config = tmp_path / 'config.json'
  for text, message in (
    ('{', 'is not the configuration of a run'),
    ('{}', 'is not the configuration of a run'),
    ('{"privacy": null}', 'had no privacy mechanism'),
  ):
    config.write_text(text)
    result = _report(f'--run_dir={tmp_path}')
    assert result.returncode == 2
    assert message in result.stderr


def test_a_ledger_without_noise_has_no_epsilon(tmp_path):
  mechanism = accounting.Mechanism('gaussian', strategies.Participation(3), 0.0)
  path = tmp_path / 'ledger.jsonl'
  what = {
    'cohort_requested': 3,
    'cohort_reported': 3,
    'clip_norm': 0.5,
    'noise_multiplier': 0.0,
    'strategy_checksum': mechanism.strategy.checksum,
  }
  arguments = ['--mechanism=gaussian', '--num_rounds=3', '--rounds_between=0']
  arguments += ['--noise_multiplier=0', '--target_delta=1e-6', f'--ledger={path}']
  with ledger.LedgerWriter(path, delta=1e-6) as writer:
    writer.append(event=dp_accounting.NonPrivateDpEvent(), **what)
  result = _report(*arguments)
  assert result.returncode == 0 and 'Guarantee: none' in result.stdout
  event = '{"type": "GaussianDpEvent", "noise_multiplier": 5.0}'
  line = json.loads(path.read_text())
  line.update(event=json.loads(event), effective_noise_multiplier=5.0)
  line.update(
    epsilon=accounting.accountants.epsilon(dp_accounting.GaussianDpEvent(5.0), 1e-6)
  )
  path.write_text(json.dumps(line) + '\n')
  result = _report(*arguments)
  assert result.returncode == 2 and result.stdout == ''
  assert 'noise_multiplier is 0, but the event is GaussianDpEvent' in result.stderr


def test_a_ledger_without_a_clip_norm_has_no_epsilon(tmp_path):
  mechanism = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  path = tmp_path / 'ledger.jsonl'
  _write_ledger(path, mechanism, 1)
  path.write_text(path.read_text().replace('"clip_norm": 0.5', '"clip_norm": null'))
  result = _report(
    '--mechanism=tree',
    '--num_rounds=20',
    '--min_separation=5',
    '--noise_multiplier=4',
    '--target_delta=1e-6',
    f'--ledger={path}',
  )
  assert result.returncode == 2
  assert f'{path}, line 1: not a ledger entry: clip_norm is null' in result.stderr
  assert 'State the clip norm' in result.stderr
  assert result.stderr.count('\n') == 1 and result.stdout == ''

"""Tests of the report program with ledgers and round logs of production."""

import json
import os

import dp_accounting
import numpy as np
import pytest

from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies

# Round logs, alone and with a ledger.


def test_limits_follow_from_round_log(tmp_path):
  log = statements.write_round_log(tmp_path, 60)
  arguments = ('--mechanism=tree', '--target_delta=1e-6', '--noise_multiplier=7')
  report = reporting.json_of(*arguments, f'--round_log={log}')
  participation = report['participation']
  assert report['mechanism']['num_rounds'] == 60
  # In any open window of 24 hours, seven rounds are complete.
  assert participation['min_separation'] == 7
  limits = strategies.Participation(60, 7, participation['max_participations'])
  expected = accounting.Mechanism('tree', limits, 7.0).epsilon(1e-6)
  assert report['guarantee']['epsilon'] == expected
  # No file says which mechanism ran.
  assert report['provenance']['mechanism'] == 'stated'


def test_ledger_and_round_log_of_one_run_give_one_report(tmp_path):
  files = reporting.write_production(tmp_path)
  report = reporting.json_of(*reporting.TREE_OF_20_FLAGS, *files)
  assert report['parts'] == []
  assert report['guarantee']['epsilon'] == reporting.TREE_OF_20.epsilon(1e-6)
  source = report['participation']['source']
  assert (source['num_rounds'], source['min_separation']) == (11, 5)
  assert report['participation']['min_separation'] == 5
  assert report['participation']['enforced_by'].startswith('the wait between')
  roles = [file['role'] for file in report['verification']['files']]
  assert sorted(roles) == ['ledger', 'round_log']
  assert reporting.rerun(report) == report
  verified = reporting.run_verify(tmp_path, report)
  assert verified.returncode == 0, verified.stdout
  (tmp_path / 'slower').mkdir()
  slower = reporting.write_production(tmp_path / 'slower', hours=7)[1].split('=', 1)[1]
  os.replace(slower, files[1].split('=', 1)[1])
  verified = reporting.run_verify(tmp_path, report)
  assert verified.returncode == 1
  assert 'the limits were not kept' in verified.stdout


def test_limits_without_flags_are_those_of_the_round_log(tmp_path):
  files = reporting.write_production(tmp_path)
  mechanism = accounting.Mechanism('tree', strategies.Participation(11, 5, 2), 4.0)
  reporting.write_ledger(tmp_path / 'other.jsonl', mechanism, 11)
  flags = ('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6')
  report = reporting.json_of(*flags, f'--ledger={tmp_path}/other.jsonl', *files[1:])
  assert report['participation']['num_rounds'] == 11
  # This ledger is of a run that was planned for 20 rounds.
  result = reporting.execute(*flags, *files)
  assert result.returncode == 2
  assert 'round 0 of the ledger has the strategy' in result.stderr


@pytest.mark.parametrize(
  ('flags', 'changes', 'message'),
  [
    (('--fixed_epoch',), {}, 'a round log cannot show fixed epochs'),
    (
      (),
      {'cohort': lambda number: 10 + (number == 6)},
      'in round 6 (number 7 in the log) the ledger has 10 clients that reported',
    ),
    ((), {'rounds': 9}, 'has 11 rounds, the round log 9'),
    (
      (),
      {'hours': 7},
      'a device that waits 24 h can be in rounds 1 and 4, which are 3 apart; prom',
    ),
  ],
)
def test_ledger_and_round_log_that_disagree_are_refused(
  tmp_path, flags, changes, message
):
  files = reporting.write_production(tmp_path, **changes)
  result = reporting.execute(*reporting.TREE_OF_20_FLAGS, *flags, *files)
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stderr.count('\n') == 1


def test_client_ids_of_round_log_are_compared_with_ledger(tmp_path):
  reporting.write_ledger(tmp_path / 'ledger.jsonl', reporting.TREE_OF_20, 11)
  arguments = (*reporting.TREE_OF_20_FLAGS, f'--ledger={tmp_path}/ledger.jsonl')
  clients = [' '.join(f'{number}-{i}' for i in range(10)) for number in range(11)]
  path = tmp_path / 'rounds.csv'
  path.write_text('\n'.join(['client_ids', *clients]))
  columns = ('--columns=client_ids=client_ids', f'--round_log={path}')
  result = reporting.execute(*arguments, *columns, '--format=json')
  assert result.returncode == 0, result.stderr
  assert 'what they might have done' in result.stdout
  clients[4] = clients[4].partition(' ')[2]
  path.write_text('\n'.join(['client_ids', *clients]))
  result = reporting.execute(*arguments, *columns)
  assert result.returncode == 2
  assert 'round 4 the ledger has 10 clients that reported, the round log 9' in (
    result.stderr
  )


# What is stated, and what files show.


FACTS = {
  'enforced_by': 'the scheduler of the app',
  'cap_enforced_by': 'its counter of rounds',
  'noise_source': 'a hardware generator',
  'clip_norm': 0.5,
  'code_version': 'trainer 1.2.3',
}
MECHANISM_FACTS = ('mechanism', 'noise_multiplier')


def test_stated_facts_are_marked_as_not_verified(tmp_path):
  capped = (*reporting.TREE_OF_20_FLAGS, '--max_participations=3')
  plan = (*capped, *(f'--{name}={value}' for name, value in FACTS.items()))
  report = reporting.json_of(*plan)
  assert report['provenance'] == dict.fromkeys((*MECHANISM_FACTS, *FACTS), 'stated')
  for name in ('enforced_by', 'cap_enforced_by'):
    assert report['participation'][name] == FACTS[name]
  assert report['mechanism']['noise_source'] == FACTS['noise_source']
  assert report['mechanism']['clip_norm'] == FACTS['clip_norm']
  assert report['code_version'] == FACTS['code_version']
  assert not statements.violations(report)
  shown = ' '.join(reporting.execute(*plan).stdout.split()).replace('\\', '')
  for value in FACTS.values():
    assert f'{value} (stated, not verified)' in shown
  assert 'not verified' not in reporting.execute(*reporting.TREE_OF_20_FLAGS).stdout
  for name in ('mechanism', 'enforced_by', 'clip_norm'):
    changed = {**report, 'provenance': {**report['provenance'], name: 'recorded'}}
    assert reporting.run_verify(tmp_path, changed).returncode == 1
  assert reporting.run_verify(tmp_path, report).returncode == 0


def test_facts_from_files_of_the_run_are_marked_as_recorded(tmp_path):
  plan = reporting.json_of(*reporting.TREE_OF_20_FLAGS)['provenance']
  assert plan == {
    **dict.fromkeys(MECHANISM_FACTS, 'stated'),
    **dict.fromkeys(FACTS, 'not_stated'),
  }
  software = {'tff_dp_aggregators': '0.1.0', 'commit': 'c0ffee'}
  statements.run_dir(tmp_path / 'run', extra={'software': software})
  run = reporting.json_of(f'--run_dir={tmp_path}/run')
  assert run['provenance'] == {
    **dict.fromkeys((*MECHANISM_FACTS, *FACTS), 'recorded'),
    'cap_enforced_by': 'not_stated',  # There is none.
  }
  assert run['code_version'] == 'tff_dp_aggregators 0.1.0 (commit c0ffee)'
  (tmp_path / 'production').mkdir()
  files = reporting.write_production(tmp_path / 'production')
  report = reporting.json_of(
    *reporting.TREE_OF_20_FLAGS, *files, '--clip_norm=0.5', '--enforced_by=the app'
  )
  assert report['provenance'] == {
    **dict.fromkeys(MECHANISM_FACTS, 'recorded'),
    'enforced_by': 'stated',
    'cap_enforced_by': 'not_stated',
    'noise_source': 'not_stated',
    'clip_norm': 'recorded',
    'code_version': 'not_stated',
  }
  assert report['participation']['enforced_by'].endswith('the wait: the app')
  verified = reporting.run_verify(tmp_path, report)
  assert verified.returncode == 0, verified.stdout
  unstated = reporting.json_of(*reporting.TREE_OF_20_FLAGS, *files)
  assert unstated['provenance']['enforced_by'] == 'recorded'


# Strategies that are optimised for limits, and logs of actual participation.

_PLANNED = strategies.Participation(60, min_separation=10)


def _log_of_clients(path, num_rounds):
  """Writes a log of one client a round, 10 apart; one is in two adjacent rounds."""
  clients = [f'{r % 10}' for r in range(num_rounds)]
  clients[7] = clients[8] = 'often'
  lines = [
    f'{r},2024-03-01T{r // 60:02d}:{r % 60:02d}:00Z,{c}' for r, c in enumerate(clients)
  ]
  path.write_text('\n'.join(['round,completion_time,client_ids', *lines]) + '\n')
  return path


def test_delta_above_one_over_num_clients_is_warned_of(tmp_path):
  log = _log_of_clients(tmp_path / 'rounds.csv', 60)
  flags = ('--mechanism=gaussian', '--noise_multiplier=6', '--target_delta=0.1')
  sampled = ('--num_rounds=9', '--sampling=fixed_size', '--num_clients=11')
  for more in ((f'--round_log={log}',), (*sampled, '--clients_per_round=2')):
    result = reporting.execute(*flags, *more, '--format=json')
    (warning,) = json.loads(result.stdout)['warnings']
    text = 'elta is 0.1, and there are 11 clients: a mechanism that publishes all data'
    assert text in warning and text in result.stderr
    assert reporting.run_verify(tmp_path, json.loads(result.stdout)).returncode == 0
    fine = reporting.execute(*flags[:2], *more, '--target_delta=1e-6')
    assert 'there are 11 clients' not in fine.stdout and fine.stderr == ''


def test_report_of_run_warns_of_delta_above_one_over_num_clients(tmp_path):
  for num_clients, is_doubted in ((10**6, True), (10**5, False), ('many', False)):
    folder = tmp_path / f'{num_clients}'
    schedule = {'training': {'schedule': {'num_clients': num_clients}}}
    stated = reporting.json_of(
      f'--run_dir={statements.run_dir(folder, extra=schedule)}'
    )
    is_said = 'there are 1000000 clients' in ''.join(stated['warnings'])
    assert is_said == is_doubted
    assert reporting.run_verify(folder, stated).returncode == 0


_REMEDIES = ('--num_rounds', '--min_separation', '--strategy_file', '--run_dir')
_EPOCHS = ('--num_rounds=60', '--min_separation=10', '--fixed_epoch')


@pytest.mark.parametrize(
  'name, flags, words',
  [
    ('banded', (), _REMEDIES),
    ('blt', (), _REMEDIES),
    # The separation is needed: rounds alone would build another strategy.
    ('banded', ('--num_rounds=60',), ('--min_separation',)),
    ('toeplitz', ('--num_rounds=60',), ('--min_separation',)),
    ('toeplitz', ('--num_rounds=50', '--min_separation=10'), ('60 rounds',)),
    ('gaussian', _EPOCHS, ('--fixed_epoch does not go with a round log',)),
    ('tree', _EPOCHS, ('--fixed_epoch does not go with a round log',)),
  ],
)
def test_log_is_refused_with_flags_that_do_not_give_its_strategy(
  tmp_path, name, flags, words
):
  log = _log_of_clients(tmp_path / 'rounds.csv', 60)
  arguments = (f'--round_log={log}', f'--mechanism={name}', '--noise_multiplier=6')
  result = reporting.execute(*arguments, '--target_delta=1e-8', *flags)
  assert result.returncode == 2 and result.stdout == ''
  for each in words:
    assert each in result.stderr


@pytest.mark.parametrize('name, num_rounds', [('banded', 60), ('toeplitz', 45)])
def test_planned_strategy_is_accounted_for_under_limits_of_log(
  tmp_path, name, num_rounds
):
  log = _log_of_clients(tmp_path / 'rounds.csv', num_rounds)
  arguments = ('--noise_multiplier=6', '--target_delta=1e-8', f'--round_log={log}')
  planned = accounting.Mechanism(name, _PLANNED, 6.0)
  flags = ('--num_rounds=60', '--min_separation=10')
  report = reporting.json_of(f'--mechanism={name}', *flags, *arguments)
  max_participations = -(-num_rounds // 10)
  limits = strategies.Participation(60, 1, max_participations)
  sensitivity = planned.strategy.sensitivity(limits)
  expected = accounting.accountants.gaussian.epsilon_of(sensitivity / 6.0, 1e-8)
  epsilon = report['guarantee']['epsilon']
  if num_rounds < 60:  # In each of the 15 after them, a client may be again.
    later = strategies.Participation(60, 1, max_participations + 15)
    by_plan = planned.strategy.sensitivity(later) / 6.0
    assert report['guarantee']['gdp_mu'] == pytest.approx(by_plan, rel=1e-9)
    epsilon = report['stopped']['epsilon_completed']
  assert epsilon == pytest.approx(expected, rel=1e-9)
  optimised_again = accounting.Mechanism(
    name, strategies.Participation(60, 1, max_participations), 6.0
  )
  assert optimised_again.epsilon(1e-8) < expected
  # The file of the strategy that ran says the same.
  planned.strategy.save(str(tmp_path / 'strategy.npz'))
  file_flag = f'--strategy_file={tmp_path}/strategy.npz'
  by_file = reporting.json_of(file_flag, *arguments)
  if num_rounds < 60:
    assert by_file['stopped']['epsilon_completed'] == epsilon
    assert by_file['guarantee']['epsilon'] >= report['guarantee']['epsilon']
  else:
    assert by_file['guarantee']['epsilon'] == epsilon
  (warning,) = report['warnings']
  assert '10 apart, were not kept: 1 of 11 clients' in warning
  occurred = report['participation']['source']['occurred']
  assert 0 < occurred['epsilon'] <= report['guarantee']['epsilon']
  assert reporting.run_verify(tmp_path, report).returncode == 0


def test_planned_limits_that_were_kept_are_accounted_for(tmp_path):
  log = _log_of_clients(tmp_path / 'rounds.csv', 45)
  text = log.read_text().replace('often', 'x', 1).replace('often', 'y')
  log.write_text(text)
  arguments = ('--mechanism=toeplitz', '--noise_multiplier=6', '--target_delta=1e-8')
  flags = ('--num_rounds=60', '--min_separation=9', f'--round_log={log}')
  enforced_by = ('--enforced_by=the app',)
  report = reporting.json_of(*arguments, *flags, *enforced_by)
  # Rounds were 10 apart, 9 were allowed, in 45 rounds that ran and 15 that might.
  planned = accounting.Mechanism('toeplitz', strategies.Participation(60, 9), 6.0)
  strategy = planned.strategy
  assert report['guarantee']['epsilon'] == planned.epsilon(1e-8)
  ran = strategy.sensitivity(strategies.Participation(60, 9, 5)) / 6.0
  of_rounds = accounting.accountants.gaussian.epsilon_of(ran, 1e-8)
  stopped = report['stopped']
  assert stopped['epsilon_completed'] == pytest.approx(of_rounds, rel=1e-9)
  assert report['warnings'] == []
  source = report['participation']['source']
  assert source['planned']['broken'] == [] and source['min_separation'] == 10
  seen = strategy.materialize()[:, [0, 10, 20, 30, 40]].sum(axis=1)
  # The first client's rounds have the largest sensitivity that occurred.
  mu = float(np.linalg.norm(seen)) / 6.0
  occurred = accounting.accountants.gaussian.epsilon_of(mu, 1e-8)
  assert source['occurred']['epsilon'] == pytest.approx(occurred, rel=1e-6)
  assert source['occurred']['epsilon'] <= report['guarantee']['epsilon']
  participation = report['participation']
  assert participation['enforced_by'].endswith('what enforces them: the app')
  assert participation['enforced_by'].startswith('the log agrees with the limits; ')
  assert participation['cap_enforced_by'] is None
  assert reporting.run_verify(tmp_path, report).returncode == 0
  report['participation']['source']['occurred']['epsilon'] /= 2
  assert reporting.run_verify(tmp_path, report).returncode == 1


def _log_with_client_in(path, rounds):
  """Writes a log of 20 rounds, each with its own client, and client a in `rounds`."""
  clients = ([f'x{r}', *(['a'] * (r in rounds))] for r in range(20))
  lines = ({'round': r, 'client_ids': each} for r, each in enumerate(clients))
  path.write_text(''.join(f'{json.dumps(line)}\n' for line in lines))
  return f'--round_log={path}'


@pytest.mark.parametrize('name, cap', [('gaussian', 3), ('banded', None)])
def test_violated_plan_costs_no_less_than_one_that_was_kept(tmp_path, name, cap):
  # The client that comes back too soon comes twice; others might come four times.
  arguments = (f'--mechanism={name}', '--noise_multiplier=5', '--target_delta=1e-6')
  arguments += ('--num_rounds=20', '--min_separation=5')
  arguments += () if cap is None else (f'--max_participations={cap}',)
  epsilons = []
  for again in (5, 4):
    log = _log_with_client_in(tmp_path / 'log.jsonl', (0, again))
    report = reporting.json_of(*arguments, log)
    assert bool(report['warnings']) == (again == 4)
    epsilons.append(report['guarantee']['epsilon'])
  assert epsilons[1] >= epsilons[0]


@pytest.mark.parametrize('name', ['banded', 'epoch_banded'])
@pytest.mark.parametrize('apart, is_kept', [(8, True), (4, False)])
def test_planned_epochs_count_by_separation_of_rounds(tmp_path, name, apart, is_kept):
  # 8 is no multiple of 5, but only distances below 5 break the plan: a log cannot show
  # that clients who might have taken part keep to epochs.
  log = _log_with_client_in(tmp_path / 'log.jsonl', (0, apart))
  arguments = (f'--mechanism={name}', '--noise_multiplier=5', '--target_delta=1e-6')
  arguments += ('--num_rounds=20', '--min_separation=5', '--fixed_epoch')
  report = reporting.json_of(*arguments, log)
  planned = report['participation']['source']['planned']
  assert bool(planned['broken']) != is_kept and bool(report['warnings']) != is_kept
  epochs = strategies.Participation(20, 5, fixed_epoch=True)
  strategy = accounting.Mechanism(name, epochs, 5.0).strategy
  allowed = strategies.Participation(20, 5 if is_kept else 4, 4)
  expected = strategy.sensitivity(allowed) / 5.0
  assert report['guarantee']['gdp_mu'] == pytest.approx(expected, rel=1e-9)


def test_occurred_epsilon_is_the_guarantee_for_each_adjacency(tmp_path):
  path = tmp_path / 'log.jsonl'
  path.write_text(
    ''.join(f'{{"round": {r}, "client_ids": ["a{r % 5}"]}}\n' for r in range(20))
  )
  arguments = ('--mechanism=banded', '--noise_multiplier=5', '--target_delta=1e-6')
  arguments += ('--num_rounds=20', '--min_separation=5', f'--round_log={path}')
  for adjacency in ('zero_out', 'replace_one'):
    report = reporting.json_of(*arguments, f'--adjacency={adjacency}')
    # All clients were in all rounds that the limits allow.
    occurred = report['participation']['source']['occurred']
    assert occurred['epsilon'] == pytest.approx(
      report['guarantee']['epsilon'], rel=1e-9
    )


def test_ledger_without_noise_has_no_guarantee(tmp_path):
  mechanism = accounting.Mechanism('gaussian', strategies.Participation(3), 0.0)
  path = tmp_path / 'ledger.jsonl'
  statements.write_ledger(mechanism, path, events=[dp_accounting.NonPrivateDpEvent()])
  result = reporting.execute(
    *('--mechanism=gaussian', '--num_rounds=3', '--noise_multiplier=0'),
    *('--target_delta=1e-6', f'--ledger={path}'),
  )
  assert result.returncode == 0 and 'Guarantee: none' in result.stdout


@pytest.mark.parametrize(
  ('by_wait', 'flags', 'sentence'),
  [
    (True, (), 'It holds only if devices wait 24 h between two rounds'),
    (True, ('--enforced_by=the app',), None),
    (False, (), 'what was to keep them to the plan did not'),
    (False, ('--enforced_by=the app',), 'what was to keep them to the plan did not'),
  ],
)
def test_report_states_what_keeps_a_widened_cap(tmp_path, by_wait, flags, sentence):
  # The plan allows two rounds of a client; a device can be in more, or one was.
  log = tmp_path / 'log.csv'
  if by_wait:
    log = statements.write_round_log(tmp_path, 60)
  else:
    rounds = (f'{r},{"a" if r in (0, 9, 18) else f"x{r}"}\n' for r in range(60))
    log.write_text(''.join(('round,client_ids\n', *rounds)))
  plan = ('--mechanism=gaussian', '--noise_multiplier=5', '--target_delta=1e-6')
  plan += ('--num_rounds=60', '--min_separation=7', '--max_participations=2')
  result = reporting.execute(*plan, f'--round_log={log}', *flags)
  assert result.returncode == 0 and 'were not kept' in result.stdout
  text = ' '.join(result.stdout.split())
  assert 'nobody states what does' not in text
  sentences = ('It holds only', 'what was to keep them')
  assert any(each in text for each in sentences) == (sentence is not None)
  assert sentence is None or sentence in text
  if flags:
    claim = 'what enforces the wait' if by_wait else 'what was to enforce the planned'
    assert claim in text
    assert by_wait == ('enforced by**: the wait between' in text)


@pytest.mark.parametrize(
  ('flag', 'wait'),
  [
    ((), '24 h between two rounds, as is assumed without --min_wait_hours'),
    (('--min_wait_hours=6',), '6 h between two rounds'),
  ],
)
def test_the_wait_stands_beside_the_guarantee_and_its_assumption(tmp_path, flag, wait):
  log = statements.write_round_log(tmp_path, 60)
  run = ('--mechanism=gaussian', '--noise_multiplier=5', '--target_delta=1e-6')
  result = reporting.execute(*run, f'--round_log={log}', *flag)
  text = ' '.join(result.stdout.split())
  summary, _, assumptions = text.partition('It rests on these assumptions')
  assert f'only if devices wait {wait}; nobody states what makes them.' in summary
  assert f'The wait: {wait}. What enforces' in assumptions.partition('It covers')[0]
  hours = wait.partition(' between')[0]
  assert f'log follow from**: a wait of {hours} after a contribution, and' in text
  assert 'can have the same device' in text and 'min wait' not in text

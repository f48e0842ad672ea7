"""Tests of the participation program: its help text and its list of offenders."""

import re
import sys

import pytest

from tests import executing
from tff_dp_aggregators.accounting.programs import participation


def test_participation_reads_the_log_of_its_help_text(tmp_path):
  shown = executing.execute(participation, '--help').stdout
  (log,) = re.findall(r'^    round,.*\n(?:    .*\n)+', shown, re.MULTILINE)
  path = tmp_path / 'rounds.csv'
  path.write_text(re.sub('^    ', '', log, flags=re.MULTILINE), encoding='utf-8')
  result = executing.execute(participation, f'--round_log={path}')
  assert result.returncode == 0, result.stderr
  assert re.search(r'^rounds +2$', result.stdout, re.MULTILINE)


@pytest.mark.parametrize('times', [1, 2])
def test_broken_promise_is_printed_once_on_a_terminal(
  times, tmp_path, capsys, monkeypatch
):
  (tmp_path / 'log.csv').write_text('round,client_ids\n0,a\n1,a\n')
  monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: times == 1)
  arguments = [f'--round_log={tmp_path}/log.csv', '--promised_min_separation=2']
  assert participation.execute(arguments) == 1
  assert ''.join(capsys.readouterr()).count('promised: at least 2') == times


def test_violations_of_limits_are_listed_in_private_file(tmp_path):
  clients = ['a b', 'b c', 'a', 'c', 'b', 'a']
  path = tmp_path / 'rounds.csv'
  lines = [f'{r},2024-03-01T{r:02d}:00:00Z,{c}' for r, c in enumerate(clients)]
  path.write_text('\n'.join(['round,completion_time,client_ids', *lines]) + '\n')
  log, offenders = f'--round_log={path}', tmp_path / 'offenders.csv'
  promised = (log, '--promised_min_separation=2', '--promised_max_participations=2')
  result = executing.execute(participation, *promised, f'--offenders={offenders}')
  assert result.returncode == 1
  assert '2 of 3 clients broke a promise, in 3 of their 6 contrib' in result.stderr
  # Client ids are in the file alone.
  for output in (result.stdout, result.stderr):
    assert 'a client took part in rounds' in output and "client 'a'" not in output
    assert "client 'b'" not in output
  assert offenders.read_text() == (
    'client,participations,min_separation,broke\n'
    'a,3,2,max_participations\nb,3,1,min_separation max_participations\n'
  )
  assert offenders.stat().st_mode & 0o777 == 0o600
  again = executing.execute(participation, *promised, f'--offenders={offenders}')
  assert again.returncode == 2 and 'not overwritten' in again.stderr
  path.write_text(
    re.sub(',client_ids|Z,.*', lambda m: m[0][:1] * (m[0][0] == 'Z'), path.read_text())
  )
  no_promise = executing.execute(participation, log, f'--offenders={tmp_path}/none.csv')
  assert no_promise.returncode == 2 and 'what was promised' in no_promise.stderr
  no_clients = executing.execute(
    participation, *promised, f'--offenders={tmp_path}/none.csv'
  )
  assert no_clients.returncode == 2 and '--offenders needs a log' in no_clients.stderr

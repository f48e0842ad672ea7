"""Tests of `records`: the rounds that a run's files have, and aborted attempts."""

import itertools
import json
import os
import pathlib

import dp_accounting
import pytest

from tests.learning import training_runs
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import records
from tff_dp_aggregators.learning.runs import run_directory

_ROUNDS = 4


def _directory(path, *, ledger=None, metrics=None, report=None, checkpoint=None):
  """Returns a directory with the files of a run that got so far."""
  directory = run_directory.RunDirectory(str(path))
  directory.write('config.json', '{}')
  if ledger is not None:
    _write(path, SCHEDULE, ledger)
  if metrics is not None:
    rows = ''.join(f'{number},0.5\n' for number in range(metrics))
    directory.write('metrics.csv', f'round,loss\n{rows}')
  if report is not None:
    run = {'run': {'rounds_completed': report}}
    directory.write('report.json', json.dumps(run))
  if checkpoint is not None:
    os.makedirs(directory.file(f'checkpoints/after_round_{checkpoint}'))
  return directory


@pytest.mark.parametrize(
  ('files', 'rounds', 'is_finished'),
  [
    ({}, 0, False),
    ({'ledger': 0}, 0, False),
    ({'ledger': 0, 'checkpoint': 0}, 0, False),
    ({'ledger': 3, 'metrics': 2, 'checkpoint': 1}, 3, False),
    ({'ledger': 3, 'metrics': 3, 'checkpoint': 3, 'report': 3}, 3, False),
    ({'ledger': 4, 'metrics': 4, 'checkpoint': 4, 'report': 4}, 4, False),
    ({'ledger': 4, 'metrics': 4, 'report': 4}, 4, True),
  ],
)
def test_find_returns_rounds_and_is_finished(files, rounds, is_finished, tmp_path):
  with _directory(tmp_path / 'run', **files) as directory:
    assert records.find(directory, _ROUNDS) == (rounds, is_finished)


@pytest.mark.parametrize(
  ('files', 'match'),
  [
    # Lines that come after the checkpoint are cut.
    ({'ledger': 2, 'metrics': 3, 'checkpoint': 1}, 'metrics.csv.: 3}: lines are miss'),
    ({'ledger': 2, 'report': 3, 'checkpoint': 1}, 'report.json.: 3}: lines are miss'),
    ({'ledger': 3, 'metrics': 4, 'report': 4}, 'metrics.csv.: 4,'),
    # The ledger is gone, with and without checkpoints, and after the end of the run.
    ({'metrics': 2, 'checkpoint': 1}, 'is gone, but there is metrics.csv, checkpoints'),
    ({'metrics': 2}, 'is gone, but there is metrics.csv.'),
    ({'metrics': 4, 'report': 4}, 'is gone, but there is metrics.csv, report.json.'),
    # The checkpoints are gone.
    ({'ledger': 2, 'metrics': 2}, 'no checkpoint'),
    ({'ledger': 2, 'metrics': 2, 'report': 2}, '2 of 4 rounds, other files .*report'),
    ({'ledger': 4, 'metrics': 4, 'report': 2}, 'no checkpoint'),
    ({'ledger': 4, 'report': 4}, 'no checkpoint'),
  ],
)
def test_files_that_contradict_each_other_are_refused(files, match, tmp_path):
  with _directory(tmp_path / 'run', **files) as directory:
    with pytest.raises(run_directory.FilesError, match=match):
      records.find(directory, _ROUNDS)


def test_incomplete_line_of_metrics_does_not_count_as_round(tmp_path):
  with _directory(tmp_path / 'run', ledger=2, metrics=2, checkpoint=1) as directory:
    with open(directory.file('metrics.csv'), 'a') as file:
      file.write('2,0.')
    assert records.find(directory, _ROUNDS).rounds == 2


def test_find_counts_only_lines_that_a_resumed_writer_keeps(tmp_path):
  files = {'ledger': 3, 'metrics': 3}
  with _directory(tmp_path / 'run', **files, checkpoint=1) as directory:
    path = pathlib.Path(directory.file('ledger.jsonl'))
    path.write_bytes(path.read_bytes()[:-1])
    assert len(ledger_lib.read(str(path)).entries) == 3
    with pytest.raises(ValueError, match='has 2 rounds, .*: 3}: lines are missing'):
      records.find(directory, _ROUNDS)
  with _directory(tmp_path / 'other', ledger=3, metrics=2, checkpoint=2) as directory:
    path = pathlib.Path(directory.file('ledger.jsonl'))
    path.write_bytes(path.read_bytes()[:-1])
    assert records.find(directory, _ROUNDS) == (2, False)


@pytest.mark.parametrize('content', [b'round\n0\n', b'\xff\n'])
def test_metrics_file_that_lacks_rounds_of_the_checkpoint_is_refused(content, tmp_path):
  path = tmp_path / 'metrics.csv'
  path.write_bytes(content)
  with pytest.raises(run_directory.FilesError, match=r'metrics\.csv (does not|cannot)'):
    metrics_file.MetricsFile(str(path), rounds=3)


# Attempts.


def _schedule(seed, goal=3):
  return sampling.RandomEligible(
    training_runs.PARTICIPATION, 12, 3, 7, sampling.Dropouts(0.4, seed), goal
  )


def _first_schedule(is_good):
  """Returns the schedule of the least seed that fits the tests, however it is drawn."""
  return next(each for each in map(_schedule, itertools.count()) if is_good(each))


def _aborted(schedule):
  """Returns how many attempts at each round are aborted."""
  return [len(schedule.attempts(number)) - 1 for number in range(12)]


def _has_all_cases(schedule):
  """Returns whether a schedule has all cases that the tests need.

  Some rounds succeed at once, others later, and round 2 after three aborts or more. In
  the first attempt at round 0 two of three report, which aborts it, but not for goal 2.
  """
  counts = _aborted(schedule)
  two_first = len(schedule.attempts(0)[0].reporting) == 2
  return two_first and counts[2] >= 3 and 0 in counts and sum(counts) > 12


SCHEDULE = _first_schedule(_has_all_cases)
ABORTED = _aborted(SCHEDULE)


def _train(run_dir, nth_round=0, **changes):
  return training_runs.train(
    run_dir,
    schedule=SCHEDULE,
    test_metrics=training_runs.kill_in(nth_round),
    checkpoint_seconds=1e9,
    **changes,
  )


@pytest.mark.slow
@pytest.mark.parametrize('extra', [0, 30], ids=['between two lines', 'within a line'])
def test_run_killed_after_an_aborted_attempt_resumes(extra, tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, nth_round=3)
  # As if it had been killed two attempts into round 2.
  path = run_dir / 'ledger.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  num_lines = next(
    number
    for number, line in enumerate(map(json.loads, lines), start=1)
    if (line['round'], line.get('attempt')) == (2, 1)
  )
  path.write_bytes(b''.join(lines[:num_lines]) + lines[num_lines][:extra])
  metrics = run_dir / 'metrics.csv'
  metrics.write_bytes(b''.join(metrics.read_bytes().splitlines(keepends=True)[:3]))
  _train(run_dir)
  _train(tmp_path / 'straight')
  expected = training_runs.results(tmp_path / 'straight')
  assert training_runs.results(run_dir) == expected


def _write(path, schedule, rounds):
  """Writes a ledger of some rounds of a schedule."""
  path = str(pathlib.Path(path) / 'ledger.jsonl')
  with ledger_lib.LedgerWriter(path, 1e-3) as writer:
    for number in range(rounds):
      attempts = schedule.attempts(number)
      records.write_aborted(writer, number, attempts, schedule.reporting_goal)
      writer.append(
        event=dp_accounting.GaussianDpEvent(1.0),
        cohort_requested=len(attempts[-1].requested),
        cohort_reported=len(attempts[-1].reporting),
        clip_norm=1.0,
        noise_multiplier=1.0,
        strategy_checksum=None,
      )


def _write_path(folder, schedule, rounds):
  folder.mkdir()
  _write(folder, schedule, rounds)
  return str(folder / 'ledger.jsonl')


def test_write_aborted_refuses_attempts_that_schedule_lacks(tmp_path):
  path = _write_path(tmp_path / 'run', SCHEDULE, rounds=2)
  attempts = SCHEDULE.attempts(2)
  count = ABORTED[2]
  with ledger_lib.LedgerWriter(path, 1e-3, resume=True) as writer:
    records.write_aborted(writer, 2, attempts, 3)
    records.write_aborted(writer, 2, attempts, 3)  # The second call confirms them.
    writer.append_aborted(
      round=2, attempt=count, cohort_requested=3, cohort_reported=0, reporting_goal=3
    )
    with pytest.raises(
      ValueError, match=f'has {count + 1} aborted attempts, but the schedule {count}'
    ):
      records.write_aborted(writer, 2, attempts, 3)


def test_attempts_at_a_round_without_result_are_compared_with_schedule(tmp_path):
  path = _write_path(tmp_path / 'run', SCHEDULE, rounds=2)
  with ledger_lib.LedgerWriter(path, 1e-3, resume=True) as writer:
    wrong = len(SCHEDULE.attempts(2)[0].reporting) + 1
    numbers = {'cohort_requested': 3, 'reporting_goal': 3}
    writer.append_aborted(round=2, attempt=0, cohort_reported=wrong % 3, **numbers)
    with pytest.raises(ValueError, match='attempt 0 at round 2 has a line with other'):
      records.write_aborted(writer, 2, SCHEDULE.attempts(2), 3)

"""How far a run is by its files, and the attempts that its ledger has."""

import itertools
import json
import os
import pathlib

import dp_accounting
import numpy as np
import pytest

from tests.learning import training_runs
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.learning.runs import records
from tff_dp_aggregators.learning.runs import run_directory

_ROUNDS = 4


def _write_ledger(path, rounds):
  with ledger_lib.LedgerWriter(path, delta=1e-3) as writer:
    for number in range(rounds):
      writer.append(
        event=dp_accounting.GaussianDpEvent(1.0),
        cohort_requested=3,
        cohort_reported=3,
        clip_norm=1.0,
        noise_multiplier=1.0,
        strategy_checksum='sha256:0',
        result_checksum=ledger_lib.checksum_of([np.full(2, number)]),
      )


def _directory(path, *, ledger=None, metrics=None, report=None, checkpoint=None):
  """A directory with the files of a run that got so far."""
  directory = run_directory.RunDirectory(str(path))
  directory.write('config.json', '{}')
  if ledger is not None:
    _write_ledger(directory.file('ledger.jsonl'), ledger)
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
def test_how_far_a_run_is(files, rounds, is_finished, tmp_path):
  with _directory(tmp_path / 'run', **files) as directory:
    assert records.find(directory, _ROUNDS) == (rounds, is_finished)


@pytest.mark.parametrize(
  ('files', 'match'),
  [
    # Lines are cut that come after the checkpoint.
    ({'ledger': 2, 'metrics': 3, 'checkpoint': 1}, 'metrics.csv has 3: lines are miss'),
    ({'ledger': 2, 'report': 3, 'checkpoint': 1}, 'report.json has 3: lines are miss'),
    ({'ledger': 3, 'metrics': 4, 'report': 4}, 'metrics.csv has 4'),
    # The ledger is gone, with and without checkpoints, and after the end.
    ({'metrics': 2, 'checkpoint': 1}, 'is gone, but there is metrics.csv, checkpoints'),
    # The checkpoints are gone.
    ({'ledger': 2, 'metrics': 2}, 'no checkpoint'),
    ({'ledger': 2, 'metrics': 2, 'report': 2}, '2 of 4 rounds, metrics.csv 2, report'),
    ({'ledger': 4, 'metrics': 4, 'report': 2}, 'not finished'),
    ({'ledger': 4, 'report': 4}, 'not finished'),
  ],
)
def test_files_that_contradict_each_other_are_refused(files, match, tmp_path):
  with _directory(tmp_path / 'run', **files) as directory:
    with pytest.raises(ValueError, match=match):
      records.find(directory, _ROUNDS)


def test_half_a_line_of_metrics_is_no_round(tmp_path):
  with _directory(tmp_path / 'run', ledger=2, metrics=2, checkpoint=1) as directory:
    with open(directory.file('metrics.csv'), 'a') as file:
      file.write('2,0.')
    assert records.find(directory, _ROUNDS).rounds == 2


# Attempts.


def _schedule(seed, goal=3):
  return sampling.RandomEligible(
    training_runs.PARTICIPATION, 12, 3, 7, sampling.Dropouts(0.4, seed), goal
  )


def _first(is_good):
  """Of the least seed whose attempts are as tests need them, however they are drawn."""
  return next(made for made in map(_schedule, itertools.count()) if is_good(made))


def _aborted(made):
  """How many attempts at each round were aborted."""
  return [len(made.attempts(number)) - 1 for number in range(12)]


def _has_all_cases(made):
  """Whether rounds go at once and not at once, and round 2 after three or more.

  Two of three report first in round 0, which aborts it, but not with a goal of 2.
  """
  counts = _aborted(made)
  two_first = len(made.attempts(0)[0].reporting) == 2
  return two_first and counts[2] >= 3 and 0 in counts and sum(counts) > 12


SCHEDULE = _first(_has_all_cases)
ABORTED = _aborted(SCHEDULE)
OTHER = _first(lambda made: _aborted(made)[0] != ABORTED[0])


def _train(run_dir, after=0, **changes):
  return training_runs.train(
    run_dir,
    schedule=SCHEDULE,
    test_metrics=training_runs.kill_in(after),
    checkpoint_seconds=1e9,
    **changes,
  )


@pytest.mark.slow
@pytest.mark.parametrize('more', [0, 30], ids=['between two lines', 'within a line'])
def test_killed_between_an_aborted_attempt_and_its_round_it_goes_on(more, tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, after=3)
  # As if it had been killed two attempts into round 2.
  path = run_dir / 'ledger.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  whole = next(
    number
    for number, line in enumerate(map(json.loads, lines), start=1)
    if (line['round'], line.get('attempt')) == (2, 1)
  )
  path.write_bytes(b''.join(lines[:whole]) + lines[whole][:more])
  metrics = run_dir / 'metrics.csv'
  metrics.write_bytes(b''.join(metrics.read_bytes().splitlines(keepends=True)[:3]))
  _train(run_dir)
  _train(tmp_path / 'straight')
  straight = training_runs.results(tmp_path / 'straight')
  assert training_runs.results(run_dir) == straight


def _write(path, made, rounds=4, more=0):
  """A ledger with what a schedule says of some rounds, and of attempts at the next."""
  path = str(pathlib.Path(path) / 'ledger.jsonl')
  with ledger_lib.LedgerWriter(path, 1e-3) as writer:
    for number in range(rounds):
      records.write_aborted(writer, number, made.attempts(number), made.reporting_goal)
      counted = made.attempts(number)[-1]
      writer.append(
        event=dp_accounting.GaussianDpEvent(1.0),
        cohort_requested=len(counted.requested),
        cohort_reported=len(counted.reporting),
        clip_norm=1.0,
        noise_multiplier=1.0,
        strategy_checksum=None,
      )
    for index, attempt in enumerate(made.attempts(rounds)[:more]):
      writer.append_aborted(
        round=rounds,
        attempt=index,
        cohort_requested=len(attempt.requested),
        cohort_reported=len(attempt.reporting),
        reporting_goal=made.reporting_goal,
      )
  return ledger_lib.read(path)


@pytest.mark.parametrize(('rounds', 'more'), [(4, 0), (2, 3)])
def test_a_ledger_of_the_schedule_is_accepted_wherever_it_stopped(
  rounds, more, tmp_path
):
  records.check_attempts(_write(tmp_path, SCHEDULE, rounds, more), SCHEDULE)


@pytest.mark.parametrize(
  ('other', 'message'),
  [
    (
      OTHER,
      r"the ledger has the aborted attempts .*'round': 0.* but the schedule",
    ),
    (
      _schedule(SCHEDULE.dropouts.seed, goal=2),
      r'3 of 3 clients reported, but in the schedule 2 of 3: they',
    ),
    (
      sampling.RandomEligible(training_runs.PARTICIPATION, 12, 2, 7),
      r'in round 0 of the ledger 3 of 3 clients reported, but in the schedule 2 of 2',
    ),
  ],
  ids=['other drop-outs', 'another goal', 'other cohorts'],
)
def test_a_ledger_of_another_schedule_is_refused(other, message, tmp_path):
  read = _write(tmp_path, SCHEDULE)
  with pytest.raises(ValueError, match=message):
    records.check_attempts(read, other)


def _write_path(folder, made, rounds):
  folder.mkdir()
  _write(folder, made, rounds)
  return str(folder / 'ledger.jsonl')


def test_lines_that_the_schedule_does_not_have_stop_a_run(tmp_path):
  path = _write_path(tmp_path / 'run', SCHEDULE, rounds=2)
  made = SCHEDULE.attempts(2)
  count = ABORTED[2]
  with ledger_lib.LedgerWriter(path, 1e-3, resume=True) as writer:
    records.write_aborted(writer, 2, made, 3)
    records.write_aborted(writer, 2, made, 3)  # Confirms them.
    writer.append_aborted(
      round=2, attempt=count, cohort_requested=3, cohort_reported=0, reporting_goal=3
    )
    with pytest.raises(
      ValueError, match=f'has {count + 1} aborted attempts, but the schedule {count}'
    ):
      records.write_aborted(writer, 2, made, 3)


def test_attempts_at_a_round_that_never_came_are_compared_as_well(tmp_path):
  read = _write(tmp_path, SCHEDULE, rounds=2, more=2)
  other = _write_path(tmp_path / 'other', SCHEDULE, rounds=2)
  with ledger_lib.LedgerWriter(other, 1e-3, resume=True) as writer:
    wrong = read.aborted[-2].cohort_reported + 1
    what = {'cohort_requested': 3, 'reporting_goal': 3}
    writer.append_aborted(round=2, attempt=0, cohort_reported=wrong % 3, **what)
    with pytest.raises(ValueError, match='attempt 0 at round 2 has a line with other'):
      records.write_aborted(writer, 2, SCHEDULE.attempts(2), 3)
  with pytest.raises(ValueError, match='the ledger has the aborted attempts'):
    records.check_attempts(ledger_lib.read(other), SCHEDULE)

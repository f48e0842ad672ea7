"""How far a run is, by its files."""

import json
import os

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.learning.runs import resumption
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
    assert resumption.find(directory, _ROUNDS) == (rounds, is_finished)


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
      resumption.find(directory, _ROUNDS)


def test_half_a_line_of_metrics_is_no_round(tmp_path):
  with _directory(tmp_path / 'run', ledger=2, metrics=2, checkpoint=1) as directory:
    with open(directory.file('metrics.csv'), 'a') as file:
      file.write('2,0.')
    assert resumption.find(directory, _ROUNDS).rounds == 2

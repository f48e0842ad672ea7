"""A run in which nothing is learned does not end as if all were well."""

import io
import math

import pytest
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators.learning.runs import progress as progress_lib

_ROUNDS = 3


def _diverging(run_dir, **changes):
  """A training all of whose updates are infinite, on losses that are."""
  return training_runs.train(
    run_dir,
    mechanism=training_runs.mechanism(_ROUNDS),
    clients=training_runs.clients(factor=1e30),
    client_optimizer=tff.learning.optimizers.build_sgdm(1e30),
    test_data=training_runs.clients(factor=1e30)['client 3'],
    **changes,
  )


def _said(capfd):
  lines = capfd.readouterr().err.splitlines()
  return [line for line in lines if 'finite' in line or 'diverged' in line]


_FIRST = 'round 1 of 3: the updates of 3 of 3 clients are not finite (NaN or infinite)'


@pytest.mark.parametrize('packed', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_first_round_says_so_also_of_a_run_that_goes_on(packed, tmp_path, capfd):
  run_dir, changes = tmp_path / 'run', {'packed_simulation': packed}
  capfd.readouterr()
  with pytest.raises(training_runs.Killed):
    killing = training_runs.killing(2)
    _diverging(run_dir, checkpoint_seconds=0.0, test_metrics=killing, **changes)
  said = _said(capfd)
  for begin in (_FIRST, 'round 1 of 3: test_loss is inf'):
    (line,) = (each for each in said if each.startswith(begin))
    assert 'smaller learning rate' in line
  metrics = training_runs.killing(0)
  result = _diverging(run_dir, test_metrics=metrics, **changes)
  assert result.is_finished and result.metrics['not_private_nonfinite_count'] == 3.0
  assert any(e.startswith('round 2 of 3: the updates of 3 of 3') for e in _said(capfd))
  told = (run_dir / 'share' / 'report.md').read_text()
  assert 'not finite' not in told


def _row(lost, **more):
  return {
    'clients_per_second': 1.0,
    'not_private_clients': 4,
    'not_private_nonfinite_count': lost,
    'test_loss': None,
    **more,
  }


def test_only_what_happens_is_said_and_each_once():
  file = io.StringIO()
  progress = progress_lib.Progress(9, done=3, file=file)
  # Of no client there is no mean.
  progress.update(_row(0, not_private_clients=0, not_private_train_loss=math.nan))
  assert file.getvalue() == ''
  progress.update(_row(2))
  progress.update(_row(4, test_auc=math.nan, not_private_train_loss=math.nan))
  progress.update(_row(None, not_private_train_loss=[0.5, -math.inf]))
  assert [
    text.split(' not fin')[0].split(': the t')[0]
    for text in file.getvalue().splitlines()
  ] == [
    'round 5 of 9: the updates of 2 of 4 clients are',
    'round 7 of 9: not_private_train_loss is [0.5, -inf]',
  ]

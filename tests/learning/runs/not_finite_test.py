"""A run in which nothing is learned does not end as if all were well."""

import io
import math

import pytest
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators.learning.runs import progress as progress_lib


@pytest.mark.slow
def test_the_first_round_says_so_and_the_report_does_not(tmp_path, capfd):
  capfd.readouterr()
  clients = training_runs.clients(factor=1e30)
  result = training_runs.train(
    tmp_path / 'run',
    mechanism=training_runs.mechanism(3),
    clients=clients,
    client_optimizer=tff.learning.optimizers.build_sgdm(1e30),
    test_data=clients['client 3'],
  )
  lines = capfd.readouterr().err.splitlines()
  for begin in (
    'round 1 of 3: the updates of 3 of 3 clients are not finite (NaN or infinite)',
    'round 1 of 3: test_loss is inf',
  ):
    (line,) = (each for each in lines if each.startswith(begin))
    assert 'smaller learning rate' in line
  assert result.metrics['not_private_nonfinite_count'] == 3.0
  assert 'not finite' not in (tmp_path / 'run' / 'share' / 'report.md').read_text()


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

"""Tests that `Progress` reports updates and losses that are not finite."""

import math

from tff_dp_aggregators.learning.runs import progress as progress_lib


def _row(nonfinite_count, **changes):
  return {
    'clients_per_second': 1.0,
    'not_private_clients': 4,
    'not_private_nonfinite_count': nonfinite_count,
    'test_loss': None,
    **changes,
  }


def test_nonfinite_updates_and_losses_are_reported_once(capsys):
  progress = progress_lib.Progress(9, done=3)
  # A round without clients has no mean loss.
  progress.update(_row(0, not_private_clients=0, not_private_train_loss=math.nan))
  assert capsys.readouterr().err == ''
  progress.update(_row(2))
  progress.update(_row(4, test_auc=math.nan, not_private_train_loss=math.nan))
  progress.update(_row(None, not_private_train_loss=[0.5, -math.inf]))
  assert [
    text.split(' not fin')[0].split(': the t')[0]
    for text in capsys.readouterr().err.splitlines()
  ] == [
    'round 5 of 9: the updates of 2 of 4 clients are',
    'round 7 of 9: not_private_train_loss is [0.5, -inf]',
  ]

"""Tests that `Progress` reports updates that are not finite."""

from tff_dp_aggregators.learning.runs import progress as progress_lib


def _row(nonfinite_count):
  return {
    'clients_per_second': 1.0,
    'not_private_clients': 4,
    'not_private_nonfinite_count': nonfinite_count,
    'test_loss': None,
  }


def test_nonfinite_updates_are_reported_once(capsys):
  progress = progress_lib.Progress(9, done=3)
  for nonfinite_count in (0, 2, 4, None):
    progress.update(_row(nonfinite_count))
  (text,) = capsys.readouterr().err.splitlines()
  assert text.startswith('round 5 of 9: the updates of 2 of 4 clients are not finite')

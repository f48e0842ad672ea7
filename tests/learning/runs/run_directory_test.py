"""Configurations of a run that goes on are compared, and differences named.

Claims:

* What a configuration of an earlier version does not say is compared as what it means.
* What only follows from a setting that differs does not hide it in the message.
"""

import copy

import pytest

from tff_dp_aggregators.learning.runs import run_directory

_CONFIG = {
  'flags': {},
  'training': {'batch_size': 2, 'simulated_cohort_scale': 1.0},
  'privacy': {'delta': 1e-3},
  'simulated_cohort': None,
  'not_covered': [],
  'tuning': None,
}


def _begin(path, config):
  with run_directory.RunDirectory(str(path)) as directory:
    return directory.begin(config)


def test_what_earlier_versions_did_not_say_is_what_it_means(tmp_path):
  earlier = copy.deepcopy(_CONFIG)
  del earlier['training']['simulated_cohort_scale']
  for name in ('simulated_cohort', 'not_covered', 'tuning'):
    del earlier[name]
  assert _begin(tmp_path, earlier)
  (tmp_path / run_directory.LEDGER).touch()
  assert not _begin(tmp_path, _CONFIG)
  other = dict(_CONFIG, not_covered=['A sentence.'])
  with pytest.raises(run_directory.OtherSettingsError, match=r'not_covered: \[\] then'):
    _begin(tmp_path, other)


def test_what_follows_from_another_setting_is_not_named(tmp_path):
  _begin(tmp_path, _CONFIG)
  other = copy.deepcopy(_CONFIG)
  other['training'].update(simulated_cohort_scale=10.0, batch_size=3)
  other.update(privacy=None, simulated_cohort={'scale': 10.0})
  with pytest.raises(run_directory.OtherSettingsError) as refused:
    _begin(tmp_path, other)
  assert str(refused.value).endswith(
    'only with the same: training.batch_size: 2 then, 3 now; '
    'training.simulated_cohort_scale: 1.0 then, 10.0 now. Give another run_dir.'
  )

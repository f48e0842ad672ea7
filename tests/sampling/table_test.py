"""Every kind of schedule is found by name, and the one that fits by mechanism.

Claims:

* What `to_json` writes is JSON, and `schedule_from_json` makes a schedule of the same
  cohorts.
* `for_mechanism` gives a schedule whose schema is the mechanism's, or says what fits.
* What a schedule cannot keep is refused when it is made.
* Importing schedules loads no TensorFlow.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIMITS = strategies.Participation(12, min_separation=3, max_participations=3)
_EPOCHS = strategies.Participation(12, min_separation=4, fixed_epoch=True)
_SCHEMAS = {
  'random_eligible': _LIMITS,
  'shuffled_epochs': _EPOCHS,
  'fixed_size': sampling.FixedSizeSampling(12, 24, 4),
  'poisson': sampling.PoissonSampling.of_cohort(12, 24, 4, num_groups=3),
  'balls_in_bins': sampling.BallsInBins.of_cohort(12, 24, 4),
  'random_allocation': sampling.RandomAllocation.of_cohort(12, 24, 4),
  'b_min_sep': sampling.BMinSepSampling.of_cohort(12, 24, 4, min_separation=3),
}


def _mechanism(schema):
  return accounting.Mechanism('gaussian', schema, noise_multiplier=1.0)


@pytest.mark.parametrize('name', _SCHEMAS)
def test_the_schedule_of_a_mechanism_has_its_schema_and_survives_json(name):
  schema = _SCHEMAS[name]
  dropouts = sampling.Dropouts(0.1, 2)
  schedule = sampling.for_mechanism(_mechanism(schema), 24, 4, 1, dropouts=dropouts)
  assert schedule.kind == name
  assert schedule.schema == schema
  assert (schedule.num_clients, schedule.clients_per_round) == (24, 4)
  again = sampling.schedule_from_json(json.loads(json.dumps(schedule.to_json())))
  assert again == schedule and again.checksum == schedule.checksum
  for this_round in range(12):
    np.testing.assert_array_equal(again.cohort(this_round), schedule.cohort(this_round))
  assert copy.deepcopy(schedule) is schedule  # Ten million clients are not copied.
  other = sampling.for_mechanism(_mechanism(schema), 24, 4, 2, dropouts=dropouts)
  assert other.checksum != schedule.checksum


def test_goals_come_back_from_json():
  schedule = sampling.for_mechanism(
    _mechanism(_LIMITS), 60, 5, 1, dropouts=sampling.Dropouts(0.3, 2), reporting_goal=4
  )
  assert sampling.schedule_from_json(schedule.to_json()) == schedule
  assert schedule.reporting_goal == 4


@pytest.mark.parametrize(
  'name, num_clients, clients_per_round, message',
  [
    ('random_eligible', 11, 4, 'num_clients of at least 16'),
    ('shuffled_epochs', 15, 4, 'num_clients of at least 16'),
    ('random_eligible', 24, 3.5, 'clients_per_round must be a whole number'),
    ('fixed_size', 25, 4, 'num_clients must be 24, which the sampling assumes'),
    ('fixed_size', 24, 5, 'clients_per_round must be 4'),
  ],
)
def test_what_does_not_fit_is_refused(name, num_clients, clients_per_round, message):
  with pytest.raises(ValueError, match=message):
    sampling.for_mechanism(
      _mechanism(_SCHEMAS[name]), num_clients, clients_per_round, 1
    )


def test_what_is_no_schedule_is_refused():
  with pytest.raises(ValueError, match='not a schedule, of'):
    sampling.schedule_from_json({'schedule': 'none'})
  with pytest.raises(ValueError, match='the stored fixed_size is not one'):
    sampling.schedule_from_json({'schedule': 'fixed_size', 'seed': 1})
  with pytest.raises(TypeError, match='mechanism must be an accounting.Mechanism'):
    sampling.for_mechanism(_LIMITS, 24, 4, 1)
  with pytest.raises(TypeError, match='dropouts must be a Dropouts'):
    sampling.for_mechanism(_mechanism(_LIMITS), 24, 4, 1, dropouts=0.1)


@pytest.mark.parametrize(
  'name', [name for name, schema in _SCHEMAS.items() if sampling.is_sampled(schema)]
)
def test_sampled_schedules_refuse_what_they_cannot_keep(name):
  scheme = _SCHEMAS[name]
  with pytest.raises(ValueError, match='reporting_goal=1 does not go with sampling'):
    sampling.for_scheme(scheme, 24, 4, 1, reporting_goal=1)
  with pytest.raises(ValueError, match='num_clients must be at least 1'):
    sampling.SampledSchedule(scheme, 0, 1)
  with pytest.raises(TypeError, match='dropouts must be a Dropouts'):
    sampling.SampledSchedule(scheme, 24, 1, 0.1)
  with pytest.raises(ValueError, match='round_num must be at most 11'):
    sampling.SampledSchedule(scheme, 24, 1).cohort(12)
  with pytest.raises(TypeError, match='sampling must be a scheme of sampling'):
    sampling.SampledSchedule(_LIMITS, 24, 1)


def test_a_stored_schedule_is_of_the_kind_that_it_is_said_to_be():
  stored = sampling.for_scheme(_SCHEMAS['poisson'], 24, 4, 1).to_json()
  with pytest.raises(ValueError, match='is a schedule of the kind poisson'):
    sampling.schedule_from_json({**stored, 'schedule': 'b_min_sep'})


def test_schedules_load_no_tensorflow():
  code = (
    'import sys; from tff_dp_aggregators import sampling; '
    'print("tensorflow" in sys.modules)'
  )
  result = subprocess.run(
    [sys.executable, '-c', code],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    check=True,
  )
  assert result.stdout == 'False\n'

"""What a schedule does is compared with what it states, round by round.

Claims:

* Schedules of all kinds of this package pass, from the first round or from a later one.
* One that asks a client twice in a round, one that is not there, one too soon, or once
  too often, is refused in that round, by name; also if an earlier round is to blame.
"""

import dataclasses

import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.sampling import watch


@dataclasses.dataclass(frozen=True)
class Stated(sampling.Schedule):
  """A schedule of a user's own, which keeps what it states, or does not."""

  kind = 'stated'

  stated: object
  cohorts: tuple
  num_clients: int = 6
  clients_per_round: int = 2

  @property
  def schema(self):
    return self.stated

  def attempts(self, round_num):
    cohort = np.array(self.cohorts[round_num], np.int64)
    return (sampling.Attempt(cohort, cohort, True),)


@pytest.mark.parametrize('first', [0, 7])
@pytest.mark.parametrize(
  'schedule',
  [
    sampling.RandomEligible(strategies.Participation(12, 3, 3), 20, 4, 1),
    sampling.ShuffledEpochs(
      strategies.Participation(12, min_separation=4, fixed_epoch=True), 20, 4, 1
    ),
    sampling.SampledSchedule(sampling.FixedSizeSampling(12, 20, 4), 20, 1),
    sampling.SampledSchedule(sampling.PoissonSampling(12, 0.3, 3), 20, 1),
    sampling.SampledSchedule(sampling.BallsInBins(12, 5), 20, 1),
    sampling.SampledSchedule(sampling.RandomAllocation(12, 3), 20, 1),
    sampling.SampledSchedule(sampling.BMinSepSampling(12, 0.5, 3), 20, 1),
    sampling.RandomEligible(
      strategies.Participation(12, 3), 60, 5, 1, sampling.Dropouts(0.3, 1), 4
    ),
  ],
  ids=[
    'random_eligible',
    'shuffled_epochs',
    'fixed_size',
    'poisson',
    'balls_in_bins',
    'random_allocation',
    'b_min_sep',
    'attempts',
  ],
)
def test_schedules_of_this_package_pass(schedule, first):
  watching = watch.Watch(schedule)
  for this_round in range(first, 12):
    watched = watching.attempts(this_round)[-1].reporting
    np.testing.assert_array_equal(watched, schedule.cohort(this_round))


@pytest.mark.parametrize(
  ('cohorts', 'schema', 'match'),
  [
    ([[0, 1], [2, 2]], strategies.Participation(2), 'round 1 of Stated .* 2 twice'),
    ([[0, 1], [2, 6]], strategies.Participation(2), 'round 1 .* client 6; .* 0 to 5'),
    ([[0, 1], [2, -1]], strategies.Participation(2), 'round 1 .* client -1'),
    (
      [[0, 1], [2, 1]],
      strategies.Participation(2, min_separation=2),
      'round 1 .* client 1 took part in round 0 .* at least 2',
    ),
    (
      [[0, 1], [2, 3], [4, 5], [1, 0]],
      strategies.Participation(4, min_separation=2, fixed_epoch=True),
      'round 3 .* client 1 took part in round 0 .* a multiple of 2',
    ),
    (
      [[0, 1], [0, 2], [3, 0]],
      strategies.Participation(3, max_participations=2),
      'round 2 .* client 0 takes part once more than max_participations=2',
    ),
    ([[0, 1], [2]], sampling.FixedSizeSampling(2, 6, 2), 'round 1 .* has 1 clients'),
  ],
)
def test_a_schedule_that_breaks_its_schema_is_refused_in_that_round(
  cohorts, schema, match
):
  last = len(cohorts) - 1
  watching = watch.Watch(Stated(schema, tuple(cohorts)))
  for this_round in range(last):
    watching.attempts(this_round)
  for fresh in (watching, watch.Watch(Stated(schema, tuple(cohorts)))):
    with pytest.raises(ValueError, match=match):
      fresh.attempts(last)


def test_an_earlier_round_is_looked_at_where_a_run_goes_on():
  schedule = Stated(strategies.Participation(3), ((0, 0), (1,), (2,)))
  with pytest.raises(ValueError, match='round 0 of Stated has client 0 twice'):
    watch.Watch(schedule).attempts(2)


# A loop of one's own.


def test_a_usual_random_selection_is_refused_before_its_round():
  # rng.choice(client_ids) knows no limits, and an aggregator does not see who it was.
  limits = strategies.Participation(50, min_separation=10)
  watching = sampling.ParticipationWatch(limits)
  rng, ids = np.random.default_rng(1), [f'device {i}' for i in range(20)]
  with pytest.raises(ValueError, match="client 'device .*must be at least 10"):
    for round_num in range(50):
      watching.check(round_num, rng.choice(ids, 8, replace=False).tolist())


def test_a_schedule_of_ids_passes_the_watch_and_breaches_leave_no_trace():
  limits = strategies.Participation(30, min_separation=4, max_participations=3)
  schedule = sampling.RandomEligible(limits, 60, 5, seed=2)
  watching = sampling.ParticipationWatch(limits)
  for t in range(20):
    assert len(watching.check(t, [f'c{i}' for i in schedule.cohort(t)])) == 5
  with pytest.raises(ValueError, match="round 20 has client 'new' twice"):
    watching.check(20, ['new', 'new'])
  assert watching.check(20, ['new']) == ['new']
  with pytest.raises(ValueError, match='round 20 is not after round 20'):
    watching.check(20, ['newer'])
  for t in (24, 28):
    watching.check(t, ['new'])
  with pytest.raises(ValueError, match='round 29: client .new.'):
    watching.check(29, ['new'])
  with pytest.raises(ValueError, match='not one of the 30 planned'):
    watching.check(30, [])


def test_caps_and_epochs_are_watched_too():
  watching = sampling.ParticipationWatch(strategies.Participation(9, 1, 2))
  watching.check(0, ['a'])
  watching.check(1, ['a'])
  with pytest.raises(ValueError, match='once more than max_participations=2 times'):
    watching.check(2, ['a'])
  epochs = strategies.Participation(9, min_separation=3, fixed_epoch=True)
  watching = sampling.ParticipationWatch(epochs)
  watching.check(0, ['a'])
  with pytest.raises(ValueError, match='must be a multiple of 3'):
    watching.check(4, ['a'])


def test_sampling_is_not_kept_by_watching():
  with pytest.raises(TypeError, match='for_mechanism'):
    sampling.ParticipationWatch(sampling.PoissonSampling(10, 0.1))

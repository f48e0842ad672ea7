"""Schedules: construction by scheme, JSON, files, replay, and checks of cohorts."""

import dataclasses
import json

import numpy as np
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.sampling import schedule as schedule_lib

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
  'truncated_poisson': sampling.TruncatedPoissonSampling.of_cohort(12, 24, 4, 5, 3),
}
_SCHEDULES = {
  name: sampling.for_scheme(schema, 24, 4, 1, dropouts=sampling.Dropouts(0.1, 2))
  for name, schema in _SCHEMAS.items()
}
_SCHEDULES['attempts'] = sampling.RandomEligible(
  _LIMITS, 60, 5, 1, sampling.Dropouts(0.3, 1), 4
)


@pytest.mark.parametrize('name', _SCHEMAS)
def test_for_mechanism_returns_schedule_of_its_scheme(name):
  schema = _SCHEMAS[name]
  dropouts = sampling.Dropouts(0.1, 2)
  mechanism = accounting.Mechanism('gaussian', schema, noise_multiplier=1.0)
  schedule = sampling.for_mechanism(mechanism, 24, 4, 1, dropouts=dropouts)
  assert schedule == _SCHEDULES[name]
  assert (schedule.name, schedule.schema) == (name, schema)
  assert (schedule.num_clients, schedule.clients_per_round) == (24, 4)
  other_seed = sampling.for_mechanism(mechanism, 24, 4, 2, dropouts=dropouts)
  assert other_seed.checksum != schedule.checksum


@pytest.mark.parametrize('name', _SCHEDULES)
def test_schedule_round_trips_through_json_and_replay(name, tmp_path):
  schedule = _SCHEDULES[name]
  loaded = sampling.schedule_from_json(json.loads(json.dumps(schedule.to_json())))
  assert loaded == schedule and loaded.checksum == schedule.checksum
  path = str(tmp_path / 'schedule.jsonl')
  schedule.save(path)
  replay = sampling.Replay(path)
  for attribute in ('schema', 'num_clients', 'clients_per_round', 'num_rounds'):
    assert getattr(replay, attribute) == getattr(schedule, attribute), attribute
  for this_round in range(12):
    attempts = schedule.attempts(this_round)
    for copied in (loaded, replay):
      assert len(attempts) == len(copied.attempts(this_round))
      for expected, actual in zip(attempts, copied.attempts(this_round)):
        np.testing.assert_array_equal(expected.requested, actual.requested)
        np.testing.assert_array_equal(expected.reporting, actual.reporting)
        assert expected.completed == actual.completed
  with pytest.raises(FileExistsError):
    schedule.save(path)


@pytest.mark.parametrize(
  'name, numbers, error, message',
  [
    ('random_eligible', {'clients_per_round': 3.5}, ValueError, 'clients_per_round'),
    ('fixed_size', {'num_clients': 25}, ValueError, 'num_clients must be 24'),
    ('fixed_size', {'clients_per_round': 5}, ValueError, 'clients_per_round must be 4'),
    ('poisson', {'num_clients': 0}, ValueError, 'num_clients'),
    ('poisson', {'reporting_goal': 1}, ValueError, 'reporting_goal=1'),
  ],
)
def test_for_scheme_refuses_bad_numbers(name, numbers, error, message):
  arguments = {'num_clients': 24, 'clients_per_round': 4, 'seed': 1, **numbers}
  with pytest.raises(error, match=message):
    sampling.for_scheme(_SCHEMAS[name], **arguments)


def test_invalid_schedules_and_types_are_refused():
  stored = _SCHEDULES['poisson'].to_json()
  for data, message in (
    ({'schedule': 'none'}, 'not one of the schedules'),
    ({**stored, 'schedule': 'b_min_sep'}, 'schedule poisson'),
  ):
    with pytest.raises(ValueError, match=message):
      sampling.schedule_from_json(data)
  with pytest.raises(TypeError, match='mechanism must be'):
    sampling.for_mechanism(_LIMITS, 24, 4, 1)
  with pytest.raises(TypeError, match='sampling must be'):
    sampling.SampledSchedule(_LIMITS, 24, 1)
  with pytest.raises(ValueError, match='round_num'):
    _SCHEDULES['poisson'].cohort(12)


@pytest.mark.parametrize('name', _SCHEDULES)
def test_watch_accepts_schedules_of_this_package(name):
  schedule = _SCHEDULES[name]
  watching = schedule_lib.Watch(schedule)
  for this_round in range(7, 12):  # Like a run that is resumed.
    watched = watching.attempts(this_round)[-1].reporting
    np.testing.assert_array_equal(watched, schedule.cohort(this_round))


@dataclasses.dataclass(frozen=True)
class Stated(sampling.Schedule):
  """A schedule defined by a user, whose cohorts may violate its scheme."""

  name = 'stated'

  stated: object
  cohorts: tuple
  num_clients: int = 10
  clients_per_round: int = 2

  @property
  def schema(self):
    return self.stated

  def attempts(self, round_num):
    cohort = np.array(self.cohorts[round_num], np.int64)
    return (sampling.Attempt(cohort, cohort, True),)


def _replay(tmp_path, lines, schema, num_clients=10, clients_per_round=2):
  path = tmp_path / 'cohorts.jsonl'
  path.write_text('\n'.join(json.dumps(line) for line in lines) + '\n')
  header = sampling.Header(schema, num_clients, clients_per_round)
  return sampling.Replay(str(path), header)


@pytest.mark.parametrize(
  'cohorts, schema, message',
  [
    (
      [[3, 1], [0, 1]],
      strategies.Participation(2, 2),
      'round 1 .* client 1 took part in round 0 .* at least 2',
    ),
    (
      [[1], [0], [1], [2], [1]],
      strategies.Participation(5, 2, 2),
      'round 4 .* client 1 .* in 2 in all; .* at most 2 rounds',
    ),
    (
      [[1], [0], [2], [1]],
      strategies.Participation(4, 2, fixed_epoch=True),
      'round 3 .* client 1 .* a multiple of 2',
    ),
    ([[0, 1], [1, 1]], strategies.Participation(2), 'round 1 .* client 1 twice'),
    ([[1, 10]], strategies.Participation(1), 'client 10; .* from 0 to 9'),
    (
      [[1, 2], [1, 2, 3]],
      sampling.FixedSizeSampling(2, 10, 2),
      'round 1 .* has 3 clients; its schema has cohorts from 2.* to 2',
    ),
    ([[1, -1]], strategies.Participation(1), 'client -1; .* from 0 to 9'),
    (
      [[1, 2], [2]],
      sampling.PoissonSampling(2, 0.2, num_groups=2),
      'round 1 .* client 2 .* a multiple of 2',
    ),
  ],
)
def test_cohorts_that_violate_scheme_are_named(tmp_path, cohorts, schema, message):
  with pytest.raises(ValueError, match=message):
    _replay(tmp_path, cohorts, schema)
  last = len(cohorts) - 1
  watching = schedule_lib.Watch(Stated(schema, tuple(cohorts)))
  for this_round in range(last):
    watching.attempts(this_round)
  for each in (watching, schedule_lib.Watch(Stated(schema, tuple(cohorts)))):
    with pytest.raises(ValueError, match=message):
      each.attempts(last)


@pytest.mark.parametrize(
  'lines, schema, message',
  [
    ([[1]], strategies.Participation(2), '1 rounds'),
    (
      [{'attempts': [{'requested': [1, 2], 'reporting': [1, 3]}]}],
      strategies.Participation(1),
      'round 0 .*client 3 reported and was not requested',
    ),
    (
      [{'attempts': [{'requested': [1, 2], 'reporting': []}] * 2}],
      sampling.FixedSizeSampling(1, 10, 2),
      'round 0 .* tried 2 times',
    ),
  ],
)
def test_replay_refuses_files_that_violate_scheme(tmp_path, lines, schema, message):
  with pytest.raises(ValueError, match=message):
    _replay(tmp_path, lines, schema)


def test_replay_of_bare_cohorts_requires_stated_header(tmp_path):
  # Limits apply to clients who reported in the completed attempt.
  attempts = {
    'attempts': [
      {'requested': [1, 2], 'reporting': [2]},
      {'requested': [3, 4], 'reporting': [3]},
    ]
  }
  limits = strategies.Participation(3, min_separation=2)
  replay = _replay(tmp_path, [attempts, [1, 2], [3, 4]], limits)
  assert [replay.cohort(t).tolist() for t in range(3)] == [[3], [1, 2], [3, 4]]
  with pytest.raises(ValueError, match='states None in its first line.*give stated='):
    sampling.Replay(replay.path)


@pytest.mark.parametrize(
  'line, message',
  [
    ('[1, 2', 'line 2'),
    ('[1, 2.0]', r'line 2 .* got `float` - at `.\[1\]`'),
    (f'[{2**70}]', 'line 2'),
    ('{"attempts": []}', 'line 2 .* length'),
    ('', 'line 2'),
  ],
)
def test_replay_names_invalid_lines(tmp_path, line, message):
  path = tmp_path / 'cohorts.jsonl'
  path.write_text(f'[1]\n{line}\n[2]\n')
  header = sampling.Header(strategies.Participation(3), 5, 1)
  with pytest.raises(ValueError, match=message):
    sampling.Replay(str(path), header)


def test_replay_refuses_files_of_other_formats(tmp_path):
  path = tmp_path / 'cohorts.jsonl'
  for content, message in [
    (b'', 'states None'),
    (b'\xff\xfe[1]', 'line 1 of .* decode'),
    (b'{"format": "tff_dp_aggregators schedule", "version": 2}\n[1]', 'of format'),
  ]:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
      sampling.Replay(str(path))
  with pytest.raises(TypeError, match='stated must be'):
    sampling.Replay(str(path), strategies.Participation(1))


def test_replay_refuses_other_header_and_changed_file(tmp_path):
  path = tmp_path / 'schedule.jsonl'
  _SCHEDULES['random_eligible'].save(str(path))
  with pytest.raises(ValueError, match='states Header.* and Header.* is stated'):
    sampling.Replay(str(path), sampling.Header(_LIMITS, 21, 4))
  replay = sampling.Replay(str(path))
  assert sampling.schedule_from_json(json.loads(json.dumps(replay.to_json()))) == replay
  # The checksum depends on the rounds, not on the file's path.
  _SCHEDULES['random_eligible'].save(str(tmp_path / 'other'))
  assert sampling.Replay(str(tmp_path / 'other')).checksum == replay.checksum
  path.unlink()
  sampling.RandomEligible(_LIMITS, 20, 4, 2).save(str(path))
  with pytest.raises(ValueError, match='give the file that was used'):
    sampling.schedule_from_json(replay.to_json())


def test_participation_watch_refuses_violations_without_recording_them():
  limits = strategies.Participation(30, min_separation=4, max_participations=3)
  schedule = sampling.RandomEligible(limits, 60, 5, seed=2)
  watching = sampling.ParticipationWatch(limits)
  for t in range(20):
    assert len(watching.check(t, [f'c{i}' for i in schedule.cohort(t)])) == 5
  with pytest.raises(ValueError, match="round 20 has client 'new' twice"):
    watching.check(20, ['new', 'new'])
  assert watching.check(20, ['new']) == ['new']
  with pytest.raises(ValueError, match='round 20 is not one of rounds 21 to 29'):
    watching.check(20, ['newer'])
  for t in (24, 28):
    watching.check(t, ['new'])
  with pytest.raises(ValueError, match='round 29: client .new.'):
    watching.check(29, ['new'])
  with pytest.raises(ValueError, match='round 30 is not one of rounds 29'):
    watching.check(30, [])
  with pytest.raises(TypeError, match='must be a strategies.Participation'):
    sampling.ParticipationWatch(sampling.PoissonSampling(10, 0.1))


@pytest.mark.parametrize(
  'again', ['7', ' 7', 7.0, np.int64(7), b'7', float('nan'), 'NA', None]
)
def test_participation_watch_knows_spellings_and_refuses_missing_ids(again):
  watch = sampling.ParticipationWatch(strategies.Participation(30, min_separation=4))
  watch.check(0, [7])
  is_missing = again in (None, 'NA') or again != again
  message = 'reads as|not finite|neither a text' if is_missing else 'in round 0 as well'
  with pytest.raises(ValueError, match=message):
    watch.check(1, [again])


def test_watch_checks_earlier_rounds_of_resumed_run():
  schedule = Stated(strategies.Participation(3), ((0, 0), (1,), (2,)))
  with pytest.raises(ValueError, match='round 0 of Stated has client 0 twice'):
    schedule_lib.Watch(schedule).attempts(2)

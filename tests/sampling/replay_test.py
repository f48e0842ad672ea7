"""A replayed schedule names the clients of its file, which keeps what it states.

Claims:

* A schedule of every kind, saved and replayed, has the same attempts in every round,
  also if clients take part far less often than they may.
* A file that breaks its schema is refused, and the message names round and client.
* A file that cannot be read is refused, and the message names the line.
"""

import json

import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

_LIMITS = strategies.Participation(12, min_separation=3, max_participations=3)
_EPOCHS = strategies.Participation(12, min_separation=4, fixed_epoch=True)
_DROPOUTS = sampling.Dropouts(0.3, 1)
_SCHEDULES = {
  'random_eligible': sampling.RandomEligible(_LIMITS, 20, 4, 1),
  'attempts': sampling.RandomEligible(_LIMITS, 60, 5, 1, _DROPOUTS, 4),
  'shuffled_epochs': sampling.ShuffledEpochs(_EPOCHS, 20, 4, 1),
  'fixed_size': sampling.SampledSchedule(
    sampling.FixedSizeSampling(12, 20, 4), 20, 1, _DROPOUTS
  ),
  'poisson': sampling.SampledSchedule(sampling.PoissonSampling(12, 0.3, 3), 20, 1),
  'balls_in_bins': sampling.SampledSchedule(
    sampling.BallsInBins(12, 5), 20, 1, _DROPOUTS
  ),
  'random_allocation': sampling.SampledSchedule(
    sampling.RandomAllocation(12, 3), 20, 1, _DROPOUTS
  ),
  'b_min_sep': sampling.SampledSchedule(
    sampling.BMinSepSampling(12, 0.5, 3), 20, 1, _DROPOUTS
  ),
}


@pytest.mark.parametrize('name', _SCHEDULES)
def test_what_is_saved_is_replayed(name, tmp_path):
  schedule = _SCHEDULES[name]
  path = str(tmp_path / 'schedule.jsonl')
  schedule.save(path)
  replay = sampling.Replay(path)
  assert replay.schema == schedule.schema
  for attribute in ('num_clients', 'clients_per_round', 'num_rounds'):
    assert getattr(replay, attribute) == getattr(schedule, attribute), attribute
  for this_round in range(12):
    attempts = schedule.attempts(this_round)
    again = replay.attempts(this_round)
    assert len(attempts) == len(again)
    for mine, theirs in zip(attempts, again):
      np.testing.assert_array_equal(mine.requested, theirs.requested)
      np.testing.assert_array_equal(mine.reporting, theirs.reporting)
      assert mine.completed == theirs.completed
  with pytest.raises(FileExistsError):
    schedule.save(path)


def test_clients_may_take_part_less_often_than_they_may(tmp_path):
  schedule = sampling.RandomEligible(
    strategies.Participation(12), 8, 1, 1, sampling.Dropouts(0.7, 98)
  )
  taken_part = sum(len(schedule.cohort(this_round)) for this_round in range(12))
  assert 0 < taken_part < schedule.schema.possible_participations
  schedule.save(str(tmp_path / 'schedule.jsonl'))
  replay = sampling.Replay(str(tmp_path / 'schedule.jsonl'))
  for this_round in range(12):
    assert replay.cohort(this_round).tolist() == schedule.cohort(this_round).tolist()


def _replay(tmp_path, lines, schema, num_clients=10, clients_per_round=2):
  path = tmp_path / 'cohorts.jsonl'
  path.write_text('\n'.join(json.dumps(line) for line in lines) + '\n')
  stated = sampling.Header(schema, num_clients, clients_per_round)
  return sampling.Replay(str(path), stated)


def test_a_file_of_another_source_needs_only_its_cohorts(tmp_path):
  limits = strategies.Participation(3, min_separation=2)
  replay = _replay(tmp_path, [[3, 1], [0, 2], [1, 4]], limits)
  assert replay.cohort(2).tolist() == [1, 4]
  with pytest.raises(ValueError, match='does not state its schema in its first line'):
    sampling.Replay(replay.path)


@pytest.mark.parametrize(
  'lines, schema, message',
  [
    ([[3, 1], [0, 1]], strategies.Participation(2, 2), 'round 1 .* client 1 took part'),
    (
      [[1], [0], [1], [2], [1]],
      strategies.Participation(5, 2, 2),
      'round 4 .* client 1 takes part once more than max_participations=2',
    ),
    (
      [[1], [0], [2], [1]],
      strategies.Participation(4, 2, fixed_epoch=True),
      'round 3 .* client 1 .* a multiple of 2',
    ),
    ([[1, 1]], strategies.Participation(1), 'round 0 .* client 1 twice'),
    ([[1, 10]], strategies.Participation(1), 'client 10; .* from 0 to 9'),
    ([[1, -1]], strategies.Participation(1), 'client -1; .* from 0 to 9'),
    ([[1]], strategies.Participation(2), 'has 1 rounds, but its schema is for 2'),
    (
      [[1, 2], [1, 2, 3]],
      sampling.FixedSizeSampling(2, 10, 2),
      'round 1 .* has 3 clients; its schema has cohorts of 2',
    ),
    (
      [[1, 2], [2]],
      sampling.PoissonSampling(2, 0.2, num_groups=2),
      'round 1 .* client 2 .* a multiple of 2',
    ),
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
def test_what_breaks_the_schema_is_named(tmp_path, lines, schema, message):
  with pytest.raises(ValueError, match=message):
    _replay(tmp_path, lines, schema)


def test_limits_are_on_those_who_reported_in_the_attempt_that_counted(tmp_path):
  limits = strategies.Participation(2, min_separation=2)
  tried = {
    'attempts': [
      {'requested': [1, 2], 'reporting': [2]},
      {'requested': [3, 4], 'reporting': [3]},
    ]
  }
  replay = _replay(tmp_path, [tried, [1, 2]], limits)
  assert replay.cohort(0).tolist() == [3]


@pytest.mark.parametrize(
  'line, message',
  [
    ('[1, 2', 'line 2 of .* is not the cohort of a round'),
    ('[1, 2.0]', r'line 2 .* got `float` - at `.\[1\]`; got \[1, 2.0\]'),
    ('[1, true]', 'line 2 .* got `bool`'),
    (f'[{2**70}]', 'line 2 of .* is not the cohort of a round'),
    ('{"attempts": []}', r'line 2 .* length >= 1 - at `.\.attempts'),
    (
      '{"attempts": [{"requested": [1]}]}',
      'line 2 .* missing required field `reporting`',
    ),
    ('{"attempts": 3}', 'line 2 of .* is not the cohort of a round'),
    ('', 'line 2 of .* is not the cohort of a round'),
  ],
)
def test_lines_that_are_no_cohorts_are_named(tmp_path, line, message):
  path = tmp_path / 'cohorts.jsonl'
  path.write_text(f'[1]\n{line}\n[2]\n')
  stated = sampling.Header(strategies.Participation(3), 5, 1)
  with pytest.raises(ValueError, match=message):
    sampling.Replay(str(path), stated)


def test_other_files_are_refused(tmp_path):
  path = tmp_path / 'cohorts.jsonl'
  for content, message in [
    (b'', 'has no rounds'),
    (b'\xff\xfe[1]', 'is not a text in UTF-8'),
    (b'{"format": "tff_dp_aggregators schedule", "version": 2}\n[1]', 'of format'),
    (b'{"format": "tff_dp_aggregators schedule", "version": 1}\n[1]', 'line 1 of'),
  ]:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
      sampling.Replay(str(path))
  with pytest.raises(FileNotFoundError):
    sampling.Replay(str(tmp_path / 'none'))
  with pytest.raises(TypeError, match='stated must be a sampling.Header'):
    sampling.Replay(str(path), strategies.Participation(1))


def test_a_file_that_states_something_else_is_refused(tmp_path):
  path = str(tmp_path / 'schedule.jsonl')
  _SCHEDULES['random_eligible'].save(path)
  with pytest.raises(ValueError, match='states Header.* and not Header'):
    sampling.Replay(path, sampling.Header(_LIMITS, 21, 4))


def test_the_file_is_read_again_only_if_it_is_the_same(tmp_path):
  path = tmp_path / 'schedule.jsonl'
  _SCHEDULES['random_eligible'].save(str(path))
  replay = sampling.Replay(str(path))
  assert sampling.schedule_from_json(json.loads(json.dumps(replay.to_json()))) == replay
  other = sampling.RandomEligible(_LIMITS, 20, 4, 2)
  path.unlink()
  other.save(str(path))
  with pytest.raises(ValueError, match='give the file that was used'):
    sampling.schedule_from_json(replay.to_json())


def test_the_checksum_is_that_of_the_rounds_wherever_the_file_is(tmp_path):
  paths = [str(tmp_path / name) for name in 'ab']
  for path in paths:
    _SCHEDULES['poisson'].save(path)
  assert sampling.Replay(paths[0]).checksum == sampling.Replay(paths[1]).checksum

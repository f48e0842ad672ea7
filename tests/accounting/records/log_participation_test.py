"""Tests of limits on participation that are derived from round logs."""

import collections
import datetime
import itertools
import json
import random
import tempfile

import numpy as np
import pytest

from tests import executing
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import tree_aggregation_accountant
from tff_dp_aggregators.accounting.programs import (
  participation as participation_program,
)
from tff_dp_aggregators.accounting.records import log_participation as participation
from tff_dp_aggregators.accounting.records import round_log

HOUR = 3600 * 10**9
YEAR_2020 = 1_577_836_800 * 10**9


def make_log(completions, starts=None, clients=None):
  """Returns a log with times in hours."""

  def times(hours):
    if hours is None:
      return None
    return YEAR_2020 + np.array([round(hour * HOUR) for hour in hours], np.int64)

  client_database = None
  if clients is not None:
    with tempfile.NamedTemporaryFile('w') as file:
      lines = [{'round': r, 'client_ids': names} for r, names in enumerate(clients)]
      file.writelines(json.dumps(line) + '\n' for line in lines)
      file.flush()
      client_database = round_log.read(file.name).clients
  return round_log.RoundLog(
    len(clients if completions is None else completions),
    0,
    times(completions),
    times(starts),
    clients=client_database,
    time_format='ISO 8601 with a zone',
  )


def hours(number):
  return datetime.timedelta(hours=number)


def behaviours(starts, completions, wait, wait_from='contribution'):
  """Returns sets of rounds a waiting device can be in, at whole hours, in any order."""
  possible = set()
  seen = set()
  states = [(-100, frozenset())]  # When it may contribute again, and its rounds.
  while states:
    state = states.pop()
    if state in seen:
      continue
    seen.add(state)
    back_at, rounds = state
    possible.add(tuple(sorted(rounds)))
    for r, (start, completion) in enumerate(zip(starts, completions)):
      if r not in rounds:
        for hour in range(max(start, back_at), completion + 1):
          begin = hour if wait_from == 'contribution' else completion
          states.append((begin + wait, rounds | {r}))
  return possible


def check_limits(summary, allowed, exact=True):
  """Asserts that limits allow all of `allowed`, and if exact are the tightest."""
  schema = summary.participation
  assert all(schema.allows(rounds) for rounds in allowed)
  if exact:
    max_participations = max(map(len, allowed))
    gaps = [b - a for rounds in allowed for a, b in zip(rounds, rounds[1:])]
    assert schema.max_participations == max_participations
    assert schema.min_separation == min(gaps, default=schema.num_rounds)


def random_completions(rng):
  num_rounds, span = rng.randrange(1, 7), rng.randrange(1, 16)
  return sorted(rng.randrange(1, 1 + span) for _ in range(num_rounds))


@pytest.mark.parametrize(
  'known', ['first start', 'nothing', 'starts', 'starts in any order', 'completion']
)
def test_limits_match_brute_force_over_behaviours(known):
  rng = random.Random(1)
  for _ in range(8 if known == 'first start' else 15):
    completions = random_completions(rng)
    wait, wait_from, options, given = rng.randrange(1, 9), 'contribution', {}, None
    # By default, the first round is assumed to be as long as the longest.
    first = completions[0] - max(np.diff(completions), default=0)
    if known == 'first start':
      first = rng.randrange(-4, completions[0] + 1)
      text = (datetime.datetime(2020, 1, 1) + hours(first)).isoformat() + 'Z'
      options['first_start'] = text
    starts = [first, *completions[:-1]]
    if known.startswith('starts'):
      starts = given = [rng.randrange(-2, completion + 1) for completion in completions]
      if known == 'starts':
        starts.sort()
    elif known == 'completion':
      wait_from = 'completion'
      starts = [-10, *completions[:-1]]  # The first start does not matter.
    summary = participation.summarize(
      make_log(completions, given), wait, wait_from, **options
    )
    allowed = behaviours(starts, completions, wait, wait_from)
    # If starts are in any order, limits are safe, and may not be tight.
    check_limits(summary, allowed, exact=known != 'starts in any order')


def test_fewest_rounds_in_wait_match_brute_force():
  rng = random.Random(5)
  for _ in range(6):
    completions = sorted(rng.randrange(40) for _ in range(rng.randrange(1, 30)))
    wait = rng.randrange(1, 12)
    counts = [
      sum(begin < completion < begin + wait for completion in completions)
      for begin in np.arange(completions[0], completions[-1] - wait + 0.1, 0.25)
    ]
    log = make_log(completions)
    published = participation.summarize(log, wait, 'completion')
    assert published.waiting.fewest_rounds_in_wait == min(counts, default=None)
    if counts:
      assert published.rounds_between == min(counts)
      # If waits begin with contributions: one less, as the first round takes no time.
      text = log.format_time(log.completions[0])
      safe = participation.summarize(log, wait, first_start=text)
      assert safe.min_separation == max(1, min(counts))


def test_limits_from_truncated_times_are_conservative():
  rng = random.Random(6)
  for _ in range(50):
    exact = np.cumsum([rng.uniform(0.05, 1.5) for _ in range(30)])
    fine = participation.summarize(make_log(exact), 6, 'completion')
    coarse = participation.summarize(make_log(np.floor(exact)), 6, 'completion')
    assert coarse.min_separation <= fine.min_separation
    assert coarse.max_participations >= fine.max_participations


def gboard_log():
  """Returns a log of 2000 rounds in five and a half days, as published.

  The first day is the slowest: 313 rounds complete in it, as the publication counts.
  """
  slow = np.arange(1, 315) * (24 / 313.5)
  fast = slow[-1] + np.arange(1, 2000 - 313) * ((5.5 * 24 - slow[-1]) / (2000 - 314))
  return make_log([*slow, *fast])


def test_published_gboard_limits_follow_from_its_log():
  summary = participation.summarize(gboard_log(), wait_from='completion')
  assert (summary.num_rounds, summary.rounds_between) == (2000, 313)
  assert summary.max_participations == 6
  # The separation alone would allow one participation more.
  assert strategies.Participation(2000, summary.min_separation).max_participations == 7
  zcdp = tree_aggregation_accountant.compute_zcdp_single_tree(
    7.0, summary.num_rounds, summary.max_participations, summary.rounds_between
  )
  assert f'{zcdp:.2f}' == '0.81'
  assert participation.summarize(gboard_log()).min_separation == 313


def observed_by_brute_force(clients):
  rounds = collections.defaultdict(list)
  for number, cohort in enumerate(clients):
    for client in cohort:
      rounds[client].append(number)
  gaps = [
    abs(a - b)
    for numbers in rounds.values()
    for a, b in itertools.combinations(numbers, 2)
  ]
  return min(gaps, default=len(clients)), max(map(len, rounds.values()))


def violating_by_brute_force(clients, min_separation, max_participations):
  broken, seen = collections.Counter(), collections.defaultdict(list)
  for number, cohort in enumerate(clients):
    for client in cohort:
      before = seen[client]
      too_soon = before and number - before[-1] < min_separation
      broken[client] += bool(too_soon or len(before) >= max_participations)
      before.append(number)
  return {client: count for client, count in broken.items() if count}


def test_observed_limits_match_brute_force():
  rng = random.Random(7)
  for _ in range(6):
    clients = [
      rng.choices('abcdefg', k=rng.randrange(4)) for _ in range(rng.randrange(1, 12))
    ]
    if not any(clients):
      continue
    summary = participation.summarize(make_log(None, clients=clients))
    separation, most = observed_by_brute_force(clients)
    observed = summary.observed
    assert (summary.min_separation, summary.max_participations) == (separation, most)
    assert observed.num_clients == len(set(itertools.chain(*clients)))
    assert len(observed.rounds_of_most_active) == most
    for r in observed.rounds_of_most_active:
      assert observed.most_active in clients[r]
    if observed.closest is not None:
      client, first, second = observed.closest
      assert client in clients[first] and client in clients[second]
      assert second - first == separation
    assert bool(summary.broken(separation + 1, most)) == (observed.closest is not None)
    assert bool(summary.broken(separation, most - 1))
    assert bool(summary.broken(separation, most)) == (separation == 0)
    promised = (rng.randrange(1, 5), rng.randrange(1, 4))
    broken = violating_by_brute_force(clients, *promised)
    assert {name: count for name, *_, count in summary.offenders(*promised)} == broken
    if separation:
      assert summary.participation == strategies.Participation(
        len(clients), separation, most
      )


def test_client_twice_in_one_round_violates_all_limits():
  summary = participation.summarize(make_log(None, clients=[['a'], ['b', 'b']]))
  assert summary.broken() == [
    "client 'b' is twice in round 1; no schema allows this: if it took part once, name "
    'it once'
  ]
  assert '0 (a client is twice in a round)' in summary.to_text()
  with pytest.raises(ValueError, match="'b' is twice in round 1"):
    summary.participation  # noqa: B018


def test_observed_participation_is_checked_against_the_wait():
  clients = [['a'], ['b'], ['a'], ['b']]
  log = make_log([10, 20, 30, 40], clients=clients)
  assert participation.summarize(log).waiting is None
  assert participation.summarize(log, 25).broken() == []
  assert participation.summarize(log, 25).min_separation == 2
  summary = participation.summarize(log, 35)
  assert summary.min_separation == 3
  assert summary.broken() == [
    "client 'a' took part in rounds 0 and 2, which are 2 apart; by the wait: at least 3"
    '; it was not kept: leave out min_wait_hours (--min_wait_hours)'
  ]
  with pytest.raises(ValueError, match="'a' took part in rounds 0 and 2"):
    summary.participation  # noqa: B018


def test_wait_that_violates_promised_limits_is_listed():
  summary = participation.summarize(make_log(range(1, 101)))
  assert summary.broken(23, 5) == []
  assert summary.broken(24, 4) == [
    'a device that waits 24 h can be in rounds 0 and 23, which are 23 apart; '
    'promised: at least 24',
    'a device that waits 24 h can be in 5 rounds; promised: at most 4',
  ]
  assert participation.summarize(make_log([1, 2])).broken(10, 1) == []


def test_broken_separation_counts_for_the_rounds_after_the_log():
  planned = strategies.Participation(100, 24)
  half, whole = (
    participation.summarize(make_log(range(1, n + 1)), 6).participation
    for n in (50, 100)
  )
  limits = participation.of_plan(half, 100, planned, broken=True)
  assert limits.min_separation == whole.min_separation
  assert limits.possible_participations >= whole.possible_participations
  assert limits == participation.of_plan(half, 100)


THREE, ONE_CLIENT = make_log([1, 2, 3]), make_log(None, clients=[['a']])
START = '2020-01-01T00:00:00Z'


@pytest.mark.parametrize(
  ('log', 'arguments', 'message'),
  [
    (THREE, {'min_wait_hours': 0}, '--min_wait_hours. must be positive'),
    (THREE, {'wait_from': 'start'}, 'wait_from must be one of'),
    (THREE, {'first_start': START[:-1]}, 'without a zone, but must be'),
    (THREE, {'first_start': '2020-01-02T00:00:00Z'}, 'not after the first completion'),
    (make_log([1], [0]), {'first_start': START}, 'first_start is for logs'),
    (ONE_CLIENT, {'min_wait_hours': 1}, 'write one line per round with compl'),
    (ONE_CLIENT, {'first_start': START}, 'give min_wait_hours'),
    (ONE_CLIENT, {'wait_from': 'completion'}, 'give min_wait_hours'),
  ],
)
def test_summarize_refuses_arguments_that_are_invalid_or_do_not_fit_the_log(
  log, arguments, message
):
  with pytest.raises(ValueError, match=message):
    participation.summarize(log, **arguments)


# The program.


def run(*arguments):
  return executing.execute(participation_program, *arguments)


@pytest.fixture
def hourly(tmp_path):
  path = tmp_path / 'hourly.jsonl'
  start = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
  times = [(start + hours(h)).isoformat() for h in range(1, 101)]
  path.write_text(''.join(json.dumps({'time': time}) + '\n' for time in times))
  return f'--round_log={path}'


def test_program_prints_limits_as_text_and_json(hourly):
  text = run(hourly)
  assert (text.returncode, text.stderr) == (0, '')
  for words in (
    'rounds              100\n',
    'min separation      23 (22 between)\n',
    'max participations  5\n',
  ):
    assert words in text.stdout
  result = json.loads(run(hourly, '--format=json').stdout)
  assert result['num_rounds'] == 100
  assert (result['min_separation'], result['rounds_between']) == (23, 22)
  assert result['max_participations'] == 5
  assert result['waiting']['fewest_rounds_in_wait'] == 23
  assert result['waiting']['min_wait_hours'] == 24
  assert result['first_completion'] == '2020-01-01T01:00:00Z'
  assert result['broken'] == []


def test_program_refuses_column_without_name(hourly):
  result = run(hourly, '--columns=round')
  assert (result.returncode, result.stdout) == (2, '')
  assert 'write column=name_in_the_log' in result.stderr


def test_program_escapes_control_characters_of_client_ids(tmp_path):
  path = tmp_path / 'log.jsonl'
  path.write_text(json.dumps({'round': 0, 'client_ids': ['a\x1b[31m']}) + '\n')
  result = run(f'--round_log={path}')
  assert result.returncode == 0, result.stderr
  assert 'most active' in result.stdout
  assert '\x1b' not in result.stdout

"""Mechanisms of parts, composed: what they come to is what a client can give away."""

import copy
import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.accountants import gaussian

DELTA = 1e-5
LIMITS = strategies.Participation(8, min_separation=3, max_participations=2)


def part(
  name, weights, mechanism='gaussian', noise_multiplier=2.0, clip_norm=1.0, **options
):
  made = accounting.Mechanism(mechanism, LIMITS, noise_multiplier, **options)
  return accounting.JointPart(name, weights, made, clip_norm)


load = joint_mechanism.load_strategy
_INTEGERS = {'min_clients': 50, 'dimension': 300, 'bits': 16}


def joint(*parts):
  return accounting.JointMechanism(parts)


TWO_GAUSSIANS = joint(
  part('body', '[01]', 'tree', 5.0, 0.3), part('head', '*', 'gaussian', 2.0, 0.1)
)
WITH_LAPLACE = joint(
  part('body', '0', 'tree', 5.0, 0.3),
  part('votes', '1', 'laplace', 12.0),
  part('head', '*', 'gaussian', 4.0),
)


def test_mu_squared_adds_up_to_the_closed_form():
  mu = math.sqrt(
    sum(each.mechanism.effective_noise_multiplier**-2 for each in TWO_GAUSSIANS.parts)
  )
  assert TWO_GAUSSIANS.effective_noise_multiplier == pytest.approx(1 / mu, rel=1e-14)
  assert TWO_GAUSSIANS.epsilon(DELTA) == pytest.approx(
    gaussian.epsilon_of(mu, DELTA), rel=1e-12
  )
  assert TWO_GAUSSIANS.delta(TWO_GAUSSIANS.epsilon(DELTA)) <= DELTA


@pytest.mark.parametrize(
  ('first', 'second'), [('tree', 'banded'), ('gaussian', 'tree')]
)
def test_no_client_gives_away_more_than_mu_and_the_worst_one_hardly_less(first, second):
  made = joint(part('a', '0', first, 3.0), part('b', '*', second, 1.5))
  largest = 0.0
  for rounds in LIMITS.patterns():
    for signs in itertools.product([1, -1], repeat=len(rounds)):
      squared = 0.0
      for each in made.parts:
        client = np.zeros(8)
        client[list(rounds)] = signs
        moved = np.linalg.norm(each.mechanism.strategy.materialize() @ client)
        squared += (moved / each.mechanism.noise_multiplier) ** 2
      largest = max(largest, squared)
  mu = 1 / made.effective_noise_multiplier
  assert math.sqrt(largest) <= mu * (1 + 1e-12)
  # The worst rounds for one part may not be those for the other.
  assert math.sqrt(largest) > 0.9 * mu


def test_laplace_noise_is_composed_as_dp_accounting_does():
  grid = 1e-4
  independent = pld_lib.from_laplace_mechanism(
    12.0, value_discretization_interval=grid
  ).self_compose(2)
  mu_squared = sum(
    each.mechanism.effective_noise_multiplier**-2
    for each in WITH_LAPLACE.parts
    if each.name != 'votes'
  )
  together = independent.compose(
    pld_lib.from_gaussian_mechanism(
      1 / math.sqrt(mu_squared), value_discretization_interval=grid
    )
  )
  expected = together.get_epsilon_for_delta(DELTA)
  assert WITH_LAPLACE.epsilon(DELTA) == pytest.approx(expected, rel=2e-3)
  # More than without the votes, less than with theirs added up.
  alone = gaussian.epsilon_of(math.sqrt(mu_squared), DELTA)
  assert alone < WITH_LAPLACE.epsilon(DELTA) < alone + 2 / 12.0
  assert not WITH_LAPLACE.is_one_gaussian
  assert WITH_LAPLACE.effective_noise_multiplier is None


@pytest.mark.parametrize(
  'made', [TWO_GAUSSIANS, WITH_LAPLACE], ids=['gaussian', 'mixed']
)
def test_what_a_turn_has_spent_is_no_less_than_its_rounds_and_in_the_end_all(made):
  # Turns are in rounds 0 and 3: the second begins after round 2.
  for turns, rounds in ((1, 3), (2, 8)):
    spent = dp_accounting.ComposedDpEvent(list(made.round_events[:rounds]))
    bound = accountants.epsilon(made.event_of_turns(turns), DELTA)
    assert bound >= accountants.epsilon(spent, DELTA) * (1 - 1e-9)
  assert accountants.epsilon(spent, DELTA) == pytest.approx(bound, rel=1e-6)
  assert made.event_of_turns(2) == made.event


@pytest.mark.parametrize('parts', [TWO_GAUSSIANS.parts, WITH_LAPLACE.parts])
def test_a_target_is_kept_just_so(parts):
  made = accounting.JointMechanism.for_target(parts, 3.0, DELTA)
  assert made.epsilon(DELTA) <= 3.0
  less = [
    each.with_noise(each.mechanism.noise_multiplier * 0.999) for each in made.parts
  ]
  assert accounting.JointMechanism(tuple(less)).epsilon(DELTA) > 3.0
  assert made.target == accounting.Target(3.0, DELTA)


def test_shares_are_parts_of_mu_squared():
  shares = {'body': 0.8, 'head': 0.2}
  made = accounting.JointMechanism.for_target(
    TWO_GAUSSIANS.parts, 3.0, DELTA, shares=shares
  )
  mu_squared = made.effective_noise_multiplier**-2
  for each in made.parts:
    own = each.mechanism.effective_noise_multiplier**-2
    assert own / mu_squared == pytest.approx(shares[each.name], rel=1e-12)
  assert made.shares == pytest.approx(shares, rel=1e-12)
  equal = accounting.JointMechanism.for_target(TWO_GAUSSIANS.parts, 3.0, DELTA)
  assert equal.shares == pytest.approx({'body': 0.5, 'head': 0.5}, rel=1e-12)


@pytest.mark.parametrize(
  ('shares', 'message'),
  [
    ({'body': 1.0}, 'for each part'),
    ({'body': 0.5, 'head': 0.4}, 'be 1 in sum'),
    ({'body': 1.5, 'head': -0.5}, 'share of part head'),
  ],
)
def test_shares_that_do_not_divide_are_refused(shares, message):
  with pytest.raises(ValueError, match=message):
    accounting.JointMechanism.for_target(TWO_GAUSSIANS.parts, 3.0, DELTA, shares=shares)


def test_a_weight_is_of_the_first_part_with_a_pattern_for_it():
  assert TWO_GAUSSIANS.part_of(['0', '1', '2']) == ('body', 'body', 'head')
  made = joint(
    part('a', ('embedding', 'out/*'), 'gaussian'), part('b', 'dense/?', 'gaussian')
  )
  names = ['dense/0', 'embedding', 'out/kernel']
  assert made.part_of(names) == ('b', 'a', 'a')
  in_one_text = part('a', 'embedding out/*', 'gaussian')
  assert in_one_text == made.parts[0]


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    (['dense/0', 'other'], 'weight other'),
    (['embedding', 'dense/0'], r'pattern out/\* of part a'),
  ],
)
def test_weights_and_parts_that_are_left_over_are_refused(names, message):
  made = joint(
    part('a', ('embedding', 'out/*'), 'gaussian'), part('b', 'dense/?', 'gaussian')
  )
  with pytest.raises(ValueError, match=message):
    made.part_of(names)


@pytest.mark.parametrize(
  'made', [TWO_GAUSSIANS, WITH_LAPLACE], ids=['gaussian', 'mixed']
)
def test_what_is_saved_is_read_again(made, tmp_path):
  data = json.loads(json.dumps(made.to_json()))
  assert joint_mechanism.stored(data) == made
  path = tmp_path / 'strategy.npz'
  path.write_bytes(made.strategy.to_npz())
  loaded = joint_mechanism.stored(data, load(data, str(path)))
  assert loaded == made and loaded.strategy.checksum == made.strategy.checksum
  alone = made.parts[0].mechanism
  assert joint_mechanism.stored(json.loads(json.dumps(alone.to_json()))) == alone


def test_a_strategy_from_a_file_needs_it(tmp_path):
  own = strategies.BandedToeplitz.square_root(8, 3)
  made = joint(part('a', '0', 'file', strategy=own), part('b', '*', 'gaussian'))
  data = made.to_json()
  with pytest.raises(ValueError, match='strategy'):
    joint_mechanism.stored(data)
  others = tmp_path / 'others.npz'
  others.write_bytes(TWO_GAUSSIANS.strategy.to_npz())
  with pytest.raises(ValueError, match='it is of another mechanism'):
    joint_mechanism.stored(data, load(data, str(others)))


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda d: d.update(adjacency='replace_one'), 'adjacency'),
    (lambda d: d['participation'].update(num_rounds=9), 'participation'),
    (lambda d: d.update(strategy_checksum='sha256:0'), 'strategy_checksum'),
    (lambda d: d['parts'][0].pop('clip_norm'), 'clip_norm'),
    (lambda d: d['parts'].pop(), 'two parts or more'),
    (lambda d: d['parts'][1]['mechanism'].update(name='tree'), 'strategy'),
  ],
)
def test_what_was_altered_is_refused(change, message):
  data = copy.deepcopy(json.loads(json.dumps(TWO_GAUSSIANS.to_json())))
  change(data)
  with pytest.raises(ValueError, match=message):
    joint_mechanism.stored(data)


@pytest.mark.parametrize(
  ('name', 'schema', 'options', 'message'),
  [
    ('gaussian', sampling.PoissonSampling(8, 0.1), {}, 'PoissonSampling'),
    ('skellam', LIMITS, _INTEGERS, 'skellam'),
    ('gaussian', LIMITS, {'noise_site': 'local'}, 'noise_site'),
    ('gaussian', LIMITS, {'clipped_count_stddev': 5.0}, 'adaptive clipping'),
    ('gaussian', LIMITS, {'noise_multiplier': 0.0}, 'no noise'),
  ],
)
def test_what_does_not_go_beside_others_is_refused(name, schema, options, message):
  options = {'noise_multiplier': 4.0, **options}
  mechanism = accounting.Mechanism(name, schema, **options)
  with pytest.raises(ValueError, match=message):
    accounting.JointPart('body', '*', mechanism, 1.0)


def test_parts_that_do_not_go_together_are_refused():
  other = strategies.Participation(8, min_separation=4)
  of_others = accounting.JointPart(
    'head', '*', accounting.Mechanism('gaussian', other, 2.0), 1.0
  )
  first = part('body', '0', 'gaussian')
  with pytest.raises(ValueError, match='same participation'):
    joint(first, of_others)
  with pytest.raises(ValueError, match='same adjacency'):
    joint(first, part('head', '*', 'gaussian', adjacency='replace_one'))
  with pytest.raises(ValueError, match="'body', 'body'"):
    joint(first, first)
  with pytest.raises(ValueError, match='two parts or more'):
    joint(first)
  with pytest.raises(TypeError, match='JointParts'):
    joint(first, first.mechanism)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (('a b', '*'), 'letters, digits'),
    (('body', ()), 'weights of part body'),
    (('body', '*', 'gaussian', 2.0, math.nan), 'clip_norm of part body'),
  ],
)
def test_parts_out_of_range_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    part(*given)

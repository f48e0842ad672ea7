"""Joint mechanisms: composition of their parts, targets, shares and JSON."""

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


def test_epsilon_of_gaussian_parts_matches_closed_form():
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
def test_mu_bounds_every_participation_pattern(first, second):
  mechanism = joint(part('a', '0', first, 3.0), part('b', '*', second, 1.5))
  largest = 0.0
  for rounds in LIMITS.patterns():
    for signs in itertools.product([1, -1], repeat=len(rounds)):
      squared = 0.0
      for each in mechanism.parts:
        pattern = np.zeros(8)
        pattern[list(rounds)] = signs
        distance = np.linalg.norm(each.mechanism.strategy.materialize() @ pattern)
        squared += (distance / each.mechanism.noise_multiplier) ** 2
      largest = max(largest, squared)
  mu = 1 / mechanism.effective_noise_multiplier
  assert math.sqrt(largest) <= mu * (1 + 1e-12)
  # The worst rounds for one part may not be those for the other.
  assert math.sqrt(largest) > 0.9 * mu


def test_laplace_part_is_composed_as_by_dp_accounting():
  grid = 1e-4
  independent = pld_lib.from_laplace_mechanism(
    12.0, value_discretization_interval=grid
  ).self_compose(2)
  mu_squared = sum(
    each.mechanism.effective_noise_multiplier**-2
    for each in WITH_LAPLACE.parts
    if each.name != 'votes'
  )
  composed = independent.compose(
    pld_lib.from_gaussian_mechanism(
      1 / math.sqrt(mu_squared), value_discretization_interval=grid
    )
  )
  expected = composed.get_epsilon_for_delta(DELTA)
  assert WITH_LAPLACE.epsilon(DELTA) == pytest.approx(expected, rel=2e-3)
  # More than without the Laplace part, less than if epsilons were added.
  gaussians = gaussian.epsilon_of(math.sqrt(mu_squared), DELTA)
  assert gaussians < WITH_LAPLACE.epsilon(DELTA) < gaussians + 2 / 12.0
  assert not WITH_LAPLACE.is_one_gaussian
  assert WITH_LAPLACE.effective_noise_multiplier is None


@pytest.mark.parametrize(
  'mechanism', [TWO_GAUSSIANS, WITH_LAPLACE], ids=['gaussian', 'mixed']
)
def test_event_of_turns_bounds_events_of_its_rounds(mechanism):
  # A client's turns are rounds 0 and 3: the second turn begins after round 2.
  for turns, rounds in ((1, 3), (2, 8)):
    spent = dp_accounting.ComposedDpEvent(list(mechanism.round_events[:rounds]))
    bound = accountants.epsilon(mechanism.event_of_turns(turns), DELTA)
    assert bound >= accountants.epsilon(spent, DELTA) * (1 - 1e-9)
  assert accountants.epsilon(spent, DELTA) == pytest.approx(bound, rel=1e-6)
  assert mechanism.event_of_turns(2) == mechanism.event


@pytest.mark.parametrize('parts', [TWO_GAUSSIANS.parts, WITH_LAPLACE.parts])
def test_for_target_finds_least_noise(parts):
  mechanism = accounting.JointMechanism.for_target(parts, 3.0, DELTA)
  assert mechanism.epsilon(DELTA) <= 3.0
  less_noise = [
    each.with_noise(each.mechanism.noise_multiplier * 0.999) for each in mechanism.parts
  ]
  assert accounting.JointMechanism(tuple(less_noise)).epsilon(DELTA) > 3.0
  assert mechanism.target == accounting.Target(3.0, DELTA)


def test_shares_are_fractions_of_mu_squared():
  shares = {'body': 0.8, 'head': 0.2}
  mechanism = accounting.JointMechanism.for_target(
    TWO_GAUSSIANS.parts, 3.0, DELTA, shares=shares
  )
  mu_squared = mechanism.effective_noise_multiplier**-2
  for each in mechanism.parts:
    part_mu_squared = each.mechanism.effective_noise_multiplier**-2
    assert part_mu_squared / mu_squared == pytest.approx(shares[each.name], rel=1e-12)
  assert mechanism.shares == pytest.approx(shares, rel=1e-12)
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
def test_for_target_refuses_invalid_shares(shares, message):
  with pytest.raises(ValueError, match=message):
    accounting.JointMechanism.for_target(TWO_GAUSSIANS.parts, 3.0, DELTA, shares=shares)


def test_part_of_assigns_weight_to_first_matching_part():
  assert TWO_GAUSSIANS.part_of(['0', '1', '2']) == ('body', 'body', 'head')
  mechanism = joint(
    part('a', ('embedding', 'out/*'), 'gaussian'), part('b', 'dense/?', 'gaussian')
  )
  names = ['dense/0', 'embedding', 'out/kernel']
  assert mechanism.part_of(names) == ('b', 'a', 'a')
  space_separated = part('a', 'embedding out/*', 'gaussian')
  assert space_separated == mechanism.parts[0]


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    (['dense/0', 'other'], 'weight other'),
    (['embedding', 'dense/0'], r'pattern out/\* of part a'),
  ],
)
def test_part_of_refuses_unmatched_weights_and_patterns(names, message):
  mechanism = joint(
    part('a', ('embedding', 'out/*'), 'gaussian'), part('b', 'dense/?', 'gaussian')
  )
  with pytest.raises(ValueError, match=message):
    mechanism.part_of(names)


@pytest.mark.parametrize(
  'mechanism', [TWO_GAUSSIANS, WITH_LAPLACE], ids=['gaussian', 'mixed']
)
def test_joint_mechanism_json_round_trip(mechanism, tmp_path):
  data = json.loads(json.dumps(mechanism.to_json()))
  assert joint_mechanism.stored(data) == mechanism
  path = tmp_path / 'strategy.npz'
  path.write_bytes(mechanism.strategy.to_npz())
  loaded = joint_mechanism.stored(data, load(data, str(path)))
  assert loaded == mechanism and loaded.strategy.checksum == mechanism.strategy.checksum
  single = mechanism.parts[0].mechanism
  assert joint_mechanism.stored(json.loads(json.dumps(single.to_json()))) == single


def test_stored_mechanism_file_requires_its_strategy(tmp_path):
  own = strategies.BandedToeplitz.square_root(8, 3)
  mechanism = joint(part('a', '0', 'file', strategy=own), part('b', '*', 'gaussian'))
  data = mechanism.to_json()
  with pytest.raises(ValueError, match='give strategy='):
    joint_mechanism.stored(data)
  other_file = tmp_path / 'others.npz'
  other_file.write_bytes(TWO_GAUSSIANS.strategy.to_npz())
  with pytest.raises(ValueError, match='it is of another mechanism'):
    joint_mechanism.stored(data, load(data, str(other_file)))


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda d: d.update(adjacency='replace_one'), 'adjacency'),
    (lambda d: d['participation'].update(num_rounds=9), 'participation'),
    (lambda d: d.update(strategy_checksum='sha256:0'), 'strategy_checksum'),
    (lambda d: d['parts'][0].pop('clip_norm'), 'clip_norm'),
    (lambda d: d['parts'].pop(), 'two parts or more'),
    (lambda d: d['parts'][1]['mechanism'].update(name='tree'), 'used the strategy'),
  ],
)
def test_stored_refuses_altered_json(change, message):
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
def test_joint_part_refuses_unsupported_mechanisms(name, schema, options, message):
  options = {'noise_multiplier': 4.0, **options}
  mechanism = accounting.Mechanism(name, schema, **options)
  with pytest.raises(ValueError, match=message):
    accounting.JointPart('body', '*', mechanism, 1.0)


def test_joint_mechanism_refuses_incompatible_parts():
  other = strategies.Participation(8, min_separation=4)
  other_part = accounting.JointPart(
    'head', '*', accounting.Mechanism('gaussian', other, 2.0), 1.0
  )
  first = part('body', '0', 'gaussian')
  with pytest.raises(ValueError, match='same participation'):
    joint(first, other_part)
  with pytest.raises(ValueError, match='same adjacency'):
    joint(first, part('head', '*', 'gaussian', adjacency='replace_one'))
  with pytest.raises(ValueError, match="'body', 'body'"):
    joint(first, first)
  with pytest.raises(ValueError, match='two parts or more'):
    joint(first)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('a b', '*'), 'letters, digits'),
    (('body', ()), 'weights of part body'),
    (('body', '*', 'gaussian', 2.0, math.nan), 'clip_norm of part body'),
  ],
)
def test_joint_part_refuses_invalid_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    part(*arguments)

"""Mechanism: strategy, sensitivity, event, options and JSON."""

import dataclasses
import json
import pickle

import dp_accounting
import numpy as np
import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism
from tff_dp_aggregators.accounting.records import ledger

PARTICIPATION = strategies.Participation(60, min_separation=12, max_participations=4)


def test_toeplitz_mechanism_has_optimized_strategy_and_event():
  made = accounting.Mechanism('toeplitz', PARTICIPATION, noise_multiplier=3.0)
  strategy = strategies.toeplitz.optimize(60, num_bands=12, participation=PARTICIPATION)
  assert made.strategy == strategy
  assert made.sensitivity == strategy.sensitivity(PARTICIPATION)
  assert made.event == dp_accounting.GaussianDpEvent(3.0 / made.sensitivity)


@pytest.mark.parametrize(
  'name', ['banded', 'blt', 'laplace', 'skellam', 'discrete_gaussian']
)
def test_for_target_finds_least_noise(name):
  needed = statements.REQUIRED_ARGUMENTS.get(name, {})
  made = accounting.Mechanism.for_target(name, PARTICIPATION, 3.0, 1e-6, **needed)
  assert accountants.epsilon(made.event, 1e-6) <= 3.0
  less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.9998)
  assert accountants.epsilon(less.event, 1e-6) > 3.0


def test_target_is_kept_but_not_compared_or_saved():
  made = accounting.Mechanism.for_target('tree', PARTICIPATION, 3.0, 1e-6)
  assert made.target == accounting.Target(3.0, 1e-6)
  loaded = accounting.Mechanism.from_json(made.to_json())
  assert loaded.target is None and loaded == made
  assert pickle.loads(pickle.dumps(made)).target == made.target
  larger = dataclasses.replace(made, noise_multiplier=2 * made.noise_multiplier)
  assert larger.target is None


@pytest.mark.parametrize(
  ('name', 'num_rounds', 'target'), [('gaussian', 2000, 1.0), ('tree', 40, 8.0)]
)
def test_composed_round_events_stay_within_target(name, num_rounds, target):
  participation = strategies.Participation(num_rounds, min_separation=10)
  made = accounting.Mechanism.for_target(name, participation, target, 1e-5)
  spent = ledger.Spent()
  for event in made.round_events:
    spent = spent.plus(event)
  assert target * (1 - 1e-10) < spent.figures(1e-5)['epsilon'] <= target


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('skelam', {}, "'skelam'; known: gaussian"),
    ('tree', {'noise_multiplier': np.nan}, 'noise_multiplier'),
    ('tree', {'noise_multiplier': 10**400}, 'noise_multiplier must be below 2'),
    ('tree', {'strategy': strategies.Identity(60)}, 'Identity'),
    (
      'tree',
      {'restart_every': 20, 'strategy': strategies.BinaryTree(60)},
      'restart_every',
    ),
    ('tree', {'num_bands': 4}, 'num_bands=4 is for banded'),
    ('banded', {'num_bands': 61}, 'num_bands must be at most num_rounds=60'),
    ('banded', {'num_bands': 2.5}, 'num_bands'),
    ('banded', {'num_leaves': 2}, 'num_leaves'),
  ],
)
def test_invalid_arguments_are_refused(name, options, message):
  with pytest.raises((TypeError, ValueError), match=message):
    accounting.Mechanism(name, PARTICIPATION, **{'noise_multiplier': 1.0, **options})


def test_replace_keeps_options_and_strategy():
  made = accounting.Mechanism('banded', PARTICIPATION, 1.0, num_bands=3)
  assert made.options == (('num_bands', 3),)
  larger = dataclasses.replace(made, noise_multiplier=2.0)
  assert larger.strategy is made.strategy
  assert larger.options == made.options
  assert larger != made
  fewer = dataclasses.replace(made, strategy=None, num_bands=2)
  assert fewer.strategy.num_bands == 2


def test_json_has_null_for_options_not_given():
  made = accounting.Mechanism('tree', PARTICIPATION, 1.0, restart_every=20)
  options = {name: made.to_json()[name] for name in mechanism.options()}
  assert options.pop('restart_every') == 20
  assert {'num_bands', 'num_buffers'} <= set(options)
  assert set(options.values()) == {None}
  # Files of releases that had fewer options can be read.
  older = {key: value for key, value in made.to_json().items() if key not in options}
  assert mechanism.Mechanism.from_json(older) == made


@pytest.mark.parametrize('name', ['banded', 'skellam', 'discrete_gaussian'])
def test_json_round_trip_is_exact(name):
  made = statements.mechanism_of(name, PARTICIPATION, 0.1 + 0.2)
  assert mechanism.Mechanism.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
  'field', ['participation', 'strategy_checksum', 'adjacency', 'noise_site']
)
def test_from_json_refuses_missing_field(field):
  data = accounting.Mechanism('tree', PARTICIPATION, 1.0).to_json()
  del data[field]
  with pytest.raises(ValueError, match=field):
    mechanism.Mechanism.from_json(data)


def test_from_json_refuses_null_adjacency_and_another_strategy():
  made = accounting.Mechanism('toeplitz', PARTICIPATION, 1.0, adjacency='replace_one')
  data = made.to_json()
  with pytest.raises(ValueError, match='adjacency'):
    mechanism.Mechanism.from_json({**data, 'adjacency': None})
  data['participation']['min_separation'] = 13  # This adds a band as well.
  with pytest.raises(ValueError, match='altered'):
    mechanism.Mechanism.from_json(data)
  with pytest.raises(ValueError, match='the strategy given is'):
    other = strategies.BandedToeplitz.square_root(60, 12)
    mechanism.Mechanism.from_json(made.to_json(), other)


def test_mechanism_file_requires_strategy_alone():
  strategy = strategies.BandedToeplitz(60, (1.0, 0.5))
  made = accounting.Mechanism('file', PARTICIPATION, 2.0, strategy=strategy)
  assert made.effective_noise_multiplier == 2.0 / strategy.sensitivity(PARTICIPATION)
  with pytest.raises(ValueError, match='strategy='):
    accounting.Mechanism('file', PARTICIPATION, 2.0)
  with pytest.raises(TypeError, match='strategy'):
    accounting.Mechanism('file', PARTICIPATION, 2.0, strategy=strategy.materialize())
  with pytest.raises(ValueError, match='strategy alone'):
    accounting.Mechanism('file', PARTICIPATION, 2.0, num_bands=3, strategy=strategy)


def test_replace_one_doubles_sensitivity():
  zero_out = accounting.Mechanism('tree', PARTICIPATION, 2.0)
  replace = dataclasses.replace(zero_out, adjacency='replace_one')
  assert replace.sensitivity == 2 * zero_out.sensitivity
  assert replace.event.noise_multiplier == pytest.approx(
    zero_out.event.noise_multiplier / 2, rel=1e-15
  )
  for wrong in ('add_or_remove', 'zero'):
    with pytest.raises(ValueError, match=f'adjacency.*{wrong}'):
      dataclasses.replace(zero_out, adjacency=wrong)


def test_for_target_includes_adaptive_clipping_count():
  target = ('tree', PARTICIPATION, 8.0, 1e-6)
  fixed = accounting.Mechanism.for_target(*target)
  assert fixed.clipped_count_share is None
  made = accounting.Mechanism.for_target(*target, clipped_count_share=0.1)
  assert made.noise_multiplier == fixed.noise_multiplier
  assert made.clipped_count_share == pytest.approx(0.1, rel=1e-12)
  assert made.epsilon(1e-6) == fixed.epsilon(1e-6) <= 8.0
  # The values have the remaining nine tenths of mu^2.
  left = (made.noise_multiplier / made.values_noise_multiplier) ** 2
  assert left == pytest.approx(0.9, rel=1e-12)
  with pytest.raises(ValueError, match='clipped_count_share'):
    accounting.Mechanism.for_target(
      *target, clipped_count_share=0.1, clipped_count_stddev=9.0
    )
  with pytest.raises(ValueError, match='count_share'):
    accounting.Mechanism.for_target(*target, clipped_count_share=1.0)


def test_sampled_sensitivity_is_largest_column_norm():
  name, scheme = 'epoch_banded', sampling.PoissonSampling(24, 1 / 100, num_groups=6)
  with pytest.raises(ValueError, match=name):
    accounting.Mechanism(name, scheme, 2.0)
  strategy = accounting.mechanism.strategy_for(name, sampling.limits_of(scheme))
  made = accounting.Mechanism('file', scheme, 2.0, strategy=strategy)
  longest = np.linalg.norm(made.strategy.materialize(), axis=0).max()
  assert longest > 1.05
  assert made.sensitivity == pytest.approx(longest, rel=1e-12)

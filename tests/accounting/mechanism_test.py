"""A mechanism by name: noise, sensitivity and event agree; saving is exact and safe."""

import dataclasses
import json

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism

PARTICIPATION = strategies.Participation(60, min_separation=12, max_participations=4)


@pytest.mark.parametrize(
  ('name', 'strategy'),
  [
    ('gaussian', strategies.Identity(60)),
    ('tree', strategies.BinaryTree(60)),
    ('banded', strategies.BandedToeplitz.square_root(60, 12)),
  ],
)
def test_names_stand_for_strategies_and_their_sensitivity(name, strategy):
  made = accounting.Mechanism(name, PARTICIPATION, noise_multiplier=3.0)
  assert made.strategy == strategy
  assert made.sensitivity == strategy.sensitivity(PARTICIPATION)
  assert made.effective_noise_multiplier == 3.0 / made.sensitivity
  assert made.event == dp_accounting.GaussianDpEvent(made.effective_noise_multiplier)


@pytest.mark.parametrize('name', mechanism.NAMES)
def test_target_is_kept_and_just_so(name):
  made = accounting.Mechanism.for_target(name, PARTICIPATION, 3.0, 1e-6)
  assert accountants.epsilon(made.event, 1e-6) <= 3.0
  less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.9999)
  assert accountants.epsilon(less.event, 1e-6) > 3.0


def test_bands_default_to_the_separation_and_can_be_chosen():
  assert accounting.Mechanism('banded', PARTICIPATION, 1.0).strategy.num_bands == 12
  made = accounting.Mechanism('banded', PARTICIPATION, 1.0, num_bands=5)
  assert made.strategy.num_bands == 5
  short = strategies.Participation(8, min_separation=12)
  assert accounting.Mechanism('banded', short, 1.0).strategy.num_bands == 8


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('laplace', PARTICIPATION, 1.0), "unknown mechanism 'laplace'; known: gaussian"),
    (('tree', PARTICIPATION, -1.0), 'noise_multiplier must be finite'),
    (('tree', PARTICIPATION, np.nan), 'noise_multiplier must be finite'),
    (('tree', PARTICIPATION, 1.0, 4), 'num_bands=4 is for banded; tree has no bands'),
    (('banded', PARTICIPATION, 1.0, 61), 'num_bands must be at most num_rounds=60'),
  ],
)
def test_what_is_wrong_is_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    accounting.Mechanism(*arguments)


@pytest.mark.parametrize('name', mechanism.NAMES)
def test_json_round_trip_is_exact(name):
  made = accounting.Mechanism(name, PARTICIPATION, 0.1 + 0.2)
  assert mechanism.Mechanism.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize('field', ['num_rounds', 'min_separation', 'noise_multiplier'])
def test_saved_mechanism_without_a_field_is_refused(field):
  data = accounting.Mechanism('banded', PARTICIPATION, 1.0).to_json()
  del data[field]
  with pytest.raises(ValueError, match=f"lacks '{field}'"):
    mechanism.Mechanism.from_json(data)


def test_saved_mechanism_with_another_strategy_is_refused():
  data = accounting.Mechanism('banded', PARTICIPATION, 1.0).to_json()
  data['min_separation'] = 13  # Also one band more.
  with pytest.raises(ValueError, match='they were altered'):
    mechanism.Mechanism.from_json(data)


def test_fixed_epochs_are_refused_with_what_to_do_instead():
  epochs = strategies.Participation(60, 12, fixed_epoch=True)
  with pytest.raises(ValueError, match='leave out fixed_epoch'):
    accounting.Mechanism('tree', epochs, noise_multiplier=1.0)

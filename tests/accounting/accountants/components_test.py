"""Parts: an event taken apart means what it meant, and degenerate ones mean something.

Bad parameters are refused by every accountant before any of them computes.
"""

import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import accountant

Composed = dp_accounting.ComposedDpEvent
Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
NonPrivate = dp_accounting.NonPrivateDpEvent
NoOp = dp_accounting.NoOpDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
WithoutReplacement = dp_accounting.SampledWithoutReplacementDpEvent


@pytest.mark.parametrize(
  'event, relation, expected',
  [
    (Composed([]), Relation.REPLACE_ONE, []),
    (Composed([Gaussian(1), Gaussian(0)]), Relation.REPLACE_ONE, [(NonPrivate(), 1)]),
    (
      Composed([Laplace(2), Gaussian(2.0), Repeated(Laplace(2.0), 3)] * 4),
      Relation.REPLACE_ONE,
      [(Laplace(2.0), 16), (Gaussian(1.0), 1)],
    ),
    (Poisson(0, Gaussian(0.0)), Relation.ADD_OR_REMOVE_ONE, []),
    (Poisson(0.5, NoOp()), Relation.ADD_OR_REMOVE_ONE, []),
    (Poisson(1, Gaussian(2.0)), Relation.ADD_OR_REMOVE_ONE, [(Gaussian(2.0), 1)]),
    (
      Repeated(Poisson(0.5, Repeated(Composed([Gaussian(4), NoOp()]), 4)), 7),
      Relation.ADD_OR_REMOVE_ONE,
      [(Poisson(0.5, Gaussian(2.0)), 7)],
    ),
    (
      WithoutReplacement(9, 9, Gaussian(2.0)),
      Relation.REPLACE_ONE,
      [(Gaussian(2.0), 1)],
    ),
    (
      WithoutReplacement(9, 3, Repeated(Gaussian(4.0), 4)),
      Relation.REPLACE_ONE,
      [(WithoutReplacement(9, 3, Gaussian(2.0)), 1)],
    ),
  ],
)
def test_events_have_one_form(event, relation, expected):
  assert accountant.components(event, relation) == expected


@pytest.mark.parametrize(
  'event, relation',
  [
    (Poisson(0.0, Gaussian(1.0)), Relation.ADD_OR_REMOVE_ONE),
    (Repeated(Poisson(0.1, Gaussian(1.0)), 0), Relation.ADD_OR_REMOVE_ONE),
    (Laplace(math.inf), Relation.REPLACE_SPECIAL),
    (Gaussian(math.inf), Relation.REPLACE_SPECIAL),
    (NoOp(), Relation.REPLACE_SPECIAL),
    (WithoutReplacement(10, 0, Gaussian(1.0)), Relation.REPLACE_ONE),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_nothing_costs_nothing(accountant, event, relation):
  assert accountants.epsilon(event, 1e-6, accountant, relation) == 0.0
  assert accountants.delta(event, 0.0, accountant, relation) == 0.0


@pytest.mark.parametrize(
  'event, relation',
  [
    (Poisson(0.1, Gaussian(0.0)), Relation.ADD_OR_REMOVE_ONE),
    (Composed([Gaussian(5.0), Laplace(0.0)]), Relation.REPLACE_SPECIAL),
    (Gaussian(0.0), Relation.REPLACE_SPECIAL),
    (WithoutReplacement(10, 1, NonPrivate()), Relation.REPLACE_ONE),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_no_noise_costs_everything(accountant, event, relation):
  assert accountants.epsilon(event, 1e-6, accountant, relation) == math.inf
  assert accountants.delta(event, 9.0, accountant, relation) == 1.0


@pytest.mark.parametrize(
  'event, relation, message',
  [
    (Laplace(math.nan), Relation.REPLACE_ONE, 'negative or NaN'),
    (Poisson(0.1, Gaussian(-1.0)), Relation.ADD_OR_REMOVE_ONE, 'negative or NaN'),
    (Poisson(1.5, Gaussian(1.0)), Relation.ADD_OR_REMOVE_ONE, 'not from 0 to 1'),
    (WithoutReplacement(5, 6, Gaussian(1.0)), Relation.REPLACE_ONE, 'population'),
    (Repeated(Gaussian(1.0), -1), Relation.REPLACE_ONE, 'not a whole number'),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_bad_parameters_are_refused(accountant, event, relation, message):
  with pytest.raises(ValueError, match=message):
    accountants.epsilon(event, 1e-6, accountant, relation)

"""Tests of plans, which compare mechanisms before training."""

import dataclasses
import itertools
import math
import re

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import views as plan_views
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.strategies import registry

LIMITS = strategies.Participation(60, min_separation=12, max_participations=4)
DELTA = 1e-6
SIZE = 250_000  # 10^6 bytes.


def _task(**changes):
  arguments = {'target_epsilon': 3.0, **changes}
  return planning.Task(LIMITS, SIZE, DELTA, **arguments)


@pytest.fixture(scope='module')
def targeted():
  names = ('gaussian', 'tree', 'banded', 'toeplitz', 'blt', 'banded_inverse')
  return planning.compare(_task(mechanisms=names))


@pytest.fixture(scope='module')
def noised():
  noise = {'target_epsilon': None, 'noise_multiplier': 4.0}
  return planning.compare(_task(**noise, mechanisms=('gaussian', 'tree', 'toeplitz')))


@pytest.fixture(scope='module')
def sampled():
  names = ('gaussian', 'toeplitz')
  return planning.compare(
    _task(num_clients=1000, clients_per_round=40, mechanisms=names)
  )


def _rows(comparison, scheme):
  return [row for row in comparison.rows if row.sampling == scheme]


@pytest.mark.slow
def test_rows_without_sampling_match_calibrated_mechanisms():
  rows = _rows(planning.compare(_task()), 'none')
  # Trees have two rows; tailed_blt has none, as clients may take part until the end.
  assert len(rows) == len(registry.KINDS) + 1 - 1
  assert 'tailed_blt' not in {row.mechanism.name for row in rows}
  for row in rows:
    options = registry.options_of(row.mechanism.strategy)
    calibrated = mechanism_lib.Mechanism.for_target(
      row.mechanism.name, LIMITS, 3.0, DELTA, **options
    )
    # Either may be cached by a process with other threads, so the last digits differ.
    assert type(row.mechanism.strategy) is type(calibrated.strategy)
    error = calibrated.strategy.rmse(LIMITS)
    assert row.mechanism.strategy.rmse(LIMITS) == pytest.approx(error, rel=1e-9)
    # The error is flat at an optimum, but sensitivities are not.
    noise = calibrated.noise_multiplier
    assert row.mechanism.noise_multiplier == pytest.approx(noise, rel=1e-7)
    assert row.epsilon <= 3.0
    assert row.epsilon == pytest.approx(3.0, rel=1e-9)
    # Rows of the dense estimator are the weights of z in each sum.
    sums = np.square(row.mechanism.strategy.materialize_estimator()).sum(axis=1)
    error = row.mechanism.noise_multiplier * np.sqrt(sums)
    np.testing.assert_allclose(row.error_by_round, error, rtol=1e-9)
    assert row.rmse == pytest.approx(math.sqrt(np.mean(error**2)), rel=1e-9)
    assert row.max_error == pytest.approx(error.max(), rel=1e-9)


def test_given_noise_multiplier_is_used_in_all_rows(noised):
  for row in noised.rows:
    assert row.mechanism.noise_multiplier == 4.0
    assert row.epsilon == accountants.epsilon(
      row.mechanism.event, DELTA, row.accountant, row.mechanism.relation
    )
  for row in noised.unsampled:
    sensitivity = row.mechanism.strategy.sensitivity(LIMITS)
    event = dp_accounting.GaussianDpEvent(4.0 / sensitivity)
    assert row.epsilon == pytest.approx(accountants.epsilon(event, DELTA), rel=1e-12)
  best = noised.unsampled[0]
  assert noised.equal_epsilon == best.epsilon
  assert best.equal_noise_multiplier == pytest.approx(4.0, rel=1e-9)


def test_rows_with_sampling_have_events_of_their_schemes(sampled):
  (poisson,) = _rows(sampled, 'poisson')
  (fixed_size,) = _rows(sampled, 'fixed_size')
  (cyclic,) = _rows(sampled, 'cyclic_poisson')
  assert poisson.mechanism.adjacency == 'add_or_remove'
  assert fixed_size.mechanism.adjacency == 'replace_one'
  gaussian = dp_accounting.GaussianDpEvent
  assert poisson.mechanism.event == dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      0.04, gaussian(poisson.mechanism.noise_multiplier)
    ),
    60,
  )
  # Replacing a client moves a sum by two clip norms.
  assert fixed_size.mechanism.event == dp_accounting.SelfComposedDpEvent(
    dp_accounting.SampledWithoutReplacementDpEvent(
      1000, 40, gaussian(fixed_size.mechanism.noise_multiplier / 2)
    ),
    60,
  )
  groups = cyclic.mechanism.participation.num_groups
  strategy, event = cyclic.mechanism.strategy, cyclic.mechanism.event
  assert 1 < strategy.num_bands <= groups
  assert event.count == -(-60 // groups)
  assert event.event.sampling_probability == 40 / (1000 // groups)
  column_norm = np.sqrt(np.square(strategy.materialize()).sum(axis=0)).max()
  assert event.event.event.noise_multiplier == pytest.approx(
    cyclic.mechanism.noise_multiplier / column_norm, rel=1e-12
  )
  for row in (poisson, fixed_size, cyclic):
    assert row.accountant == 'rdp'  # A fast upper bound by default.
    assert row.epsilon <= 3.0
    assert row.epsilon == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(
  ('scheme', 'allowed'),
  [
    ('none', {'none'}),
    ('poisson', {'none', 'poisson', 'cyclic_poisson'}),
    ('fixed_size', {'none', 'fixed_size'}),
  ],
)
def test_sampling_is_advised_only_if_the_task_states_it(sampled, scheme, allowed):
  task = dataclasses.replace(sampled.task, sampling=scheme)
  comparison = dataclasses.replace(sampled, task=task)
  may_be = {row.sampling for row in sampled.rows if comparison.may_be_advised(row)}
  assert may_be == allowed
  assert comparison.advised.sampling in allowed
  # All samplings have rows, and all would be better than none.
  assert {row.sampling for row in sampled.rows} == set(itertools.chain(*_ALLOWED))
  if scheme == 'poisson':
    assert comparison.advised.sampling == 'cyclic_poisson'
    assert 'Poisson sampling' in plan_views.advice(comparison)


_ALLOWED = planning.samplings().values()


def test_advice_is_smallest_fast_mechanism_within_5_percent(targeted, noised):
  smallest = min(row.equal_rmse for row in targeted.unsampled)
  close = [row for row in targeted.unsampled if row.equal_rmse <= 1.05 * smallest]
  fastest = min(row.cost.seconds for row in close)
  close = [row for row in close if row.cost.seconds <= 2 * fastest]
  assert len(close) > 1
  fewest_bytes = min(row.cost.num_bytes for row in close)
  assert targeted.advised.cost.num_bytes == fewest_bytes
  assert targeted.advised in close
  advice = plan_views.advice(targeted)
  assert advice.startswith(targeted.advised.name)
  assert re.search('the least (RMSE )?without sampling', advice), advice
  # Where epsilons differ, the column RMSE is of another comparison.
  assert 'the least RMSE at equal epsilon without' in plan_views.advice(noised)


def test_slow_mechanisms_are_left_out_unless_requested(monkeypatch):
  many_rounds = strategies.Participation(20_000, min_separation=5)
  banded, inverse = registry.kind('banded'), registry.kind('banded_inverse')
  assert banded.seconds(LIMITS, num_bands=12) < planning.MAX_SECONDS
  assert banded.seconds(strategies.Participation(2000, 314)) > 10
  assert inverse.seconds(LIMITS) < planning.MAX_SECONDS
  assert inverse.seconds(many_rounds) > planning.MAX_SECONDS
  monkeypatch.setattr(planning, 'MAX_SECONDS', 1e-3)
  comparison = planning.compare(_task())
  slow = {'banded', 'banded_inverse', 'toeplitz', 'windowed_blt'}
  slow |= {name for name in registry.KINDS if name.startswith('epoch_')}
  assert {each.mechanism for each in comparison.left_out} == slow | {'tailed_blt'}
  left_out = [each for each in comparison.left_out if each.mechanism in slow]
  for each in left_out:
    assert each.mechanism not in {row.mechanism.name for row in comparison.rows}
    assert '--mechanisms=all' in each.reason
  requested = planning.compare(_task(mechanisms=('banded', 'gaussian')))
  assert [row.mechanism.name for row in requested.rows] == ['banded', 'gaussian']


def test_impossible_mechanisms_are_left_out_with_the_reason():
  names = ('gaussian', 'banded', 'tailed_blt')
  comparison = planning.compare(_task(options={'num_bands': 20}, mechanisms=names))
  left_out = {each.mechanism: each.reason for each in comparison.left_out}
  assert 'its tail is of no use' in left_out['tailed_blt']
  assert 'Use at most 12 bands' in left_out['banded']
  with pytest.raises(ValueError, match='no mechanism can do it. banded: .*12 bands'):
    planning.compare(_task(options={'num_bands': 20}, mechanisms=('banded',)))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'noise_multiplier': 1.0}, 'give either a target.*or noise_multiplier'),
    ({'target_epsilon': 0.0}, 'target_epsilon must be positive'),
    ({'num_clients': 4000}, 'num_clients and clients_per_round go together'),
    (
      {'num_clients': 100, 'clients_per_round': 40},
      'need 600 clients.*num_clients=100 is too few',
    ),
    ({'sampling': 'poisson'}, 'need both; got num_clients=None, .*sampling=poisson'),
    ({'mechanisms': ('trees',)}, "unknown mechanism 'trees'; known: gaussian"),
    # Bands of the inverse are another option, and not required of all.
    ({'options': {'num_bands': 0}}, 'num_bands must be at least 1'),
  ],
)
def test_invalid_task_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    planning.compare(_task(**changes))


def test_text_table_has_the_numbers_of_the_comparison(targeted, noised):
  for comparison in (targeted, noised):
    lines = plan_views.to_text(comparison).splitlines()
    for row in comparison.rows:
      number = rounding.up(row.mechanism.noise_multiplier)
      if comparison is noised:
        number = rounding.up(row.epsilon)
      numbers = (
        number,
        rounding.up(comparison.relative(row, 'rmse'), 3),
        rounding.up(comparison.relative(row, 'max_error'), 3),
      )
      of_row = [line.split() for line in lines if line.startswith(f'  {row.name} ')]
      assert any(set(numbers) <= set(words) for words in of_row)
    assert any(line.startswith('Advice: ') for line in lines)


def test_task_refuses_monte_carlo_accountant():
  task = {'noise_multiplier': 2.0, 'accountant': 'monte_carlo'}
  with pytest.raises(ValueError, match='accountant=monte_carlo .* leave it out'):
    planning.Task(strategies.Participation(20), 1000, 1e-6, **task)

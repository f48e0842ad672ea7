"""Tests of ledgers of sampled mechanisms."""

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger

MECHANISMS = {
  'poisson': accounting.Mechanism('gaussian', sampling.PoissonSampling(8, 0.1), 2.0),
  'cyclic': accounting.Mechanism(
    'toeplitz', sampling.PoissonSampling(8, 0.1, num_groups=3), 2.0, num_bands=3
  ),
  'fixed_size': accounting.Mechanism(
    'gaussian', sampling.FixedSizeSampling(8, 100, 10), 2.0
  ),
  'truncated_poisson': accounting.Mechanism(
    'gaussian', sampling.TruncatedPoissonSampling(8, 0.1, 100, 14), 2.0
  ),
}

GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
LAPLACE = accounting.Mechanism('laplace', strategies.Participation(8, 3), 9.0)

# Schemes that draw all rounds of a client together: the first line has their cost.
DRAWN_TOGETHER = {
  'balls_in_bins': accounting.Mechanism('gaussian', sampling.BallsInBins(8, 3), 2.0),
  'correlated': accounting.Mechanism('blt', sampling.BallsInBins(8, 3), 2.0),
  'random_allocation': accounting.Mechanism(
    'gaussian', sampling.RandomAllocation(8, 2), 2.0
  ),
  'b_min_sep': accounting.Mechanism(
    'toeplitz', sampling.BMinSepSampling(8, 0.25, 3), 2.0, num_bands=3
  ),
}


@pytest.mark.parametrize('name', MECHANISMS)
def test_all_rounds_compose_to_the_mechanism_event(name, path):
  mechanism = MECHANISMS[name]
  read = ledgers.write_of(path, mechanism, 8, 1e-6)
  assert read.total_event == mechanism.event
  for entry in read.entries:
    assert entry.epsilon is None and entry.effective_noise_multiplier is None


@pytest.mark.parametrize('name', MECHANISMS)
def test_first_rounds_spend_only_what_they_released(name, path):
  mechanism = MECHANISMS[name]
  total = ledgers.write_of(path, mechanism, 4, 1e-6).total_event
  spent = accountants.epsilon(total, 1e-6, relation=mechanism.relation)
  count = 4 if name != 'cyclic' else 2  # The first of 3 groups has rounds 0 and 3.
  event = dp_accounting.SelfComposedDpEvent(mechanism.round_events[0], count)
  assert spent == accountants.epsilon(event, 1e-6, relation=mechanism.relation)
  assert 0 < spent < mechanism.epsilon(1e-6)


@pytest.mark.parametrize('name', DRAWN_TOGETHER)
def test_rounds_drawn_together_are_spent_in_the_first_round(name, path):
  mechanism = DRAWN_TOGETHER[name]
  read = ledgers.write_of(path, mechanism, 2, 1e-6)
  assert read.total_event == events.simplify(mechanism.event)
  spent = accountants.epsilon(read.total_event, 1e-6, relation=mechanism.relation)
  assert spent >= mechanism.epsilon(1e-6) > 0


@pytest.mark.parametrize('name', ['epsilon', 'effective_noise_multiplier'])
def test_read_refuses_figures_added_to_sampled_rounds(name, path):
  ledgers.write_of(path, MECHANISMS['poisson'], 1, 1e-6)
  (line,) = ledgers.lines_of(path)
  ledgers.replace_file(path, ledgers.changed(line, **{name: 0.5}))
  with pytest.raises(ValueError, match=f'line 1: {name} is 0.5, .* it is null'):
    ledger.read(path)


@pytest.mark.parametrize(
  'mechanism, event',
  [
    (MECHANISMS['poisson'], dp_accounting.PoissonSampledDpEvent(0.2, GAUSSIAN)),
    (
      MECHANISMS['poisson'],
      dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0)),
    ),
    (
      MECHANISMS['poisson'],
      dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
    ),
    (MECHANISMS['poisson'], GAUSSIAN),
    (LAPLACE, GAUSSIAN),
    (LAPLACE, dp_accounting.ComposedDpEvent([GAUSSIAN, LAPLACE.round_events[0]])),
  ],
)
def test_append_refuses_event_of_another_mechanism(mechanism, event, path):
  ledgers.write_of(path, mechanism, 2, 1e-6)
  before = ledgers.lines_of(path)
  with ledger.LedgerWriter(path, 1e-6, resume=True) as writer:
    with pytest.raises(ValueError, match='all rounds of a ledger are of one mechanism'):
      ledgers.append_of(writer, mechanism, event)
    assert ledgers.lines_of(path) == before
    ledgers.append_of(writer, mechanism, mechanism.round_events[2])


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(2.0), 2)
    ),
    events.EpsilonDeltaDpEvent(1.0, 1e-8),
  ],
)
def test_append_refuses_composed_events(event, path):
  with ledger.LedgerWriter(path, 1e-6) as writer:
    with pytest.raises(ValueError, match='integer noise, or samples; got'):
      ledgers.append_of(writer, MECHANISMS['poisson'], event)
  assert ledgers.lines_of(path) == []

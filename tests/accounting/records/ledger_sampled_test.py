"""Tests of ledgers of sampled mechanisms."""

import json

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
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


def _write(path, mechanism, num_rounds):
  with ledger.LedgerWriter(path, 1e-6) as writer:
    return [
      _append(writer, mechanism, event) for event in mechanism.round_events[:num_rounds]
    ]


def _append(writer, mechanism, event, **changes):
  return ledgers.append(
    writer,
    event,
    noise_multiplier=mechanism.noise_multiplier,
    strategy_checksum=mechanism.strategy.checksum,
    **changes,
  )


@pytest.mark.parametrize('name', MECHANISMS)
def test_all_rounds_compose_to_the_mechanism_event(name, path):
  mechanism = MECHANISMS[name]
  written = _write(path, mechanism, 8)
  read = ledger.read(path)
  assert list(read.entries) == written
  assert read.total_event == mechanism.event
  for entry in written:
    assert entry.epsilon is None and entry.effective_noise_multiplier is None


@pytest.mark.parametrize('name', MECHANISMS)
def test_first_rounds_spend_only_what_they_released(name, path):
  mechanism = MECHANISMS[name]
  _write(path, mechanism, 4)
  spent = accountants.epsilon(
    ledger.read(path).total_event, 1e-6, relation=mechanism.relation
  )
  count = 4 if name != 'cyclic' else 2  # The first of 3 groups has rounds 0 and 3.
  event = dp_accounting.SelfComposedDpEvent(mechanism.round_events[0], count)
  assert spent == accountants.epsilon(event, 1e-6, relation=mechanism.relation)
  assert 0 < spent < mechanism.epsilon(1e-6)


@pytest.mark.parametrize('name', DRAWN_TOGETHER)
def test_rounds_drawn_together_are_spent_in_the_first_round(name, path):
  mechanism = DRAWN_TOGETHER[name]
  written = _write(path, mechanism, 2)
  read = ledger.read(path)
  assert list(read.entries) == written
  assert read.total_event == events.simplify(mechanism.event)
  spent = accountants.epsilon(read.total_event, 1e-6, relation=mechanism.relation)
  assert spent >= mechanism.epsilon(1e-6) > 0


@pytest.mark.parametrize('name', ['epsilon', 'effective_noise_multiplier'])
def test_read_refuses_figures_added_to_sampled_rounds(name, path):
  _write(path, MECHANISMS['poisson'], 1)
  (line,) = ledgers.lines_of(path)
  with open(path, 'w', encoding='utf-8') as file:
    file.write(json.dumps({**json.loads(line), name: 0.5}) + '\n')
  with pytest.raises(ValueError, match=f'line 1: {name} is 0.5, .* it is null'):
    ledger.read(path)


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(2.0)),
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0)),
    dp_accounting.SampledWithoutReplacementDpEvent(
      100, 10, dp_accounting.GaussianDpEvent(2.0)
    ),
    dp_accounting.GaussianDpEvent(2.0),
  ],
)
def test_append_refuses_event_of_another_mechanism(event, path):
  mechanism = MECHANISMS['poisson']
  _write(path, mechanism, 2)
  before = ledgers.lines_of(path)
  with ledger.LedgerWriter(path, 1e-6, resume=True) as writer:
    with pytest.raises(ValueError, match='all rounds of a ledger are of one mechanism'):
      _append(writer, mechanism, event)
    assert ledgers.lines_of(path) == before
    _append(writer, mechanism, mechanism.round_events[2])  # The writer still works.


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(2.0), 2)
    ),
    dp_accounting.SelfComposedDpEvent(MECHANISMS['poisson'].round_events[0], 2),
  ],
)
def test_append_refuses_composed_events(event, path):
  with ledger.LedgerWriter(path, 1e-6) as writer:
    with pytest.raises(ValueError, match='integer noise, or samples; got'):
      _append(writer, MECHANISMS['poisson'], event)
  assert ledgers.lines_of(path) == []

"""Tests of reports of runs in which clients add the noise."""

import dataclasses
import math

import dp_accounting
import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding

DELTA = 1e-6
SHARES, INTEGERS = statements.OF_CLIENTS['shares'], statements.OF_CLIENTS['integers']
LAPLACE = statements.OF_CLIENTS['local']
LOCAL = statements.OF_CLIENTS['local_ledger']
BOTH = statements.OF_CLIENTS['both']
SIMULATED = statements.OF_CLIENTS['simulated']
TURNS = 3  # A client is in 3 of 12 rounds, which are 4 apart.
GRID = distributed_noise.design(
  'skellam', clip_norm=1.0, noise_multiplier=5.0, min_clients=20, dimension=30, bits=16
)


def _build(mechanism, with_curves=False, **options):
  run = options.get('ledger')
  if run is not None and len(run.entries) < 12 and mechanism.is_private:
    options = {'rounds_fixed_by': 'a budget', **options}
  return statements.build(mechanism, DELTA, **options, with_curves=with_curves)


def _others(built):
  return {
    (each['against'], each['adjacency']): each['epsilon']
    for each in built['other_guarantees']
  }


def _gaussian(noise_multiplier, rounds=TURNS):
  return pytest.approx(
    gaussian.epsilon_of(math.sqrt(rounds) / noise_multiplier, DELTA), rel=1e-9
  )


def _skellam(shares, moved=1.0, rounds=TURNS):
  event = dataclasses.replace(
    GRID.event(),
    num_clients=shares,
    l2_sensitivity=GRID.l2_sensitivity * moved,
    l1_sensitivity=GRID.l1_sensitivity * moved,
  )
  repeated = dp_accounting.SelfComposedDpEvent(event, rounds)
  return pytest.approx(accountants.epsilon(repeated, DELTA), rel=1e-9)


@pytest.mark.parametrize(
  ('mechanism', 'clients', 'error_of'),
  [
    (SHARES, 1, 'sum'),
    (LOCAL, 20, 'sum'),
    # Noise 5 of each of 20 clients, and 40 of the server.
    (BOTH, 20 + 8**2, 'sum'),
    (dataclasses.replace(BOTH, options=()), 1 + 8**2, 'client'),
    (SIMULATED, 1, 'client'),
  ],
)
def test_mechanism_figures_depend_on_the_noise_site(mechanism, clients, error_of):
  built = _build(mechanism, with_curves=True)
  stated = built['mechanism']
  central = _build(accounting.Mechanism('gaussian', statements.LIMITS, 5.0))
  assert built['setting'] == terms.PLACEMENTS[mechanism.noise_site].setting
  assert stated['noise_site'] == mechanism.noise_site
  assert stated['sensitivity'] == pytest.approx(math.sqrt(TURNS), rel=1e-12)
  assert stated['effective_noise_multiplier'] == pytest.approx(5 / math.sqrt(TURNS))
  assert stated['error_of'] == error_of
  for name in ('rmse', 'max_error'):
    expected = central['mechanism'][name] * math.sqrt(clients)
    assert stated[name] == pytest.approx(expected, rel=1e-12)
  assert built['curves']['error_by_round'][-1][1] == pytest.approx(stated['max_error'])
  assert stated['integer_noise'] is None
  assert stated['server_noise_multiplier'] == mechanism.server_noise_multiplier


def test_integer_noise_figures_match_those_of_the_event():
  mechanism = _build(INTEGERS)['mechanism']
  stated = mechanism['integer_noise']
  assert stated['local_stddev'] == GRID.local_stddev
  assert stated['l2_sensitivity'] == INTEGERS.event.event.l2_sensitivity
  assert stated['l1_sensitivity'] == INTEGERS.event.event.l1_sensitivity
  assert stated['clients'] == 20 and stated['padded_dimension'] == 32
  assert 0 < stated['wrap_probability'] <= 1e-6 and stated['beta'] == 1e-6
  noise = math.sqrt(20) * stated['local_stddev']
  assert mechanism['effective_noise_multiplier'] == pytest.approx(
    noise / (math.sqrt(TURNS) * stated['l2_sensitivity']), rel=1e-9
  )
  assert mechanism['rmse'] * stated['steps'] == pytest.approx(
    noise * math.sqrt(6.5), rel=1e-9
  )


def test_other_guarantees_of_noise_shares():
  built = _build(SHARES)
  assert built['guarantee']['epsilon'] == _gaussian(5.0)
  assert _others(built) == {
    ('other_client', 'zero_out'): _gaussian(5 * math.sqrt(19 / 20)),
    ('released', 'replace_one'): _gaussian(2.5),
    ('server', 'zero_out'): _gaussian(5 / math.sqrt(20)),
  }
  for min_clients in (1, 2):
    mechanism = dataclasses.replace(SHARES, options={'min_clients': min_clients})
    epsilon = _others(_build(mechanism))['other_client', 'zero_out']
    assert epsilon == _gaussian(5 / math.sqrt(min_clients))


def test_other_guarantees_of_integer_noise(tmp_path):
  built = _build(INTEGERS)
  assert _others(built) == {
    ('other_client', 'zero_out'): _skellam(19),
    ('released', 'replace_one'): _skellam(20, moved=2.0),
    ('server', 'zero_out'): _skellam(1),
  }
  run = statements.write_ledger(INTEGERS, tmp_path / 'ledger.jsonl', aborted=4)
  others = _others(_build(INTEGERS, ledger=run))  # 7 rounds; 4 more reports.
  assert others['other_client', 'zero_out'] == _skellam(19, rounds=2)
  assert others['server', 'zero_out'] == _skellam(1, rounds=6)
  # Results may have stopped the run.
  others = _others(_build(INTEGERS, ledger=run, rounds_fixed_by=None))
  assert others['other_client', 'zero_out'] == _skellam(19)
  assert others['server', 'zero_out'] == _skellam(1, rounds=TURNS + 4)


def test_other_guarantees_of_local_noise():
  assert _others(_build(LOCAL)) == {
    ('everybody', 'replace_one'): _gaussian(2.5),
    ('released', 'zero_out'): _gaussian(5 * math.sqrt(20)),
    ('other_client', 'zero_out'): _gaussian(5 * math.sqrt(19)),
  }
  unknown = dataclasses.replace(LOCAL, options=(), adjacency='replace_one')
  assert _others(_build(unknown)) == {('everybody', 'zero_out'): _gaussian(5.0)}
  laplace = _others(_build(LAPLACE))  # Pure: 3 reports of at most 2 / 5.
  assert list(laplace) == [('everybody', 'replace_one')]
  assert 0.9 < laplace['everybody', 'replace_one'] <= 1.2


def test_other_guarantees_of_noise_of_clients_and_server(tmp_path):
  built = _build(BOTH)
  assert built['guarantee']['epsilon'] == _gaussian(5.0)  # Clients' noise alone.
  both = math.sqrt(20 * 5**2 + 40**2)
  assert _others(built) == {
    ('everybody', 'replace_one'): _gaussian(2.5),
    ('released', 'zero_out'): _gaussian(both),
    ('released', 'replace_one'): _gaussian(both / 2),
    ('other_client', 'zero_out'): _gaussian(math.sqrt(19 * 5**2 + 40**2)),
  }
  unknown = _others(_build(dataclasses.replace(BOTH, options=())))
  own = math.sqrt(5**2 + 40**2)
  assert unknown == {
    ('everybody', 'replace_one'): _gaussian(2.5),
    ('released', 'zero_out'): _gaussian(own),
    ('released', 'replace_one'): _gaussian(own / 2),
  }
  # Reports of aborted attempts count for everybody, but not for what is released.
  run = statements.write_ledger(BOTH, tmp_path / 'ledger.jsonl', aborted=5)
  others = _others(_build(BOTH, ledger=run))
  assert others['everybody', 'replace_one'] == _gaussian(2.5, rounds=2 + 5)
  assert others['released', 'zero_out'] == _gaussian(both, rounds=2)


@pytest.mark.parametrize(
  'mechanism',
  [statements.TREE, SIMULATED, dataclasses.replace(SHARES, noise_multiplier=0.0)],
)
def test_no_other_guarantees_of_server_noise_or_without_noise(mechanism):
  assert _build(mechanism)['other_guarantees'] == []


@pytest.mark.parametrize('mechanism', [INTEGERS, LAPLACE, BOTH])
def test_run_with_fixed_rounds_spends_only_those_rounds(mechanism, tmp_path):
  run = statements.write_ledger(mechanism, tmp_path / 'ledger.jsonl', num_rounds=7)
  built = _build(mechanism, ledger=run, with_curves=True)
  cut = dataclasses.replace(
    mechanism, participation=strategies.Participation(7, 4), strategy=None
  )
  assert built['guarantee']['epsilon'] == pytest.approx(cut.epsilon(DELTA), rel=1e-9)
  assert built['run']['epsilon_planned'] == mechanism.epsilon(DELTA)
  assert built['curves']['epsilon_by_round'][-1][0] <= 7


@pytest.mark.parametrize('mechanism', [SHARES, BOTH])
def test_round_with_fewer_than_min_clients_is_refused(mechanism, tmp_path):
  run = statements.write_ledger(mechanism, tmp_path / 'ledger.jsonl', clients=19)
  with pytest.raises(ValueError, match='19 clients, and min_clients=20'):
    _build(mechanism, ledger=run)


def test_local_noise_spends_privacy_in_aborted_attempts(tmp_path):
  run = statements.write_ledger(LOCAL, tmp_path / 'ledger.jsonl', aborted=5)
  built = _build(LOCAL, ledger=run, with_curves=True)
  assert built['guarantee']['epsilon'] == _gaussian(5.0, rounds=2 + 5)
  assert built['run']['aborted_attempts']['epsilon'] == _gaussian(5.0, rounds=5)
  assert built['run']['epsilon_planned'] == _gaussian(5.0, rounds=3 + 5)
  assert built['curves']['epsilon_by_round'] == []
  others = _others(built)
  assert others['everybody', 'replace_one'] == _gaussian(2.5, rounds=2 + 5)
  assert others['released', 'zero_out'] == _gaussian(5 * math.sqrt(20), rounds=2)
  # Nobody sees shares of aborted attempts.
  run = statements.write_ledger(SHARES, tmp_path / 'other.jsonl', aborted=5)
  built = _build(SHARES, ledger=run)
  assert built['guarantee']['epsilon'] == _gaussian(5.0, rounds=2)
  assert built['run']['aborted_attempts']['epsilon'] == 0


def test_ledger_without_privacy_is_refused_except_of_simulation(tmp_path):
  events = (dp_accounting.NonPrivateDpEvent(),) * 7
  for index, mechanism in enumerate((statements.TREE, SHARES, INTEGERS, LOCAL)):
    run = statements.write_ledger(mechanism, tmp_path / f'{index}.jsonl', events=events)
    with pytest.raises(ValueError, match='round 0 of the ledger has the e'):
      _build(mechanism, ledger=run)
  run = statements.write_ledger(SIMULATED, tmp_path / 'simulated.jsonl')
  built = _build(SIMULATED, ledger=run, with_curves=True)
  assert built['guarantee']['epsilon'] is None
  assert not built['guarantee']['is_private']
  assert built['curves']['epsilon_by_round'] == []
  assert built['curves']['epsilon_by_delta'] == []
  private = statements.write_ledger(LOCAL, tmp_path / 'private.jsonl')
  with pytest.raises(ValueError, match='round 0 of the ledger has the noise site'):
    _build(SIMULATED, ledger=private)


def test_ledger_of_another_noise_site_is_refused(tmp_path):
  tree = accounting.Mechanism('gaussian', statements.LIMITS, 5.0)
  both = dataclasses.replace(
    LOCAL, noise_site='clients_and_server', server_noise_multiplier=4.0
  )
  larger = dataclasses.replace(both, server_noise_multiplier=4000.0)
  fewer = dataclasses.replace(LOCAL, options={'min_clients': 19})
  mechanisms = (tree, SHARES, LOCAL, fewer, both, larger)
  for index, mechanism in enumerate(mechanisms):
    run = statements.write_ledger(mechanism, tmp_path / f'{index}.jsonl')
    _build(mechanism, ledger=run)
    for other in mechanisms:
      if other is not mechanism:
        # All have the same events, but other noise in the sum.
        with pytest.raises(ValueError, match='of the ledger has the'):
          _build(other, ledger=run)


def test_report_of_local_simulation_begins_with_no_guarantee():
  text = rendering.render(_build(SIMULATED, with_curves=True), 'markdown')
  lines = [line for line in text.splitlines() if line]
  assert 'Guarantee: none (a simulation of local differential privacy' in lines[1]
  words = ' '.join(text.split())
  assert 'What else holds' not in words
  epsilon = rounding.up(LOCAL.epsilon(DELTA))
  assert f'would have (epsilon, delta) = ({epsilon}, 1e-06) local' in words


@pytest.mark.parametrize('mechanism, of_server', [(LOCAL, 0), (BOTH, 40)])
def test_runs_of_different_noise_sites_compose_by_observer(mechanism, of_server):
  tree = _build(statements.TREE)
  built = statements.compose([_build(mechanism), tree])
  assert terms.PLACEMENTS[mechanism.noise_site].setting in built['setting']
  assert terms.PLACEMENTS[noises.SERVER.name].setting in built['setting']
  # Observers of sums alone, also clients, learn less of the first run; observers of
  # single updates see those of the second run, which have no noise.
  squared = tree['guarantee']['gdp_mu'] ** 2
  assert _others(built) == {
    (against, 'zero_out'): pytest.approx(
      gaussian.epsilon_of(
        math.sqrt(squared + TURNS / (25 * clients + of_server**2)), DELTA
      ),
      rel=1e-9,
    )
    for against, clients in (('released', 20), ('other_client', 19))
  }
  # The server's noise is not in what clients send.
  twice = _others(statements.compose([_build(mechanism), _build(LOCAL)]))
  assert twice['everybody', 'replace_one'] == _gaussian(2.5, rounds=2 * TURNS)


def test_composition_lists_observer_of_all_single_reports():
  local = dataclasses.replace(LOCAL, options=())
  built = statements.compose([_build(SHARES), _build(local), _build(SHARES)])
  single = 2 * TURNS * 20 / 25 + TURNS / 25  # Squared mu: a share has a 20th of 5^2.
  shares = 2 * TURNS / 25
  assert _others(built) == {
    ('other_client', 'zero_out'): pytest.approx(
      gaussian.epsilon_of(math.sqrt(shares * 20 / 19 + TURNS / 25), DELTA), rel=1e-9
    ),
    ('released', 'replace_one'): pytest.approx(
      gaussian.epsilon_of(2 * math.sqrt(shares + TURNS / 25), DELTA), rel=1e-9
    ),
    ('server', 'zero_out'): pytest.approx(
      gaussian.epsilon_of(math.sqrt(single), DELTA), rel=1e-9
    ),
  }
  # Composing in two steps gives the same.
  nested = statements.compose(
    [statements.compose([_build(SHARES), _build(local)]), _build(SHARES)]
  )
  assert _others(nested) == _others(built)


def test_local_simulation_does_not_compose():
  with pytest.raises(ValueError, match='part 2 has no guarantee'):
    statements.compose([_build(LOCAL), _build(SIMULATED)])


def test_max_error_of_local_laplace_noise():
  stated = _build(LAPLACE)['mechanism']
  # The sum of 12 rounds has noise of 20 clients each, of variance 2 * 5^2.
  assert stated['max_error'] == pytest.approx(math.sqrt(12 * 20 * 2) * 5, rel=1e-12)
  assert stated['sensitivity'] == TURNS


def test_wrap_probability_is_that_of_the_largest_cohort(tmp_path):
  run = statements.write_ledger(INTEGERS, tmp_path / 'ledger.jsonl', clients=200)
  stated = _build(INTEGERS, ledger=run)['mechanism']['integer_noise']
  assert stated['clients'] == 200
  assert stated['wrap_probability'] == GRID.wrap_probability_with(200) > 1e-6


def test_integer_and_gaussian_noise_compose_by_rdp():
  built = statements.compose([_build(INTEGERS), _build(SHARES)])
  assert built['guarantee']['accountant'] == 'rdp'
  single = _build(INTEGERS)['guarantee']['epsilon']
  assert single < built['guarantee']['epsilon'] < 2.5 * single
  assert set(_others(built)) == set(_others(_build(SHARES)))

"""Simulations with every sampling scheme spend the epsilon that `report` plans."""

import pytest

from tests.experiments import simulations
from tff_dp_aggregators import sampling

CLIENTS = ('--num_clients=24', '--clients_per_round=4')
SHARED = ('--num_rounds=2', '--noise_multiplier=3', '--target_delta=1e-3')
# Flags that some schemes need.
_NEEDED = {
  'random_allocation': '--clients_per_round=12',
  'b_min_sep': '--min_separation=2',
  'truncated_poisson': '--max_clients_per_round=5',
}
SAMPLED = {
  kind.flag: (
    f'--sampling={kind.flag}',
    '--mechanism=gaussian',
    *filter(None, [_NEEDED.get(kind.flag)]),
  )
  for kind in sampling.SCHEMES.values()
  if kind.is_sampled
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [
    *SAMPLED.values(),
    ('--sampling=fixed_size', '--mechanism=gaussian', '--adjacency=add_or_remove'),
    ('--sampling=poisson', '--num_groups=2', '--mechanism=banded', '--num_bands=2'),
  ],
  ids=' '.join,
)
def test_every_sampling_spends_planned_epsilon(flags, tmp_path):
  keys = {each.partition('=')[0] for each in flags}
  clients = [each for each in CLIENTS if each.partition('=')[0] not in keys]
  simulations.run(tmp_path / 'run', *clients, *flags, *SHARED)
  planned = simulations.reported(*clients, *flags, *SHARED)
  spent = simulations.read(tmp_path / 'run', 'report')
  assert spent['guarantee']['epsilon'] == pytest.approx(
    planned['guarantee']['epsilon'], rel=1e-9
  )
  for name in ('noise_multiplier', 'effective_noise_multiplier', 'strategy_checksum'):
    assert spent['mechanism'][name] == planned['mechanism'][name]

"""The flags of mechanism, participation and target, read as programs read them.

Claims:

* Two of noise, target and length give the third; if all are given they are checked.
* Every schema, mechanism and adjacency can be asked for.
* What is missing or does not fit together is refused with what to do.
"""

import dp_accounting
import pytest
from absl import flags as absl_flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program

TREE = ('--mechanism=tree', '--target_delta=1e-6')
GAUSSIAN = ('--mechanism=gaussian', '--target_delta=1e-6')


def _plan(*arguments, limits=None):
  values = absl_flags.FlagValues()
  flags_lib.define(values)
  values(['program', *arguments])
  return flags_lib.planned(values, limits)


def _spent(plan):
  mechanism = plan.mechanism
  return accountants.epsilon(mechanism.event, plan.delta, relation=mechanism.relation)


def test_noise_is_found():
  plan = _plan(*TREE, '--num_rounds=50', '--min_separation=9', '--target_epsilon=3')
  assert plan.found == 'noise_multiplier'
  assert 3 * (1 - 1e-9) < _spent(plan) <= 3


def test_rounds_are_found():
  plan = _plan(*GAUSSIAN, '--noise_multiplier=9', '--target_epsilon=3')
  assert plan.found == 'num_rounds'
  found = plan.mechanism.participation.num_rounds
  assert _spent(plan) <= 3
  more = _plan(*GAUSSIAN, '--noise_multiplier=9', f'--num_rounds={found + 1}')
  assert _spent(more) > 3


def test_participations_are_found():
  arguments = (*TREE, '--num_rounds=60', '--min_separation=4', '--noise_multiplier=9')
  plan = _plan(*arguments, '--target_epsilon=4', '--find=max_participations')
  assert plan.found == 'max_participations'
  found = plan.mechanism.participation.max_participations
  assert found == 4
  assert _spent(plan) <= 4
  more = _plan(*arguments, f'--max_participations={found + 1}')
  assert _spent(more) > 4


def test_all_three_are_checked_against_each_other():
  arguments = (*TREE, '--num_rounds=50', '--min_separation=9', '--noise_multiplier=9')
  spent = _spent(_plan(*arguments))
  kept = _plan(*arguments, f'--target_epsilon={spent + 1e-9!r}')
  assert kept.found is None
  with pytest.raises(program.CheckFailed, match='noise multiplier 9 spends epsilon'):
    _plan(*arguments, f'--target_epsilon={spent - 1e-6!r}')


def test_limits_may_come_from_elsewhere():
  limits = strategies.Participation(40, 7, 3)
  plan = _plan(*TREE, '--target_epsilon=2', limits=limits)
  assert plan.mechanism.participation == limits
  with pytest.raises(ValueError, match='--num_rounds does not go with a round log'):
    _plan(*TREE, '--target_epsilon=2', '--num_rounds=40', limits=limits)
  with pytest.raises(ValueError, match='--sampling does not go with a round log'):
    _plan(*TREE, '--target_epsilon=2', '--sampling=poisson', limits=limits)


@pytest.mark.parametrize(
  'arguments, schema',
  [
    ((), strategies.Participation(20)),
    (('--min_separation=5',), strategies.Participation(20, 5)),
    (('--rounds_between=4',), strategies.Participation(20, 5)),
    (('--max_participations=1',), strategies.Participation(20, 1, 1)),
    (
      ('--min_separation=5', '--fixed_epoch'),
      strategies.Participation(20, 5, fixed_epoch=True),
    ),
    (
      ('--sampling=poisson', '--sampling_probability=0.1'),
      schemas.PoissonSampling(20, 0.1),
    ),
    (
      ('--sampling=poisson', '--population=200', '--cohort=7', '--num_groups=4'),
      schemas.PoissonSampling(20, 7 / 50, 4),
    ),
    (
      ('--sampling=fixed_size', '--population=200', '--cohort=7'),
      schemas.FixedSizeSampling(20, 200, 7),
    ),
  ],
)
def test_every_schema_can_be_asked_for(arguments, schema):
  plan = _plan(*GAUSSIAN, '--num_rounds=20', '--noise_multiplier=2', *arguments)
  assert plan.mechanism.participation == schema
  assert plan.mechanism.relation == schemas.relations(schema)[0]


@pytest.mark.parametrize(
  'arguments, kind',
  [
    (('--mechanism=banded', '--num_bands=3'), 'banded'),
    (('--mechanism=toeplitz', '--num_bands=3'), 'banded_toeplitz'),
    (('--mechanism=blt', '--num_buffers=1'), 'blt'),
    (('--mechanism=banded_inverse', '--num_bands=3'), 'banded_inverse'),
    (('--mechanism=tree', '--restart_every=10'), 'binary_tree'),
    (('--mechanism=windowed_blt', '--num_decays=1'), 'windowed_blt'),
    (('--mechanism=tailed_blt', '--num_decays=1'), 'tailed_blt'),
    (('--mechanism=epoch_banded', '--num_bands=3'), 'banded'),
    (('--mechanism=epoch_toeplitz', '--num_bands=3'), 'epoch_toeplitz'),
    (('--mechanism=epoch_banded_inverse', '--num_bands=3'), 'epoch_banded_inverse'),
    (('--mechanism=epoch_windowed_blt', '--num_decays=1'), 'epoch_windowed_blt'),
  ],
)
def test_every_mechanism_has_its_options(arguments, kind):
  plan = _plan(
    '--target_delta=1e-6',
    '--num_rounds=20',
    '--min_separation=5',
    '--target_epsilon=2',
    *arguments,
  )
  assert plan.mechanism.strategy.kind == kind
  assert _spent(plan) <= 2


def test_a_strategy_can_come_from_a_file(tmp_path):
  strategy = strategies.BandedToeplitz(20, (0.8, 0.6))
  strategy.save(tmp_path / 'strategy.json')
  arguments = ('--target_delta=1e-6', f'--strategy_file={tmp_path}/strategy.json')
  plan = _plan(*arguments, '--num_rounds=20', '--noise_multiplier=2')
  assert plan.mechanism.strategy == strategy
  with pytest.raises(ValueError, match='a strategy is for a number of rounds'):
    _plan(*arguments, '--noise_multiplier=2', '--target_epsilon=5')
  with pytest.raises(ValueError, match='--strategy_file cannot be read'):
    _plan(
      '--target_delta=1e-6',
      '--strategy_file=/nowhere.json',
      '--num_rounds=2',
      '--noise_multiplier=1',
    )


def test_adjacency_can_be_chosen_where_it_is_valid():
  arguments = (*TREE, '--num_rounds=20', '--noise_multiplier=4')
  zero_out = _plan(*arguments).mechanism
  replace = _plan(*arguments, '--adjacency=replace_one').mechanism
  assert replace.relation is dp_accounting.NeighboringRelation.REPLACE_ONE
  assert replace.sensitivity == 2 * zero_out.sensitivity
  with pytest.raises(ValueError, match='not valid for adjacency add_or_remove'):
    _plan(*arguments, '--adjacency=add_or_remove')


def test_a_looser_accountant_asks_for_more_noise():
  arguments = (*TREE, '--num_rounds=20', '--target_epsilon=2')
  exact = _plan(*arguments).mechanism.noise_multiplier
  for name in ('rdp', 'zcdp'):
    looser = _plan(*arguments, f'--accountant={name}').mechanism.noise_multiplier
    assert looser > 1.01 * exact


def test_rounds_are_found_for_more_bands_than_rounds_tried():
  plan = _plan(
    '--mechanism=banded',
    '--num_bands=8',
    '--min_separation=8',
    '--noise_multiplier=5',
    '--target_epsilon=3',
    '--target_delta=1e-6',
  )
  assert plan.mechanism.strategy.num_bands == 8
  assert _spent(plan) <= 3


@pytest.mark.parametrize('name', ['windowed_blt', 'tailed_blt', 'epoch_windowed_blt'])
def test_rounds_are_found_for_windows_that_are_longer_than_rounds_tried(name):
  plan = _plan(
    f'--mechanism={name}',
    '--min_separation=8',
    '--noise_multiplier=5',
    '--target_epsilon=3',
    '--target_delta=1e-6',
  )
  assert plan.mechanism.strategy.window == 8
  assert _spent(plan) <= 3


@pytest.mark.parametrize('target', ['nan', 'inf', '-1', '0'])
def test_a_target_that_is_none_is_refused(target):
  arguments = (*TREE, '--num_rounds=5', '--noise_multiplier=1')
  with pytest.raises(ValueError, match='--target_epsilon must be') as error:
    _plan(*arguments, f'--target_epsilon={target}')
  assert not isinstance(error.value, program.CheckFailed)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('--mechanism=tree',), '--target_delta is missing'),
    (('--target_delta=1e-6',), '--mechanism is missing'),
    ((*TREE, '--strategy_file=x.json'), 'but not both'),
    (TREE, 'missing: --noise_multiplier, --target_epsilon, --num_rounds'),
    ((*TREE, '--num_rounds=5'), 'missing: --noise_multiplier, --target_epsilon'),
    (
      (*TREE, '--num_rounds=5', '--find=max_participations', '--noise_multiplier=1'),
      'needs --noise_multiplier, --target_epsilon and --num_rounds; missing: --target',
    ),
    (
      (*TREE, '--num_rounds=5', '--find=max_participations', '--noise_multiplier=1')
      + ('--target_epsilon=1', '--max_participations=3'),
      'is what --find looks for',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1', '--min_separation=2')
      + ('--rounds_between=1',),
      'min_separation = rounds_between \\+ 1',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1', '--min_separation=0'),
      'must be at least 1',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1', '--num_bands=2'),
      'num_bands=2 is for banded, toeplitz, banded_inverse, .*, not for tree',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1', '--cohort=2'),
      '--cohort needs --sampling=poisson or fixed_size',
    ),
    (
      (*GAUSSIAN, '--num_rounds=5', '--noise_multiplier=1', '--sampling=poisson'),
      'needs --sampling_probability, or --population and --cohort',
    ),
    (
      (*GAUSSIAN, '--num_rounds=5', '--noise_multiplier=1', '--sampling=fixed_size')
      + ('--cohort=3',),
      '--population is missing',
    ),
    (
      (*GAUSSIAN, '--num_rounds=5', '--noise_multiplier=1', '--sampling=fixed_size')
      + ('--population=9', '--cohort=2.5'),
      '--cohort must be a whole number',
    ),
    (
      (*GAUSSIAN, '--num_rounds=5', '--noise_multiplier=1', '--sampling=poisson')
      + ('--sampling_probability=0.5', '--min_separation=3'),
      '--min_separation does not go with --sampling=poisson',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1', '--sampling=poisson')
      + ('--sampling_probability=0.5',),
      'rounds of a client do not share noise',
    ),
    (
      (*GAUSSIAN, '--max_participations=1', '--noise_multiplier=5')
      + ('--target_epsilon=8',),
      'more may; they are not looked for',
    ),
    (
      (*GAUSSIAN, '--num_rounds=5', '--noise_multiplier=1', '--sampling=fixed_size')
      + ('--population=9', '--cohort=inf'),
      '--cohort must be a whole number',
    ),
    (
      (*TREE, '--noise_multiplier=0.1', '--target_epsilon=1'),
      'even one spends epsilon',
    ),
    (
      (*TREE, '--num_rounds=5', '--noise_multiplier=1')
      + ('--clipped_count_stddev=0.5',),
      'must be more than 0.5, half of noise_multiplier',
    ),
  ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(arguments, message):
  with pytest.raises(ValueError, match=message):
    _plan(*arguments)


INTEGERS = ('--mechanism=skellam', '--min_clients=20', '--dimension=100')


def test_who_makes_the_noise_can_be_said_and_its_numbers_are_found():
  target = ('--target_delta=1e-5', '--target_epsilon=4', '--num_rounds=20')
  plan = _plan(*target, *INTEGERS, '--min_separation=5')
  assert plan.mechanism.noise_site == 'clients' and plan.found == 'noise_multiplier'
  assert set(dict(plan.mechanism.options)) == {'min_clients', 'dimension', 'bits'}
  assert 3.9 < _spent(plan) <= 4
  for site, numbers in (('clients', ('--min_clients=8',)), ('local', ())):
    found = _plan(*target, *GAUSSIAN[:1], f'--noise_site={site}', *numbers)
    assert found.mechanism.noise_site == site
    assert _spent(found) == pytest.approx(4, rel=1e-9)


def test_rounds_and_participations_of_integer_noise_are_found():
  noise = (*INTEGERS, '--noise_multiplier=8', '--bits=18', '--target_delta=1e-5')
  noise = (*noise, '--target_epsilon=2')
  plan = _plan(*noise, '--min_separation=5')
  rounds = plan.mechanism.participation.num_rounds
  assert plan.found == 'num_rounds' and _spent(plan) <= 2
  without = [each for each in noise if not each.startswith('--target_epsilon')]
  more = _plan(*without, '--min_separation=5', f'--num_rounds={rounds + 1}')
  assert _spent(more) > 2
  plan = _plan(*noise, '--num_rounds=50', '--find=max_participations')
  assert plan.found == 'max_participations' and _spent(plan) <= 2


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--noise_site=local_approximate',), 'has no guarantee that could be stated'),
    (('--noise_site=clients',), '^--min_clients is missing, which gaussian'),
    (('--bits=4',), '^--bits=4 is for skellam or discrete_gaussian'),
    (('--mechanism=tree', '--noise_site=local'), 'Take the mechanism gaussian'),
    (
      ('--noise_site=local', '--sampling=poisson', '--sampling_probability=0.1'),
      '^--noise_site=local does not go with sampling',
    ),
    (
      ('--noise_site=local', '--clipped_count_stddev=40'),
      '^--clipped_count_stddev=40 does not go with --noise_site=local',
    ),
    (
      (*INTEGERS, '--clipped_count_stddev=3'),
      '^--clipped_count_stddev=3.0 is for Gaussian noise',
    ),
  ],
)
def test_sites_without_an_analysis_are_refused_as_the_flags_are_spelled(
  arguments, message
):
  target = ('--num_rounds=5', '--target_epsilon=4')
  with pytest.raises(ValueError, match=message):
    _plan(*GAUSSIAN, *target, *arguments)

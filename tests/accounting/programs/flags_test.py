"""Tests of the flags of mechanism, participation and target."""

import dp_accounting
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.strategies import registry

TREE = ('--mechanism=tree', '--target_delta=1e-6')
GAUSSIAN = ('--mechanism=gaussian', '--target_delta=1e-6')
_FIVE_ROUNDS = ('--num_rounds=5', '--noise_multiplier=1')
_COHORT = ('--num_clients=200', '--clients_per_round=7')


def _plan(*arguments, limits=None):
  last = {each.split('=')[0]: each for each in arguments}  # The last one counts.
  values = program.values_of(flags_lib.groups(), list(last.values()))
  return flags_lib.planned(values, limits)


def _spent(plan):
  mechanism = plan.mechanism
  return accountants.epsilon(mechanism.event, plan.delta, relation=mechanism.relation)


def test_planned_finds_noise_multiplier_for_target():
  plan = _plan(*TREE, '--num_rounds=50', '--min_separation=9', '--target_epsilon=3')
  assert plan.found == 'noise_multiplier'
  assert 3 * (1 - 1e-9) < _spent(plan) <= 3


def test_planned_finds_max_participations_for_target():
  arguments = (*TREE, '--num_rounds=60', '--min_separation=4', '--noise_multiplier=9')
  plan = _plan(*arguments, '--target_epsilon=4', '--find=max_participations')
  assert plan.found == 'max_participations'
  max_participations = plan.mechanism.participation.max_participations
  assert max_participations == 4
  assert _spent(plan) <= 4
  more = _plan(*arguments, f'--max_participations={max_participations + 1}')
  assert _spent(more) > 4


def test_rounds_noise_and_target_are_checked_against_each_other():
  arguments = (*TREE, '--num_rounds=50', '--min_separation=9', '--noise_multiplier=9')
  spent = _spent(_plan(*arguments))
  kept = _plan(*arguments, f'--target_epsilon={spent + 1e-9!r}')
  assert kept.found is None
  with pytest.raises(program.CheckFailed, match='the mechanism spends epsilon'):
    _plan(*arguments, f'--target_epsilon={spent - 1e-6!r}')


def test_limits_may_be_passed_to_planned():
  limits = strategies.Participation(40, 7, 3)
  plan = _plan(*TREE, '--noise_multiplier=9', limits=limits)
  assert plan.mechanism.participation == limits
  longer = _plan(*TREE, '--noise_multiplier=9', '--num_rounds=60', limits=limits)
  # 20 more rounds have room for three more participations.
  assert longer.mechanism.participation == strategies.Participation(60, 7, 6)
  with pytest.raises(ValueError, match='--sampling does not go .* drawn in secret'):
    _plan(*TREE, '--noise_multiplier=9', '--sampling=poisson', limits=limits)


@pytest.mark.parametrize(
  'arguments, schema',
  [
    ((), strategies.Participation(20)),
    (('--rounds_between=4',), strategies.Participation(20, 5)),
    (
      ('--min_separation=5', '--fixed_epoch'),
      strategies.Participation(20, 5, fixed_epoch=True),
    ),
    (
      ('--sampling=poisson', *_COHORT, '--num_groups=4'),
      sampling.PoissonSampling(20, 7 / 50, 4),
    ),
    (('--sampling=fixed_size', *_COHORT), sampling.FixedSizeSampling(20, 200, 7)),
  ],
)
def test_flags_select_participation_scheme(arguments, schema):
  plan = _plan(*GAUSSIAN, '--num_rounds=20', '--noise_multiplier=2', *arguments)
  assert plan.mechanism.participation == schema
  assert plan.mechanism.relation == sampling.check_relation(schema)


@pytest.mark.parametrize(
  'arguments, kind',
  [
    (('--mechanism=banded', '--num_bands=3'), 'banded'),
    (('--mechanism=blt', '--num_buffers=1'), 'blt'),
    (('--mechanism=tree', '--restart_every=10'), 'binary_tree'),
    (('--mechanism=epoch_windowed_blt', '--num_decays=1'), 'epoch_windowed_blt'),
  ],
)
def test_flags_set_options_of_mechanisms(arguments, kind):
  limits = ('--num_rounds=20', '--min_separation=5')
  plan = _plan(*limits, '--target_delta=1e-6', '--target_epsilon=2', *arguments)
  assert plan.mechanism.strategy.kind == kind
  name, value = arguments[-1].lstrip('-').split('=')
  assert registry.options_of(plan.mechanism.strategy)[name] == int(value)
  assert _spent(plan) <= 2


def test_strategy_file_flag_reads_the_strategy(tmp_path):
  strategy = strategies.BandedToeplitz(20, (0.8, 0.6))
  strategy.save(tmp_path / 'strategy.json')
  arguments = ('--target_delta=1e-6', f'--strategy_file={tmp_path}/strategy.json')
  plan = _plan(*arguments, '--num_rounds=20', '--noise_multiplier=2')
  assert plan.mechanism.strategy == strategy
  with pytest.raises(ValueError, match='a strategy is for a number of rounds'):
    _plan(*arguments, '--noise_multiplier=2', '--target_epsilon=5')
  with pytest.raises(FileNotFoundError, match='/nowhere.json'):
    _plan(*arguments[:1], '--strategy_file=/nowhere.json', *_FIVE_ROUNDS)


def test_adjacency_flag_is_refused_where_it_is_invalid():
  arguments = (*TREE, '--num_rounds=20', '--noise_multiplier=4')
  zero_out = _plan(*arguments).mechanism
  replace = _plan(*arguments, '--adjacency=replace_one').mechanism
  assert replace.relation is dp_accounting.NeighboringRelation.REPLACE_ONE
  assert replace.sensitivity == 2 * zero_out.sensitivity
  with pytest.raises(ValueError, match='sampling=none is not valid for adj'):
    _plan(*arguments, '--adjacency=add_or_remove')


@pytest.mark.parametrize(
  'mechanism',
  [
    ('--mechanism=gaussian',),
    ('--mechanism=banded', '--min_separation=4'),
    ('--mechanism=banded', '--min_separation=4', '--num_bands=3'),
  ],
)
def test_found_num_rounds_is_the_most_that_keeps_the_target(mechanism):
  run = (*mechanism, '--noise_multiplier=7', '--target_delta=1e-6')
  arguments = (*run, '--target_epsilon=2')
  found = _plan(*arguments)
  assert found.found == 'num_rounds' and _spent(found) <= 2
  num_rounds = found.mechanism.participation.num_rounds
  plan = _plan(*arguments, f'--num_rounds={num_rounds}')
  assert plan.epsilon_of(plan.mechanism.event) <= 2
  with pytest.raises(program.CheckFailed):
    _plan(*arguments, f'--num_rounds={num_rounds + 1}')
  assert _spent(_plan(*run, f'--num_rounds={num_rounds + 1}')) > 2


INTEGERS = ('--mechanism=skellam', '--min_clients=20', '--dimension=100')


def test_noise_site_flags_select_the_site_and_find_noise():
  target = ('--target_delta=1e-5', '--target_epsilon=4', '--num_rounds=20')
  plan = _plan(*target, *INTEGERS, '--min_separation=5')
  assert plan.mechanism.noise_site == 'clients' and plan.found == 'noise_multiplier'
  assert set(dict(plan.mechanism.options)) == {'min_clients', 'dimension', 'bits'}
  assert 3.9 < _spent(plan) <= 4
  for site, numbers in (('clients', ('--min_clients=8',)), ('local', ())):
    site_plan = _plan(*target, *GAUSSIAN[:1], f'--noise_site={site}', *numbers)
    assert site_plan.mechanism.noise_site == site
    assert _spent(site_plan) == pytest.approx(4, rel=1e-9)


_GAUSSIAN_RUN = (*GAUSSIAN, '--num_rounds=60', '--noise_multiplier=3')
_BANDED_RUN = ('--mechanism=banded', *_GAUSSIAN_RUN[1:], '--num_bands=4')
_B_MIN_SEP = ('--sampling=b_min_sep', '--min_separation=5')
_TEN = ('--num_clients=10', '--clients_per_round=20')
_SEARCH = ('--target_epsilon=8', '--target_delta=1e-8')
_RATE = ('--sampling_probability=0.1',)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--mechanism=tree',), '--target_delta is missing'),
    (TREE, 'give two of --noise_multiplier, --target_epsilon'),
    (
      (*TREE, *_FIVE_ROUNDS, '--find=max_participations', '--target_epsilon=1')
      + ('--max_participations=3',),
      'which is what it looks for',
    ),
    *(
      (
        (*TREE, *_FIVE_ROUNDS, '--find=max_participations', '--target_epsilon=1', flag),
        f"--sampling=none takes .*'{flag.split('=')[0][2:]}'",
      )
      for flag in ('--sampling_probability=0.01', '--num_clients=10', '--num_groups=2')
    ),
    (
      (*TREE, *_FIVE_ROUNDS, '--min_separation=2', '--rounds_between=1'),
      'is --rounds_between plus 1',
    ),
    (
      (*TREE, *_FIVE_ROUNDS, '--num_bands=2'),
      'num_bands=2 is for banded, toeplitz, banded_inverse, .*, not for tree',
    ),
    (
      (*GAUSSIAN, *_FIVE_ROUNDS, '--sampling=fixed_size', '--clients_per_round=3'),
      "--sampling=fixed_size takes .*missing a required argument: 'num_clients'",
    ),
    (
      (*GAUSSIAN, *_FIVE_ROUNDS, '--sampling=poisson', '--min_separation=3'),
      '--sampling=poisson takes --sampling_probability',
    ),
    (
      (*GAUSSIAN, '--max_participations=1', '--noise_multiplier=5')
      + ('--target_epsilon=8',),
      'rounds keep the target, or more',
    ),
    # Searches for the number of rounds, which once took more than 400 s.
    ((*GAUSSIAN, '--noise_multiplier=100000', *_SEARCH), '10000000 rounds keep'),
    (
      (
        '--mechanism=banded',
        '--min_separation=50',
        '--noise_multiplier=1000',
        *_SEARCH,
      ),
      '16384 rounds keep',
    ),
    # Rounds of a client would share noise.
    ((*_BANDED_RUN, '--sampling=poisson', *_RATE), 'num_bands=4 .* num_groups=4'),
    (('--mechanism=tree', *_GAUSSIAN_RUN[1:], *_B_MIN_SEP, *_RATE), 'share noise; the'),
    # Numbers out of range.
    (
      (*_BANDED_RUN, *_B_MIN_SEP, '--sampling_probability=1.5'),
      'sampling_probability .* at most 1',
    ),
    (
      (*_GAUSSIAN_RUN, '--sampling=truncated_poisson', '--num_clients=100')
      + ('--clients_per_round=20',),
      "truncated_poisson takes .*missing a required argument: 'max_clients_per_round'",
    ),
    # Flags that do not go together, or are missing.
    (
      (*_GAUSSIAN_RUN, *_B_MIN_SEP, *_RATE, '--adjacency=replace_one'),
      'sampling=b_min_sep is not valid for (--)?adjacency=replace_one',
    ),
    (
      (*_GAUSSIAN_RUN, '--sampling=b_min_sep', *_RATE),
      "--sampling=b_min_sep takes .*missing a required argument: 'min_separation'",
    ),
    (
      (*_GAUSSIAN_RUN, '--sampling=balls_in_bins', '--cycle_length=9', *_TEN),
      '--sampling=balls_in_bins takes --cycle_length, or --num_clients',
    ),
  ],
)
def test_refused_values_are_named_by_their_flags(arguments, message):
  with pytest.raises(ValueError, match=message):
    _plan(*arguments)

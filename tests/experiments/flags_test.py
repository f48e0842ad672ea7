"""Flags of simulations: the mechanism, sampling and training that they choose."""

import math
import pathlib
import re
import shlex

import pytest
from absl import flags as absl_flags

from experiments import settings
from experiments.options import data as data_options
from experiments.options import optimization as optimization_options
from experiments.options import privacy as privacy_options
from experiments.options import run as run_options
from tests.experiments import simulations
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.strategies import registry

TINY = ('--num_clients=24', '--clients_per_round=4', '--num_rounds=12')
LIMITS = ('--min_separation=3', '--max_participations=3')
CYCLIC = ('--sampling=poisson', '--num_groups=3')
# Flags for each way to draw clients, and further flags that only `report` needs.
_COHORT = ('--num_clients=24', '--clients_per_round=4')
SAMPLINGS = {
  **{
    name: ((f'--sampling={name}',), _COHORT)
    for name in ('poisson', 'fixed_size', 'balls_in_bins', 'random_allocation')
  },
  'poisson by its probability': (
    ('--sampling=poisson', '--sampling_probability=0.25'),
    (),
  ),
  'cyclic poisson': (CYCLIC, _COHORT),
  'truncated_poisson': (
    ('--sampling=truncated_poisson', '--max_clients_per_round=6'),
    _COHORT,
  ),
  'truncated_poisson by its probability': (
    ('--sampling=truncated_poisson', '--max_clients_per_round=8')
    + ('--sampling_probability=0.25',),
    _COHORT[:1],
  ),
  'b_min_sep': (('--sampling=b_min_sep', '--min_separation=3'), _COHORT),
}


DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / 'docs' / 'experiments.md'


def _values(*arguments):
  return program.values_of(settings.groups(), arguments)


_settings = simulations.settings_of


def _tiny(*arguments):
  names = [each.split('=')[0] for each in arguments]
  return _settings(*(e for e in TINY if e.split('=')[0] not in names), *arguments)


def _planned(*arguments):
  """Returns what `tff-dp-report` plans for flags."""
  return flags_lib.planned(program.values_of(flags_lib.groups(), arguments))


TARGET = ('--target_epsilon=5', '--target_delta=1e-4')


@pytest.mark.few(4)
@pytest.mark.parametrize('name', registry.KINDS)
def test_every_mechanism_equals_the_one_that_report_plans(name):
  flags = (f'--mechanism={name}', *LIMITS, *TARGET)
  chosen = _tiny(*flags)
  assert chosen.privacy.mechanism == _planned('--num_rounds=12', *flags).mechanism
  assert chosen.privacy.mechanism.epsilon(1e-4) == pytest.approx(5, rel=1e-9)
  assert chosen.participation.schedule(24).schema == chosen.participation.schema
  assert chosen.name == f'digits-{name}'


@pytest.mark.parametrize('option', registry.options())
def test_every_option_reaches_its_mechanisms(option):
  for name in registry.options()[option]:
    flags = (f'--mechanism={name}', f'--{option}=2', '--noise_multiplier=2')
    chosen = _tiny(*flags, *LIMITS).privacy.mechanism
    assert dict(chosen.options) == {option: 2}
    assert registry.options_of(chosen.strategy)[option] <= 2


@pytest.mark.parametrize('name', SAMPLINGS)
def test_every_sampling_equals_the_one_that_report_plans(name):
  flags, report_flags = SAMPLINGS[name]
  tiny = TINY
  if any('probability' in each for each in flags):
    tiny = ('--num_clients=24', '--num_rounds=12')
  flags = (*flags, '--mechanism=gaussian', '--noise_multiplier=1.5')
  flags = (*flags, '--target_delta=1e-4')
  chosen = _settings(*tiny, *flags)
  planned = _planned('--num_rounds=12', *flags, *report_flags).mechanism
  assert chosen.privacy.mechanism == planned
  schedule = chosen.participation.schedule(24)
  assert schedule.schema == planned.participation
  expected = 6 if 'probability' in name else 4
  assert chosen.participation.clients_per_round == pytest.approx(expected)
  assert schedule.clients_per_round == pytest.approx(expected)
  # The task's default of min_separation is for limits; with sampling it is left out.
  assert chosen.flags['min_separation'] == (3 if name == 'b_min_sep' else None)


def test_default_cohort_size_fits_the_sampling_scheme():
  flags = ('--mechanism=gaussian', '--noise_multiplier=1.5', '--num_rounds=7')
  for name, cohort in (('random_allocation', 300 / 7), ('balls_in_bins', 30)):
    chosen = _settings(*flags, f'--sampling={name}')
    assert chosen.participation.clients_per_round == pytest.approx(cohort)
    assert chosen.flags['clients_per_round'] == pytest.approx(cohort)
  with pytest.raises(ValueError, match='does not fit --sampling=random_allocation'):
    _settings(*flags, '--sampling=random_allocation', '--clients_per_round=30')


def test_every_sampling_scheme_has_a_flag():
  tested = {flags[0] for flags, _ in SAMPLINGS.values()}
  sampled = {f'--sampling={k.flag}' for k in sampling.SCHEMES.values() if k.is_sampled}
  assert tested == sampled


def test_rounds_between_is_min_separation_minus_one():
  between = _tiny('--rounds_between=2', '--noise_multiplier=1')
  separation = _tiny('--min_separation=3', '--noise_multiplier=1')
  assert between.participation.schema == separation.participation.schema


def test_fixed_epoch_uses_shuffled_epochs():
  flags = ('--fixed_epoch', '--min_separation=6', '--noise_multiplier=1')
  assert _tiny(*flags).participation.schedule(24).name == 'shuffled_epochs'


def test_strategy_file_sets_strategy_and_its_path_is_not_recorded(tmp_path):
  strategy = strategies.BandedToeplitz.square_root(12, num_bands=3)
  for name in ('one.npz', 'other.json'):
    strategy.save(str(tmp_path / name))
  chosen = [
    _tiny(f'--strategy_file={tmp_path}/{name}', *LIMITS, *TARGET)
    for name in ('one.npz', 'other.json')
  ]
  mechanism = chosen[0].privacy.mechanism
  assert mechanism.strategy == strategy and mechanism.name == 'file'
  assert mechanism.epsilon(1e-4) == pytest.approx(5, rel=1e-9)
  assert chosen[0].flags == chosen[1].flags


def test_secret_noise_draws_clients_by_secret_seed():
  flags = ('--mechanism=gaussian', '--noise_multiplier=1.5', '--target_delta=1e-4')
  tiny = ('--num_clients=24', '--num_rounds=12', '--clients_per_round=4')
  sampled = (*tiny, *flags, '--sampling=poisson', '--secret_noise')
  chosen = [_settings(*sampled) for _ in range(2)]
  assert chosen[0].run.seed != chosen[1].run.seed
  assert min(each.run.seed for each in chosen) > 2**64
  assert chosen[0].flags['seed'] == chosen[0].run.seed
  with_seed = _settings(*sampled, '--seed=730214')
  assert with_seed.run.seed == 730214
  # A log may have the command, which leaves out the seed. The run directory has it.
  for each in (*chosen, with_seed):
    assert 'seed' not in each.command
  # With limits, the guarantee does not rest on random cohorts: the seed stays known.
  limited = _tiny(*flags, *LIMITS, '--secret_noise')
  assert limited.run.secret_noise and limited.run.seed == 1


@pytest.mark.parametrize(
  'schedule, last, middle',
  [
    ('constant', 0.5, 0.5),
    ('linear', 0.5 / 12, 0.25),
    ('cosine', 0.25 * (1 - math.cos(math.pi / 12)), 0.25),
    ('exponential', 0.5 * 0.01 ** (11 / 12), 0.05),
  ],
)
def test_client_learning_rate_schedules_match_documentation(schedule, last, middle):
  optimization = _tiny(
    f'--client_learning_rate_schedule={schedule}', '--client_learning_rate=0.5', *LIMITS
  ).optimization
  rate = optimization.client_training(12).learning_rate_fn
  if rate is None:
    assert schedule == 'constant'
    rate = lambda number: optimization.client_learning_rate  # noqa: E731
  assert rate(0) == 0.5
  assert rate(6) == pytest.approx(middle) and rate(11) == pytest.approx(last)


@pytest.mark.few(4)
@pytest.mark.parametrize('rates', ['constant', 'cooldown'])
@pytest.mark.parametrize('name', registry.KINDS)
def test_workload_server_lowers_error_of_adaptive_strategies(name, rates):
  flags = (f'--mechanism={name}', *LIMITS, '--noise_multiplier=1')
  server = (f'--server_learning_rate_schedule={rates}', '--server_momentum=0.8')
  workload = strategies.Workload(12, 0.8)
  if rates == 'cooldown':
    workload = strategies.Workload.cooldown(12, 0.8)
  plain = _tiny(*flags, *server).privacy.mechanism
  try:
    for_server = _tiny(*flags, *server, '--workload=server').privacy.mechanism
  except ValueError as e:
    # Strategies made of exponential decays accept no learning rates that change.
    assert rates == 'cooldown' and 'blt' in name
    assert f'--mechanism={name}' in str(e)
    return
  limits = for_server.limits

  def error(mechanism):
    return mechanism.strategy.rmse(limits, workload=workload)

  if registry.kind(name).adapts:
    assert error(for_server) < error(plain)
  else:
    assert for_server == plain


def test_mechanism_none_draws_the_same_cohorts():
  for flags in (
    LIMITS,
    ('--sampling=poisson',),
    ('--dropout_probability=0.5', *LIMITS),
  ):
    cohorts = []
    for mechanism in (
      ('--mechanism=gaussian', '--noise_multiplier=1'),
      ('--mechanism=none',),
    ):
      chosen = _tiny(*mechanism, *flags)
      schedule = chosen.participation.schedule(24)
      cohorts.append([schedule.cohort(number).tolist() for number in range(12)])
    assert cohorts[0] == cohorts[1]


# A value for each type of flag.
_OF_TYPE = {'int': '2', 'float': '2.5', 'string enum': None, 'string': 'x', 'bool': 1}
_OF_TYPE['multi string'] = 'x'


def test_mechanism_none_refuses_privacy_flags():
  values = _values()
  for name in privacy_options.privacy_flags():
    flag = values[name]
    value = _OF_TYPE[flag.flag_type()] or flag.parser.enum_values[0]
    value = '0.5' if name == 'target_delta' else value
    argument = f'--{name}' if flag.boolean else f'--{name}={value}'
    with pytest.raises(ValueError, match=f'--{name} does not go with --mechanism=none'):
      _settings('--mechanism=none', argument)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      ['--noise_multiplier=1', '--target_epsilon=2'],
      'exactly one of --noise_multiplier and a target',
    ),
    (['--mechanism=tree', '--num_bands=3'], '--num_bands=3 is for banded'),
    (['--min_separation=11'], '--num_clients of at least 330'),
    (
      ['--sampling=poisson', '--mechanism=banded', '--num_bands=4'],
      '--num_bands of at most 1, or --num_groups=4.',
    ),
    (
      ['--sampling=random_allocation', '--clients_per_round=19', '--num_clients=360']
      + ['--num_rounds=60', '--mechanism=gaussian'],
      'the next larger one is --clients_per_round=24.',
    ),
    (['--fixed_epoch', '--schedule=random_eligible'], 'shuffled_epochs does'),
    (
      ['--schedule_file=x', '--schedule=poisson'],
      '--schedule does not go with --schedule_file',
    ),
    (
      ['--dropout_probability=0.9', '--reporting_goal=30'],
      'round 0 would not reach --reporting_goal=30',
    ),
    (
      ['--sampling=poisson', '--dropout_probability=0.1', '--reporting_goal=2'],
      '--reporting_goal does not go with --sampling=poisson',
    ),
    (['--strategy_file=x', '--workload=server'], '--workload does not go with'),
    (['--audit_confidence=0.9'], '--audit_confidence is for --audit_canaries; leave'),
    (['--adjacency=replace_one'], '--adjacency=replace_one does not go with a run'),
    # Refused before a strategy is made for it.
    (['--adjacency=add_or_remove'], '--adjacency=add_or_remove does not go with a run'),
    (
      ['--server_optimizer=adam', '--server_momentum=0.5'],
      'does not go with --server_optimizer=adam',
    ),
    (
      ['--server_optimizer=yogi', '--workload=server'],
      'are linear in the rounds; not for',
    ),
  ],
)
def test_conflicting_flags_are_refused_by_name(arguments, message, tmp_path):
  error = simulations.refusal(*arguments, f'--run_dir={tmp_path}/run')
  # Arguments of Python have the names of the flags, without dashes.
  assert message.replace('--', '') in error.replace('--', '')
  assert not (tmp_path / 'run').exists()


def _documented():
  text = DOCUMENT.read_text(encoding='utf-8')
  section = text.split('## Mechanisms\n')[1].split('\n## ')[0]
  return re.findall(r'`tff-dp-simulate (--[^`]*)`', section)


@pytest.mark.few(6)
@pytest.mark.parametrize('arguments', _documented())
def test_documented_command_is_accepted(arguments):
  chosen = _settings(*arguments.split())
  is_private = f'--mechanism={privacy_options.NONE}' not in arguments
  # The target of NbAFL is for one example; it is no target of the run.
  stated = ('--nbafl', '--noise_multiplier')
  has_target = is_private and not any(flag in arguments for flag in stated)
  assert (chosen.privacy.target_epsilon == 8) == has_target


def test_documented_commands_cover_every_mechanism():
  text = ' '.join(_documented())
  for name in (*mechanism_lib.names(), privacy_options.NONE):
    assert f'--mechanism={name}' in text


@pytest.fixture
def saved(tmp_path):
  limits = strategies.Participation(7, min_separation=2)
  path = tmp_path / 'cohorts'
  sampling.RandomEligible(limits, 20, 5, seed=9).save(str(path))
  return path


def test_schedule_file_sets_rounds_and_limits(saved):
  chosen = _settings(
    '--num_clients=20', f'--schedule_file={saved}', '--noise_multiplier=1'
  )
  assert chosen.privacy.mechanism.limits == strategies.Participation(7, 2)
  schedule = chosen.participation.schedule(20)
  assert schedule.name == 'replay'
  assert (chosen.flags['num_rounds'], chosen.flags['clients_per_round']) == (7, 5)
  with pytest.raises(ValueError, match='limits and 20 clients'):
    _settings(f'--schedule_file={saved}')
  with pytest.raises(ValueError, match='--num_rounds does not go with'):
    _settings('--num_clients=20', f'--schedule_file={saved}', '--num_rounds=6')


def test_schedule_file_without_header_needs_flags_for_limits(saved):
  rounds = saved.parent / 'rounds'
  rounds.write_text(saved.read_text().split('\n', 1)[1])
  flags = ('--num_clients=20', f'--schedule_file={rounds}', '--noise_multiplier=1')
  with pytest.raises(ValueError, match='Flags say it as well: --num_rounds'):
    _settings(*flags)
  stated = ('--num_rounds=7', '--clients_per_round=5')
  chosen = _settings(*flags, *stated, '--min_separation=2')
  assert chosen.participation.schedule(20).schema == strategies.Participation(7, 2)
  with pytest.raises(ValueError, match='client 17 took part in round 0 .* at least 3'):
    _settings(*flags, *stated, '--min_separation=3')


def test_flags_that_may_differ_on_resume_are_not_recorded():
  chosen = _tiny('--noise_multiplier=1', *LIMITS)
  left_out = set(_values()) - set(chosen.flags)
  assert left_out == {*run_options.MAY_DIFFER, *data_options.MAY_DIFFER}
  assert left_out >= {'checkpoint_seconds', 'timeout_seconds', 'run_dir'}
  # Sums of packed clients are rounded differently.
  assert 'packed_simulation' in chosen.flags


def test_resume_command_has_the_given_flags(tmp_path):
  flagfile = tmp_path / 'flags'
  flagfile.write_text('--noise_multiplier=1\n')
  command = _tiny(
    f'--flagfile={flagfile}', '--fixed_epoch', '--min_separation=6', '--run_dir=a b'
  ).command
  start, *flags = command.split()
  assert command.startswith('tff-dp-simulate --')
  assert {'--noise_multiplier=1.0', '--fixed_epoch', '--num_rounds=12'} < set(flags)
  assert 'run_dir' not in command


def test_resume_command_has_values_with_line_breaks():
  given = ['--data=a\nb\u2028c', '--client_column=x\x0cy']
  given += ['--part=a: weights=0\n1', '--part=b: weights=*']
  assert shlex.split(settings._command(_values(*given)))[1:] == given


def test_simulations_have_all_flags_of_report():
  values, report_values = _values(), absl_flags.FlagValues()
  program.define(report_values, flags_lib.groups())
  assert set(flags_lib.all_names()) - set(values) == {'find'}
  for name in set(flags_lib.all_names()) & set(values):
    assert values[name].flag_type() == report_values[name].flag_type(), name


def test_all_tff_optimizers_can_be_chosen():
  import tensorflow as tf
  import tensorflow_federated as tff

  built = {name for name in dir(tff.learning.optimizers) if name.startswith('build_')}
  assert {kind.build for kind in optimization_options.KINDS.values()} - {None} == built
  for name, kind in optimization_options.KINDS.items():
    adaptivity = 0.25 if kind.is_adaptive else None
    optimizer = kind.make(0.5, 0.9 if kind.has_momentum else 0.0, adaptivity)
    weights = tf.constant([1.0, 2.0])
    state = optimizer.initialize(tf.TensorSpec([2]))
    _, after = optimizer.next(state, weights, tf.constant([1.0, 1.0]))
    assert (after.numpy() < weights.numpy()).all(), name
    if kind.is_adaptive:
      plain = kind.make(0.5)
      _, without = plain.next(plain.initialize(tf.TensorSpec([2])), weights, weights)
      assert (without.numpy() != after.numpy()).all(), name


@pytest.mark.parametrize('clipping', ['fixed', 'adaptive'])
def test_target_rho_has_noise_of_report_and_is_met(clipping):
  flags = ('--mechanism=tree', *LIMITS, '--target_rho=0.5', '--target_delta=1e-4')
  privacy = _tiny(*flags, f'--clipping={clipping}').privacy
  planned = _planned(*flags, '--num_rounds=12').mechanism
  assert privacy.mechanism.noise_multiplier == planned.noise_multiplier
  assert accountants.zcdp_rho(privacy.mechanism.event) <= 0.5
  assert privacy.mechanism.target.rho == 0.5 and privacy.target_epsilon is None

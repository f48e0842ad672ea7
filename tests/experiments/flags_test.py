"""All mechanisms and options of the package by flags."""

import math
import pathlib
import re

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
# Ways to draw clients, and what `report` has to be told of them besides the flags.
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
  given = [each.split('=')[0] for each in arguments]
  return _settings(*(e for e in TINY if e.split('=')[0] not in given), *arguments)


def _planned(*arguments):
  """What `report` makes of flags."""
  return flags_lib.planned(program.values_of(flags_lib.groups(), arguments))


TARGET = ('--target_epsilon=5', '--target_delta=1e-4')


@pytest.mark.few(4)
@pytest.mark.parametrize('name', registry.KINDS)
def test_every_kind_of_mechanism_is_the_one_that_report_plans(name):
  flags = (f'--mechanism={name}', *LIMITS, *TARGET)
  chosen = _tiny(*flags)
  assert chosen.privacy.mechanism == _planned('--num_rounds=12', *flags).mechanism
  assert chosen.privacy.mechanism.epsilon(1e-4) == pytest.approx(5, rel=1e-9)
  assert chosen.participation.schedule(24).schema == chosen.participation.schema
  assert chosen.name == f'digits-{name}'


@pytest.mark.parametrize('option', registry.options())
def test_every_option_reaches_the_mechanisms_that_have_it(option):
  for name in registry.options()[option]:
    flags = (f'--mechanism={name}', f'--{option}=2', '--noise_multiplier=2')
    chosen = _tiny(*flags, *LIMITS).privacy.mechanism
    assert dict(chosen.options) == {option: 2}
    assert registry.options_of(chosen.strategy)[option] <= 2


@pytest.mark.parametrize('name', SAMPLINGS)
def test_every_sampling_is_the_one_that_report_plans(name):
  flags, more = SAMPLINGS[name]
  tiny = TINY
  if any('probability' in each for each in flags):
    tiny = ('--num_clients=24', '--num_rounds=12')
  flags = (*flags, '--mechanism=gaussian', '--noise_multiplier=1.5')
  flags = (*flags, '--target_delta=1e-4')
  chosen = _settings(*tiny, *flags)
  planned = _planned('--num_rounds=12', *flags, *more).mechanism
  assert chosen.privacy.mechanism == planned
  schedule = chosen.participation.schedule(24)
  assert schedule.schema == planned.participation
  expected = 6 if 'probability' in name else 4
  assert chosen.participation.clients_per_round == pytest.approx(expected)
  assert schedule.clients_per_round == pytest.approx(expected)
  # The default of the task is for limits, and the record does not have it.
  assert chosen.flags['min_separation'] == (3 if name == 'b_min_sep' else None)


def test_the_default_cohort_fits_a_scheme_with_whole_rounds_of_a_client():
  flags = ('--mechanism=gaussian', '--noise_multiplier=1.5', '--num_rounds=7')
  for name, cohort in (('random_allocation', 300 / 7), ('balls_in_bins', 30)):
    chosen = _settings(*flags, f'--sampling={name}')
    assert chosen.participation.clients_per_round == pytest.approx(cohort)
    assert chosen.flags['clients_per_round'] == pytest.approx(cohort)
  with pytest.raises(ValueError, match='does not fit --sampling=random_allocation'):
    _settings(*flags, '--sampling=random_allocation', '--clients_per_round=30')


def test_every_kind_of_schema_has_its_flag():
  tried = {flags[0] for flags, _ in SAMPLINGS.values()}
  sampled = {f'--sampling={k.flag}' for k in sampling.SCHEMES.values() if k.is_sampled}
  assert tried == sampled


def test_separations_of_both_conventions_are_the_same():
  one = _tiny('--rounds_between=2', '--noise_multiplier=1')
  other = _tiny('--min_separation=3', '--noise_multiplier=1')
  assert one.participation.schema == other.participation.schema


def test_fixed_epochs_are_shuffled_ones():
  flags = ('--fixed_epoch', '--min_separation=6', '--noise_multiplier=1')
  assert _tiny(*flags).participation.schedule(24).name == 'shuffled_epochs'


def test_a_strategy_comes_from_a_file_that_may_be_moved(tmp_path):
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


def test_clients_are_drawn_by_no_known_seed_where_noise_is_secret():
  flags = ('--mechanism=gaussian', '--noise_multiplier=1.5', '--target_delta=1e-4')
  tiny = ('--num_clients=24', '--num_rounds=12', '--clients_per_round=4')
  sampled = (*tiny, *flags, '--sampling=poisson', '--secret_noise')
  drawn = [_settings(*sampled) for _ in range(2)]
  assert drawn[0].run.seed != drawn[1].run.seed
  assert min(each.run.seed for each in drawn) > 2**64
  assert drawn[0].flags['seed'] == drawn[0].run.seed
  given = _settings(*sampled, '--seed=730214')
  assert given.run.seed == 730214
  # What a log may have does not tell it: the directory of the run does.
  for each in (*drawn, given):
    assert 'seed' not in each.command
  # Limits rest on no draw.
  kept = _tiny(*flags, *LIMITS, '--secret_noise')
  assert kept.run.secret_noise and kept.run.seed == 1


@pytest.mark.parametrize(
  'schedule, last, middle',
  [
    ('constant', 0.5, 0.5),
    ('linear', 0.5 / 12, 0.25),
    ('cosine', 0.25 * (1 - math.cos(math.pi / 12)), 0.25),
    ('exponential', 0.5 * 0.01 ** (11 / 12), 0.05),
  ],
)
def test_the_learning_rate_of_clients_falls_as_it_is_documented(schedule, last, middle):
  optimization = _tiny(
    f'--client_learning_rate_schedule={schedule}', '--client_learning_rate=0.5', *LIMITS
  ).optimization
  assert optimization.has_client_schedule == (schedule != 'constant')
  rate = optimization_options.client_learning_rate_fn(
    optimization.client_learning_rate_schedule, optimization.client_learning_rate, 12
  )
  assert rate(0) == 0.5
  assert rate(6) == pytest.approx(middle) and rate(11) == pytest.approx(last)


@pytest.mark.few(4)
@pytest.mark.parametrize('rates', ['constant', 'cooldown'])
@pytest.mark.parametrize('name', registry.KINDS)
def test_a_strategy_is_the_best_for_what_the_server_does(name, rates):
  flags = (f'--mechanism={name}', *LIMITS, '--noise_multiplier=1')
  server = (f'--server_learning_rate_schedule={rates}', '--server_momentum=0.8')
  workload = strategies.Workload(12, 0.8)
  if rates == 'cooldown':
    workload = strategies.Workload.cooldown(12, 0.8)
  plain = _tiny(*flags, *server).privacy.mechanism
  try:
    adapted = _tiny(*flags, *server, '--workload=server').privacy.mechanism
  except ValueError as e:
    # Those of the form of exponential decays take no rates that change.
    assert rates == 'cooldown' and f'--mechanism={name}' in str(e)
    return
  limits = adapted.limits

  def error(mechanism):
    return mechanism.strategy.rmse(limits, workload=workload)

  if registry.kind(name).adapts:
    assert error(adapted) < error(plain)
  else:
    assert adapted == plain


def test_training_without_privacy_asks_the_same_clients():
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


def test_training_without_privacy_refuses_flags_of_privacy():
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
      'the next larger one is --clients_per_round=24, which is --rounds_of_a_client=4.',
    ),
    (['--fixed_epoch', '--schedule=random_eligible'], 'shuffled_epochs does'),
    (['--schedule_file=x', '--schedule=poisson'], 'give one of the two'),
    (
      ['--dropout_probability=0.9', '--reporting_goal=30'],
      'round 0 would not reach --reporting_goal=30',
    ),
    (
      ['--sampling=poisson', '--dropout_probability=0.1', '--reporting_goal=2'],
      '--reporting_goal does not go with --sampling=poisson',
    ),
    (['--strategy_file=x', '--workload=server'], '--workload=server does not go with'),
    (['--adjacency=replace_one'], '--adjacency=replace_one does not go with a run'),
    (['--server_optimizer=adam', '--server_momentum=0.5'], 'is for --server_optimizer'),
    (['--server_optimizer=yogi', '--workload=server'], 'not linear in the rounds'),
  ],
)
def test_contradictions_are_refused_by_their_names(arguments, message, tmp_path):
  said = simulations.refusal(*arguments, f'--run_dir={tmp_path}/run')
  # Arguments are called like their flags.
  assert message.replace('--', '') in said.replace('--', '')
  assert not (tmp_path / 'run').exists()


def _documented():
  text = DOCUMENT.read_text(encoding='utf-8')
  section = text.split('## Mechanisms\n')[1].split('\n## ')[0]
  return re.findall(r'`tff-dp-simulate (--[^`]*)`', section)


@pytest.mark.few(6)
@pytest.mark.parametrize('arguments', _documented())
def test_a_documented_command_is_accepted(arguments):
  chosen = _settings(*arguments.split())
  is_private = f'--mechanism={privacy_options.NONE}' not in arguments
  # That of NbAFL is of an example, and no target of the run.
  stated = ('--nbafl', '--noise_multiplier')
  has_target = is_private and not any(flag in arguments for flag in stated)
  assert (chosen.privacy.target_epsilon == 8) == has_target


def test_documented_commands_have_every_mechanism():
  text = ' '.join(_documented())
  for name in (*mechanism_lib.names(), privacy_options.NONE):
    assert f'--mechanism={name}' in text


@pytest.fixture
def saved(tmp_path):
  limits = strategies.Participation(7, min_separation=2)
  path = tmp_path / 'cohorts'
  sampling.RandomEligible(limits, 20, 5, seed=9).save(str(path))
  return path


def test_cohorts_of_a_file_say_rounds_and_limits(saved):
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


def test_flags_say_what_cohorts_of_a_file_keep(saved):
  rounds = saved.parent / 'rounds'
  rounds.write_text(saved.read_text().split('\n', 1)[1])
  flags = ('--num_clients=20', f'--schedule_file={rounds}', '--noise_multiplier=1')
  with pytest.raises(ValueError, match='Flags say it as well: --num_rounds'):
    _settings(*flags)
  stated = ('--num_rounds=7', '--clients_per_round=5')
  chosen = _settings(*flags, *stated, '--min_separation=2')
  assert chosen.participation.schedule(20).schema == strategies.Participation(7, 2)
  with pytest.raises(ValueError, match='client .* round'):
    _settings(*flags, *stated, '--min_separation=3')


def test_what_may_differ_when_a_run_goes_on():
  chosen = _tiny('--noise_multiplier=1', *LIMITS)
  left_out = set(program.names_of(_values())) - set(chosen.flags)
  assert left_out == {*run_options.MAY_DIFFER, *data_options.MAY_DIFFER}
  assert left_out >= {'checkpoint_seconds', 'timeout_seconds', 'run_dir'}
  # Sums of packed clients are rounded otherwise.
  assert 'packed_simulation' in chosen.flags


def test_the_command_to_go_on_with_is_that_which_was_given(tmp_path):
  flagfile = tmp_path / 'flags'
  flagfile.write_text('--noise_multiplier=1\n')
  command = _tiny(
    f'--flagfile={flagfile}', '--fixed_epoch', '--min_separation=6', '--run_dir=a b'
  ).command
  start, *given = command.split()
  assert command.startswith('tff-dp-simulate --')
  assert {'--noise_multiplier=1.0', '--fixed_epoch', '--num_rounds=12'} < set(given)
  assert 'run_dir' not in command


def test_flags_of_simulations_are_those_of_report():
  ours, theirs = _values(), absl_flags.FlagValues()
  program.define(theirs, flags_lib.groups())
  assert set(flags_lib.all_names()) - set(ours) == {'find'}
  for name in set(flags_lib.all_names()) & set(ours):
    assert ours[name].flag_type() == theirs[name].flag_type(), name


def test_all_optimizers_of_tensorflow_federated_can_be_asked_for():
  import tensorflow as tf
  import tensorflow_federated as tff

  built = {name for name in dir(tff.learning.optimizers) if name.startswith('build_')}
  assert {kind.build for kind in optimization_options.KINDS.values()} - {None} == built
  for name, kind in optimization_options.KINDS.items():
    optimizer = kind.make(0.5, 0.9 if kind.has_momentum else 0.0, 0.25)
    weights = tf.constant([1.0, 2.0])
    state = optimizer.initialize(tf.TensorSpec([2]))
    _, after = optimizer.next(state, weights, tf.constant([1.0, 1.0]))
    assert (after.numpy() < weights.numpy()).all(), name
    if kind.adaptivity:
      plain = kind.make(0.5)
      _, other = plain.next(plain.initialize(tf.TensorSpec([2])), weights, weights)
      assert (other.numpy() != after.numpy()).all(), name


@pytest.mark.parametrize('clipping', ['fixed', 'adaptive'])
def test_a_target_in_zcdp_has_the_noise_of_a_report_and_is_kept(clipping):
  given = ('--mechanism=tree', *LIMITS, '--target_rho=0.5', '--target_delta=1e-4')
  privacy = _tiny(*given, f'--clipping={clipping}').privacy
  planned = _planned(*given, '--num_rounds=12').mechanism
  assert privacy.mechanism.noise_multiplier == planned.noise_multiplier
  assert accountants.zcdp_rho(privacy.mechanism.event) <= 0.5
  assert privacy.mechanism.target.rho == 0.5 and privacy.target_epsilon is None

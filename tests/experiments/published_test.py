"""Flag files of published experiments: README rows, figures, and training with them.

README's table repeats what the files say. The epsilon in a file is what the accountant
gives for its flags; the published one follows from the published method and noise.
"""

import dataclasses
import pathlib
import re

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant

from experiments import settings as settings_lib
from experiments import tasks
from experiments.options import optimization as optimization_options
from experiments.options import participation as participation_options
from experiments.options import privacy as privacy_options
from tests.experiments import cached_files
from tests.experiments import simulations
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import program

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'experiments' / 'published'
README = (FOLDER / 'README.md').read_text(encoding='utf-8')
_ALL = {path.stem: path for path in sorted(FOLDER.glob('*.flags'))}
DEPLOYED = {name: path for name, path in _ALL.items() if name.startswith('gboard_')}
FILES = {name: path for name, path in _ALL.items() if name not in DEPLOYED}
# Flags of a run of two rounds; only those that the file has are replaced.
_SMALL = {
  'num_rounds': '2',
  'clients_per_round': '2',
  'min_separation': '1',
  'max_participations': '2',
  'sampling_probability': '0.4',
  'evaluate_every': '1',
}
_NUM_CLIENTS = 6  # In the made-up data.
# Optimizing their strategies takes too long for a fast test.
_SLOW = ('bandmf_cifar10', 'mf_stackoverflow')
# Settings of google-research/federated, multi_epoch_dp_matrix_factorization/dp_ftrl/
# centralized/xm_experiment_definitions.py: noise over the sensitivity, and epsilon.
_CIFAR10 = ((0.3, 21.2), (0.4, 14.2), (0.5, 10.8), (0.75, 6.64), (1, 4.75), (2, 2.17))
_DP_SGD = (0.498, 0.559, 0.61, 0.715, 0.807, 1.16)
_WHOLE_ORDERS = tuple(range(2, 64))


def _comments(name):
  """Returns the comments of a flag file by the key before the colon, and the title."""
  lines = _ALL[name].read_text(encoding='utf-8').splitlines()
  comments = [line[1:].strip() for line in lines if line.startswith('#')]
  by_key = {}
  key = 'Title'
  for line in comments:
    begins = re.match(r'([A-Z][a-z]+(?: [a-z]+)?): (.*)', line)
    if begins:
      key, line = begins.groups()
    by_key[key] = f'{by_key.get(key, "")} {line}'.strip()
  return by_key


def _flags(name):
  lines = _ALL[name].read_text(encoding='utf-8').splitlines()
  flags = [line[2:].partition('=') for line in lines if line.startswith('--')]
  return {key: value for key, _, value in flags}


def _mechanism(name):
  """Returns the mechanism and delta of a flag file, without loading data."""
  values = program.values_of(settings_lib.groups(), [f'--flagfile={FILES[name]}'])
  for key, value in dataclasses.asdict(tasks.TASKS[values.task].defaults).items():
    values.set_default(key, value)
  participation = participation_options.from_flags(values)
  optimization = optimization_options.from_flags(values)
  privacy = privacy_options.from_flags(
    values, participation, optimization, lambda: pytest.fail('no noise asks for this')
  )
  return privacy.mechanism, privacy.delta


def _number(text, before, after=r'\b'):
  return float(re.search(f'{before}([0-9.e+-]*[0-9]){after}', text)[1])


def _readme_row(name):
  entry = _comments(name)
  published = entry['Published']
  if 'Published epsilon' in entry:
    published += f' Epsilon {entry["Published epsilon"]}'
  epsilon = entry['Epsilon']
  if 'Rho' in entry:
    epsilon = f'{epsilon}, rho {entry["Rho"]}'
  cells = (entry['Title'], entry['Source'], published, epsilon, entry['Differs'])
  return f'| [{name}]({name}.flags) | {" | ".join(cells)} |'


def _marked(name):
  return pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else [])


def test_readme_table_has_a_row_for_every_file():
  rows = [line for line in README.splitlines() if line.startswith('| [')]
  assert rows == [_readme_row(name) for name in (*FILES, *DEPLOYED)]


@pytest.mark.few(4)
@pytest.mark.parametrize('name', map(_marked, FILES))
def test_epsilon_in_file_matches_accountant(name):
  mechanism, delta = _mechanism(name)
  stated = _comments(name)['Epsilon']
  assert _number(stated, 'delta ') == delta
  epsilon = _number(stated, '^', ' at delta')
  assert epsilon == float(f'{mechanism.epsilon(delta):.6g}')


# The noise multiplier and the squared norm of columns as published, with rho and
# epsilon as they were printed there.
_GBOARD = {
  'gboard_es_es_mf': (1.411, 1 / 5, 0.1506840301548885, 3.4240074094281336),
  'gboard_es_us': (8.35, 1, 0.014342572340349278, 0.9935500950539097),
  'gboard_pt_br': (8.35, 1, 0.014342572340349278, 0.9935500950539097),
}


def _reported(name, *instead):
  return simulations.reported(f'--flagfile={DEPLOYED[name]}', *instead)


def _fast_flags(name):
  """Returns flags with the same privacy (columns of norm 1) that optimize no matrix."""
  if _flags(name)['mechanism'] == 'tree':
    return []
  flags = {**_flags(name), 'mechanism': 'gaussian'}
  del flags['num_bands']
  return [f'--{key}={value}' for key, value in flags.items()]


@pytest.mark.parametrize('name', DEPLOYED)
def test_rho_and_epsilon_in_deployment_file_match_report(name):
  flags = _fast_flags(name) or [f'--flagfile={DEPLOYED[name]}']
  actual = simulations.reported(*flags)['guarantee']
  stated = _comments(name)
  assert f'{actual["zcdp_rho"]:.6g}' == stated['Rho']
  assert f'{actual["epsilon"]:.6g} at delta {actual["delta"]:g}' == stated['Epsilon']


@pytest.mark.slow
@pytest.mark.parametrize('name', _GBOARD)
def test_optimized_matrix_of_deployment_has_rho_and_epsilon_of_file(name):
  report = _reported(name)
  assert report['mechanism']['num_bands'] == int(_flags(name)['num_bands'])
  comments = _comments(name)
  assert f'{report["guarantee"]["zcdp_rho"]:.6g}' == comments['Rho']
  assert report['guarantee']['epsilon'] == pytest.approx(
    _number(comments['Epsilon'], '^', ' at delta'), rel=1e-5
  )


@pytest.mark.parametrize('name', _GBOARD)
def test_gboard_matrix_rho_and_epsilon_match_published_figures(name):
  noise, column, rho, epsilon = _GBOARD[name]
  flags = _flags(name)
  participations = int(flags['max_participations'])
  sensitivity = np.sqrt(participations * column)
  assert (sensitivity / noise) ** 2 / 2 == pytest.approx(rho, rel=1e-12)
  accountant = dp_accounting.pld.PLDAccountant()
  accountant.compose(dp_accounting.GaussianDpEvent(noise / sensitivity))
  assert accountant.get_epsilon(1e-10) == pytest.approx(epsilon, rel=1e-6)
  published = _comments(name)['Published']
  assert _number(published, 'rho ', ';') == float(f'{rho:.5g}')
  assert _number(published, 'epsilon ', ' at delta') == float(f'{epsilon:.5g}')
  # In this package, columns of the matrix have norm 1.
  assert float(flags['noise_multiplier']) == pytest.approx(noise / np.sqrt(column))


def test_gboard_tree_counts_rounds_between_participations():
  report = _reported('gboard_es_es_tree')
  assert report['participation']['rounds_between'] == 313
  assert report['participation']['min_separation'] == 314
  assert report['mechanism']['sensitivity_squared'] == pytest.approx(79)
  # The published epsilon is by Renyi DP.
  assert f'{report["guarantee"]["epsilon_rdp"]:.2f}' == '8.90'
  assert 'epsilon 8.90 ' in _comments('gboard_es_es_tree')['Published']
  # If 313 were the difference, two rounds of a client could be closer by one.
  closer = _reported('gboard_es_es_tree', '--rounds_between=312')
  assert closer['participation']['min_separation'] == 313


@pytest.mark.parametrize(
  'name, participations', [('gboard_es_es_tree', 7), ('gboard_es_es_mf', 5)]
)
def test_deployment_file_states_possible_participations(name, participations):
  flags = _flags(name)
  between, rounds = int(flags['rounds_between']), int(flags['num_rounds'])
  limits = strategies.Participation.from_rounds_between(rounds, between)
  assert limits.possible_participations == participations
  words = {5: 'five', 7: 'seven'}[participations]
  assert f'leave room for {words} participations' in _comments(name)['Differs']


def _epsilon_by_renyi(event, delta, orders=None):
  accountant = rdp_privacy_accountant.RdpAccountant(orders)
  accountant.compose(event)
  return accountant.get_epsilon(delta)


@pytest.mark.parametrize('noise, published', _CIFAR10)
def test_renyi_dp_reproduces_published_multi_epoch_epsilon(noise, published):
  event = dp_accounting.GaussianDpEvent(noise)
  by_renyi = _epsilon_by_renyi(event, 1e-5, _WHOLE_ORDERS)
  assert float(f'{by_renyi:.3g}') == published
  limits = strategies.Participation(2000, 100, 20, fixed_epoch=True)
  # Any strategy of which columns have norm 1 and those of one client no common row.
  square_root = strategies.BandedToeplitz.square_root(2000, num_bands=100)
  mechanism = accounting.Mechanism(
    'file',
    limits,
    noise_multiplier=noise * square_root.sensitivity(limits),
    strategy=square_root,
  )
  assert 0.8 * published < mechanism.epsilon(1e-5) < published
  assert f'{published:g}' in _comments('bandmf_cifar10')['Published epsilon']


def test_bandmf_cifar10_noise_matches_published_epsilon():
  comments = _comments('bandmf_cifar10')
  (noise,) = (noise for noise, epsilon in _CIFAR10 if epsilon == 4.75)
  assert comments['Published epsilon'].startswith('4.75 at delta 1e-05')
  stated = float(_flags('bandmf_cifar10')['noise_multiplier'])
  assert stated == pytest.approx(noise * np.sqrt(20), rel=1e-12)


def test_dp_sgd_noise_gives_the_epsilons_of_comparison():
  sampled = dp_accounting.PoissonSampledDpEvent
  epsilons = [
    _epsilon_by_renyi(
      dp_accounting.SelfComposedDpEvent(
        sampled(0.01, dp_accounting.GaussianDpEvent(noise)), 2000
      ),
      1e-5,
    )
    for noise in _DP_SGD
  ]
  assert epsilons[0] == pytest.approx(20.8, abs=0.05)
  assert epsilons[1:] == pytest.approx([each for _, each in _CIFAR10[1:]], rel=5e-3)
  mechanism, delta = _mechanism('dp_sgd_cifar10')
  by_renyi = epsilons[_DP_SGD.index(mechanism.noise_multiplier)]
  assert 0.8 * by_renyi < mechanism.epsilon(delta) < by_renyi
  for noise in _DP_SGD:
    assert f'{noise:g}' in _comments('dp_sgd_cifar10')['Published']


@pytest.mark.slow
@pytest.mark.parametrize(
  'names, rounds, cohort, scale',
  [
    (('pfl_cifar10_iid', 'pfl_cifar10_noniid'), 3000, 1000, '20'),
    (('pfl_stackoverflow',), 2000, 5000, '12.5'),
  ],
)
def test_pfl_research_noise_is_reproduced(names, rounds, cohort, scale):
  (noise,) = {float(_flags(name)['noise_multiplier']) for name in names}
  # The same call as in pfl.privacy.PLDPrivacyAccountant.
  losses = privacy_loss_distribution.from_gaussian_mechanism(
    noise,
    sampling_prob=cohort / 1e6,
    value_discretization_interval=1e-4,
    use_connect_dots=True,
  )
  composed = losses.self_compose(rounds)
  assert composed.get_delta_for_epsilon(2.0) == pytest.approx(1e-6, rel=5e-3)
  scheme = sampling.PoissonSampling(rounds, sampling_probability=cohort / 1e6)
  mechanism = accounting.Mechanism('gaussian', scheme, noise_multiplier=noise)
  assert 1.999 < mechanism.epsilon(1e-6) <= 2
  for name in names:
    flags, stated = _flags(name), _comments(name)['Published epsilon']
    assert stated.startswith(f'2 at delta 1e-06, for {rounds:,} rounds of {cohort:,} ')
    assert flags['num_rounds'] == f'{rounds}'
    assert flags['simulated_cohort_scale'] == scale


@pytest.mark.parametrize(
  'rounds, noise, epsilon', [(1500, 0.53197, 11.93), (3000, 0.54703, 13.82)]
)
def test_readme_epsilon_of_pfl_research_banded_matrices(rounds, noise, epsilon):
  sampled = sampling.PoissonSampling(-(-rounds // 48), sampling_probability=0.001)
  pfl_mechanism = accounting.Mechanism('gaussian', sampled, noise)
  assert pfl_mechanism.epsilon(1e-6) == pytest.approx(2, abs=1e-3)
  cyclic = sampling.PoissonSampling(rounds, sampling_probability=0.048, num_groups=48)
  cyclic_mechanism = accounting.Mechanism('toeplitz', cyclic, noise)
  assert cyclic_mechanism.epsilon(1e-6) == pytest.approx(epsilon, abs=5e-3)
  assert f'{epsilon:g}' in README


@pytest.mark.parametrize('noise, epsilon', [(0.067, 1459.57), (0.268, 134.557)])
def test_readme_epsilon_of_plain_trees(noise, epsilon):
  limits = strategies.Participation(1600, 1600)
  plain = strategies.BinaryTree(1600, honaker=False)
  mechanism = accounting.Mechanism('file', limits, noise, strategy=plain)
  assert float(f'{mechanism.epsilon(1e-6):.6g}') == epsilon
  assert f'{epsilon:g}' in README and f'{noise:g}' in README


@pytest.fixture(scope='module')
def cache_dir(tmp_path_factory):
  """Returns a folder with few clients, in the format and shape of the real data."""
  folder = tmp_path_factory.mktemp('cache')
  rng = np.random.default_rng(7)

  def sentence():
    words = ' '.join(f'w{number}' for number in rng.integers(10_000, size=12))
    return cached_files.example(tokens=words.encode())

  path, splits = folder / 'stackoverflow.sqlite', ('train', 'test')
  cached_files.write_database(path, splits, sentence, _NUM_CLIENTS)
  counts = ''.join(f'w{number} {20_000 - number}\n' for number in range(10_000))
  cached_files.write_word_counts(folder, counts)
  arrays = {
    f'{kind}_{split}': made
    for split in ('train', 'test')
    for kind, made in (
      ('x', rng.integers(256, size=(2 * _NUM_CLIENTS, 32, 32, 3), dtype=np.uint8)),
      ('y', np.arange(2 * _NUM_CLIENTS) % 10),
    )
  }
  np.savez(folder / 'cifar10.npz', **arrays)
  return folder


def _small(name, cache_dir):
  """Returns the flags of an experiment, changed to two rounds on few clients."""
  flags = _flags(name)
  flags.update({key: value for key, value in _SMALL.items() if key in flags})
  if 'num_clients' in flags:
    flags['num_clients'] = str(_NUM_CLIENTS)
  if 'fixed_epoch' in flags:
    flags['min_separation'] = str(_NUM_CLIENTS // int(flags['clients_per_round']))
    flags['max_participations'] = '1'
  arguments = [
    f'--{key}={value}' if value else f'--{key}' for key, value in flags.items()
  ]
  return [*arguments, f'--cache_dir={cache_dir}']


@pytest.mark.few(4)
@pytest.mark.parametrize('name', FILES)
def test_flags_of_file_are_accepted_and_fit_the_data(name, cache_dir):
  settings = simulations.settings_of(*_small(name, cache_dir))
  population = settings.task.load(settings.data)
  assert population.num_clients == _NUM_CLIENTS
  assert settings.model.kind.why_not(population.shape) is None
  assert settings.model.metric.why_not(population.shape) is None


@pytest.mark.slow
@pytest.mark.parametrize('name', FILES)
def test_simulate_trains_two_rounds_with_flags_of_file(name, cache_dir, tmp_path):
  simulations.run(tmp_path, *_small(name, cache_dir))
  assert len(simulations.metrics(tmp_path)) == 2
  is_simulated = 'simulated_cohort_scale' in _flags(name)
  config = simulations.read(tmp_path, 'config')
  assert (config['simulated_cohort'] is not None) == is_simulated
  text = (tmp_path / 'report.md').read_text()
  assert ('Guarantee: none' in text) == is_simulated

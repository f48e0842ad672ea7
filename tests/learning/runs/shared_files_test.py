"""Tests that shared files reveal nothing of data and draws but what was released."""

import hashlib
import json
import pathlib
import re
import shutil
import stat

import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import data
from tff_dp_aggregators.learning.runs import run_directory

# Seeds and a number of examples that are no part of any other number in the files.
_SEED, _NOISE_SEED, _EXAMPLES = 907318462735, 615284739054, 486205791373
_ROUNDS = 4
_POISSON = sampling.PoissonSampling(_ROUNDS, sampling_probability=0.5)
_BINS = sampling.BallsInBins(_ROUNDS, cycle_length=2)


def _train(folder, scheme=_POISSON, clients=None, **changes):
  """Trains with 12 clients, or others, in a directory that always has the same name."""
  mechanism = accounting.Mechanism('gaussian', scheme, 1.0)
  clients = training_runs.clients() if clients is None else clients
  arguments = {
    'mechanism': mechanism,
    'clients': clients,
    'schedule': sampling.for_mechanism(mechanism, 12, 12 * _rate(scheme), _SEED),
    'clients_per_round': None,
    'num_rounds': None,
    'seed': _SEED,
    'noise_seed': None,
    'test_data': None,
    'data_facts': {'training examples': _EXAMPLES},
    'settings': {'seed': _SEED, 'split_seed': _SEED, 'num_clients': len(clients)},
    **changes,
  }
  run_dir = pathlib.Path(folder) / 'run'
  run_dir.parent.mkdir(exist_ok=True)
  training_runs.train(str(run_dir), **arguments)
  return run_dir


def _rate(scheme):
  """Returns the share of clients that is expected in a round."""
  return 1 / scheme.cycle_length if scheme != _POISSON else 0.5


def _shareable_files(run_dir):
  """Returns the contents of all files that anybody may see, by name."""
  named = [*run_directory.SHARED, 'model.npz']
  contents = {name: (run_dir / name).read_bytes() for name in named}
  shared = {
    str(path.relative_to(run_dir)): path.read_bytes()
    for path in (run_dir / run_directory.SHARE).iterdir()
  }
  assert len(shared) == len(run_directory.SHARED)
  return {**contents, **shared}


@pytest.fixture(scope='module')
def neighbours(tmp_path_factory):
  """Returns two runs with secret noise and their data, which differ in one client."""
  folder = tmp_path_factory.mktemp('runs')
  one, other = training_runs.clients(), training_runs.clients()
  x, y = other['client 3']
  other['client 3'] = (x[:1], -7 * y[:1])
  return [
    (_train(folder / name, _BINS, clients), clients)
    for name, clients in (('one', one), ('other', other))
  ]


# What differs between runs: times, checksums of results, tags of keys, hashes of lines.
_RUN_SPECIFIC = re.compile(
  rb'sha256:[0-9a-f]{64}|\b[0-9a-f]{64}\b|"time": "[^"]*"|"noise_key_tag": "[^"]*"'
)


def test_files_of_neighbouring_data_differ_only_in_results(neighbours):
  one, other = (
    {
      name: _RUN_SPECIFIC.sub(b'', content).replace(str(run_dir.parent).encode(), b'')
      for name, content in _shareable_files(run_dir).items()
      # These depend on released models: learning curves, and the model itself.
      if not name.endswith(('.html', 'model.npz'))
    }
    for run_dir, _ in neighbours
  )
  assert one == other


def test_shareable_files_have_no_hash_or_size_of_data(neighbours):
  # Configurations have neither times nor results, so that they are the same.
  configs = [(run_dir / 'config.json').read_bytes() for run_dir, _ in neighbours]
  assert configs[0] == configs[1]
  for run_dir, clients in neighbours:
    private = json.loads((run_dir / 'private.json').read_text())
    checksum = private['training']['clients']
    assert checksum == data.checksum(learning.Clients.of(clients))
    digest = hashlib.sha256((run_dir / 'private.json').read_bytes()).hexdigest()
    for name, content in _shareable_files(run_dir).items():
      for secret in (checksum.removeprefix('sha256:'), digest, str(_EXAMPLES)):
        assert secret.encode() not in content, (name, secret)


def test_each_run_has_its_own_noise_key(neighbours):
  tags = [{each.noise_key_tag for each in _entries(run)} for run, _ in neighbours]
  assert len(tags[0]) == len(tags[1]) == 1 and tags[0] != tags[1]


def _entries(run_dir):
  return ledger.read(str(run_dir / 'ledger.jsonl')).entries


def test_private_file_is_for_its_owner_alone_and_not_shared(neighbours):
  run_dir, _ = neighbours[0]
  assert stat.S_IMODE((run_dir / 'private.json').stat().st_mode) == 0o600
  assert not (run_dir / 'share' / 'private.json').exists()
  assert not (run_dir / 'share' / 'metrics.csv').exists()


@pytest.fixture(scope='module')
def seeded(neighbours, tmp_path_factory):
  """Returns runs with clients drawn from a seed; that named 'one' has seeded noise."""
  return {
    'one': _train(
      tmp_path_factory.mktemp('seeded'),
      noise_seed=_NOISE_SEED,
      schedule=sampling.SampledSchedule(_POISSON, 12, _NOISE_SEED),
    ),
    'bins': neighbours[0][0],
  }


def _fast_hashes(seed):
  """Yields hashes that somebody who guesses a seed can compute quickly."""
  for text in (str(seed), f'{seed}\n', f'sampling {seed}', f'noise {seed}'):
    for algorithm in ('md5', 'sha1', 'sha256', 'sha512', 'blake2b'):
      yield hashlib.new(algorithm, text.encode()).hexdigest()


@pytest.mark.parametrize('name', ['one', 'bins'])
def test_shareable_files_have_no_seed_or_fast_hash_of_it(seeded, name):
  for file, content in _shareable_files(seeded[name]).items():
    for seed in (_SEED, _NOISE_SEED):
      assert str(seed).encode() not in content, file
      for digest in _fast_hashes(seed):
        assert digest[:32].encode() not in content, file


@pytest.mark.parametrize('name', ['one', 'bins'])
def test_shareable_files_do_not_reveal_cohort_sizes(seeded, name):
  entries = _entries(seeded[name])
  assert {entry.cohort_requested for entry in entries} == {None}
  assert {entry.cohort_reported for entry in entries} == {None}
  config = json.loads((seeded[name] / 'config.json').read_text())
  assert 'num_clients' not in config['training']['schedule']
  assert 'num_clients' not in config['flags']


def test_tag_of_seed_is_a_memory_hard_hash():
  # With these parameters of scrypt, each guess of a seed takes 64 MiB.
  assert ledger.tag_of_seed('noise', 7) == 'scrypt:' + (
    hashlib.scrypt(
      b'7',
      salt=b'tff_dp_aggregators seed of noise',
      n=2**16,
      r=8,
      p=1,
      maxmem=2**27,
      dklen=16,
    ).hex()
  )


@pytest.mark.slow
def test_shareable_files_have_no_hash_of_a_replayed_schedule(tmp_path):
  mechanism = accounting.Mechanism('gaussian', _POISSON, 1.0)
  file = str(tmp_path / 'schedule.jsonl')
  sampling.for_mechanism(mechanism, 12, 6, 3).save(file)
  replay = sampling.Replay(file)
  runs = [_train(tmp_path / name, schedule=replay) for name in 'ab']
  for name, content in _shareable_files(runs[0]).items():
    for secret in (replay.sha256, replay.checksum.removeprefix('sha256:'), file):
      assert secret.encode() not in content, (name, secret)
  ledgers = [str(run / 'ledger.jsonl') for run in runs]
  with pytest.raises(ValueError, match='drew their clients from the same seed or file'):
    composition.check_not_forked(ledgers)


def test_shared_files_verify_without_the_rest_of_the_run(neighbours, tmp_path):
  run_dir, _ = neighbours[0]
  path, _ = training_runs.shared_report(run_dir, tmp_path / 'reviewer')
  result = verification.verify(str(path))
  assert result.ok, result.differences
  assert set(run_directory.SHARED) == {each.name for each in path.parent.iterdir()}


def test_ledgers_have_tags_of_noise_and_sampling_seeds(seeded):
  # By these tags, other ledgers with the same seed are found.
  noise = {each.noise_key_tag for each in _entries(seeded['one'])}
  assert noise == {ledger.tag_of_seed('noise', _NOISE_SEED)}
  drawn = {each.sampling_tag for each in _entries(seeded['bins'])}
  assert drawn == {ledger.tag_of_seed('sampling', _SEED)}


def test_report_begins_with_warning_of_seeded_noise(seeded):
  run_dir = seeded['one']
  first = [line for line in (run_dir / 'report.md').read_text().splitlines() if line][1]
  warning = 'Noise from a known seed: no guarantee against who knows it.'
  assert warning in first
  page = (run_dir / 'report.html').read_text()
  body = page[page.index('<body') :]
  assert body.index(warning) < body.index('Guarantee:')
  assert warning in json.loads((run_dir / 'report.json').read_text())['warnings'][0]
  warnings = json.loads((seeded['bins'] / 'report.json').read_text())['warnings']
  assert [each.split(':')[0] for each in warnings] == [
    'Clients drawn from a seed of 64 bits or less'
  ]
  # To somebody who knows the bins, each client is in two rounds, without sampling.
  limits = strategies.Participation(_ROUNDS, 2)
  epsilon = accounting.Mechanism('gaussian', limits, 1.0).epsilon(1e-3)
  assert f'epsilon of all planned rounds is {rounding.up(epsilon)}.' in warnings[0]


@pytest.mark.parametrize('change', ['null', 'generator'])
def test_config_cannot_be_edited_to_hide_seeded_noise(seeded, tmp_path, change):
  run_dir = tmp_path / 'run'
  shutil.copytree(seeded['one'], run_dir)
  config = json.loads((run_dir / 'config.json').read_text())
  config['privacy'].update(
    {
      'null': {'noise_seed': None},
      'generator': {'noise_generator': 'chacha20'},
    }[change]
  )
  (run_dir / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match='it says delta = .*, and noise of'):
    sources.from_run_dir(str(run_dir))


def test_resuming_with_other_seeds_or_data_is_refused(neighbours):
  run_dir, _ = neighbours[0]
  changes = {'seed': 2, 'noise_seed': 5, 'clients': training_runs.clients(12, 2.0)}
  with pytest.raises(ValueError) as error:
    _train(run_dir.parent, _BINS, **changes)
  for name in ('training.seed', 'training.clients', 'privacy.noise_seed'):
    assert f'{name}: another value then' in str(error.value)
  with pytest.raises(ValueError, match='seed: another value then'):
    _train(run_dir.parent, _BINS, seed=2**100)


def test_drawn_seed_has_128_bits_and_draws_the_clients(tmp_path, monkeypatch):
  def stop(*args, **kwargs):
    raise training_runs.Killed

  # This stops after the configuration is written, before a round is run.
  monkeypatch.setattr(packed, 'PackedFedAvg', stop)
  with pytest.raises(training_runs.Killed):
    _train(tmp_path / 'a', seed=None, clients_per_round=6, schedule=None)
  private = json.loads((tmp_path / 'a' / 'run' / 'private.json').read_text())
  seed = private['training']['seed']
  assert 2**96 < seed < 2**128  # Fails with probability 2^-32.
  assert private['training']['schedule']['seed'] == seed

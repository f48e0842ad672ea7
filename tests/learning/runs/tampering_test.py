"""Tests that no single edit of a run's files lowers epsilon or removes a warning."""

import copy
import hashlib
import json
import shutil

import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement

_ROUNDS = 8
_GONE = object()
_RUNS = {
  'limits': ('banded', strategies.Participation(_ROUNDS, 4)),
  'poisson': ('gaussian', sampling.PoissonSampling(_ROUNDS, 0.25)),
  'cyclic': ('banded', sampling.PoissonSampling(_ROUNDS, 0.5, num_groups=2)),
  'fixed size': ('gaussian', sampling.FixedSizeSampling(_ROUNDS, 12, 3)),
  'bins': ('gaussian', sampling.BallsInBins(_ROUNDS, cycle_length=4)),
}
_QUICK = ('poisson',)
# Reports state nothing about the contents of these.
_NOT_REPORTED = ('flags', 'software', 'machine', 'data_facts', 'model')


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow])
    for name in _RUNS
  ],
)
def run(request, tmp_path_factory):
  """Returns a copy of a run's shared files, its configuration and its ledger lines."""
  name, participation = _RUNS[request.param]
  options = {'num_bands': 2} if name == 'banded' else {}
  mechanism = accounting.Mechanism(name, participation, 1.5, options=options)
  schedule = sampling.for_mechanism(mechanism, 12, 3, 2**70 + 1)
  folder = tmp_path_factory.mktemp('tampering')
  arguments = training_runs.arguments(
    str(folder / 'run'),
    mechanism=mechanism,
    clients=training_runs.clients(),
    schedule=schedule,
    clients_per_round=None,
    num_rounds=None,
    noise_seed=None,
    seed=2**70 + 2,
  )
  learning.train(**training_runs.grouped(**arguments))
  edited = folder / 'edited'
  shutil.copytree(folder / 'run' / 'share', edited)
  config = json.loads((edited / 'config.json').read_text())
  lines = (edited / 'ledger.jsonl').read_text().splitlines()
  return edited, config, [json.loads(line) for line in lines]


def _fields(value, path=()):
  """Yields paths and values of all fields, and of the objects that they are in."""
  for key, inner in value.items():
    yield (*path, key), inner
    if isinstance(inner, dict):
      yield from _fields(inner, (*path, key))


def _replacements(value):
  """Yields values to replace one with; `_GONE` removes it."""
  yield _GONE
  if value is not None:
    yield None
  if isinstance(value, bool):
    yield not value
  elif isinstance(value, (int, float)):
    yield from (2 * value, value / 2, value * (1 - 1e-7), value - 1, 0)
  elif isinstance(value, str):
    yield from (f'{value}x', '')
  elif value is None:
    yield from (1, 'x', 0.5)
  else:
    yield type(value)()


def _replace(value, path, replacement):
  for key in path[:-1]:
    value = value[key]
  if replacement is _GONE:
    value.pop(path[-1], None)
  elif path[-1] in value:
    value[path[-1]] = replacement


def _write(folder, config, lines):
  (folder / 'config.json').write_text(json.dumps(config))
  previous, chained = hashlib.sha256().hexdigest(), []
  for line in lines:
    text = json.dumps({**line, 'previous_line_sha256': previous}) + '\n'
    previous = hashlib.sha256(text.encode()).hexdigest()
    chained.append(text)
  (folder / 'ledger.jsonl').write_text(''.join(chained))


def _statement(folder):
  return statement.build(sources.from_run_dir(str(folder)), with_curves=False)


def _is_safe(folder, original):
  """Returns whether an edited run is refused, or claims no less than the original."""
  try:
    edited = _statement(folder)
  except ValueError:
    return True
  epsilon = edited['guarantee']['epsilon']
  if edited['guarantee']['delta'] is None:  # It says that there is no privacy.
    return epsilon is None
  least = original['guarantee']['epsilon'] * (1 - 1e-9)
  return (
    (epsilon is None or epsilon >= least)
    and edited['guarantee']['delta'] <= original['guarantee']['delta']
    and set(edited['warnings']) >= set(original['warnings'])
  )


def test_no_edit_of_config_lowers_epsilon_or_removes_warning(run):
  folder, config, lines = run
  _write(folder, config, lines)
  original = _statement(folder)
  assert original['guarantee']['epsilon'] > 0
  assert original['warnings'] == []  # Nobody guesses a seed of more than 64 bits.
  edits = 0
  for path, value in _fields(config):
    if path[0] in _NOT_REPORTED and len(path) > 1:
      continue
    for replacement in _replacements(value):
      edited = copy.deepcopy(config)
      _replace(edited, path, replacement)
      _write(folder, edited, lines)
      edits += 1
      assert _is_safe(folder, original), (path, value, replacement)
  assert edits > 200


@pytest.mark.parametrize('places', [range(_ROUNDS), [-1]], ids=['all', 'last'])
def test_no_edit_of_ledger_lowers_epsilon_or_removes_warning(run, places):
  folder, config, lines = run
  _write(folder, config, lines)
  original = _statement(folder)
  edits = 0
  for path, value in _fields(lines[places[0]]):
    # Without its source it is unknown who drew the clients, and there is no warning.
    if path == ('sampling_source',):
      continue
    for replacement in _replacements(value):
      edited = copy.deepcopy(lines)
      for place in places:
        try:
          _replace(edited[place], path, replacement)
        except (KeyError, TypeError):  # Another kind of event has no such field.
          continue
      _write(folder, config, edited)
      edits += 1
      assert _is_safe(folder, original), (path, value, replacement)
  assert edits > 50


def test_ledger_without_its_first_line_is_refused(run):
  folder, config, lines = run
  _write(folder, config, lines[1:])
  with pytest.raises(ValueError, match='expected round 0, .* found round 1'):
    _statement(folder)

"""No single edit of what a run left makes its epsilon less, or takes a warning away."""

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
# What a report says nothing of.
_SILENT = ('flags', 'software', 'machine', 'data_facts', 'model')


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow])
    for name in _RUNS
  ],
)
def run(request, tmp_path_factory):
  """A directory with a run's configuration, ledger and strategy; its parts as data."""
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
  """Paths and values of all fields, and of the objects that they are in."""
  for key, inner in value.items():
    yield (*path, key), inner
    if isinstance(inner, dict):
      yield from _fields(inner, (*path, key))


def _others(value):
  """Other values, or none, in the place of one."""
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


def _put(value, path, other):
  for key in path[:-1]:
    value = value[key]
  if other is _GONE:
    value.pop(path[-1], None)
  elif path[-1] in value:
    value[path[-1]] = other


def _write(folder, config, lines):
  (folder / 'config.json').write_text(json.dumps(config))
  previous, chained = hashlib.sha256().hexdigest(), []
  for line in lines:
    text = json.dumps({**line, 'previous_line_sha256': previous}) + '\n'
    previous = hashlib.sha256(text.encode()).hexdigest()
    chained.append(text)
  (folder / 'ledger.jsonl').write_text(''.join(chained))


def _state(folder):
  return statement.build(sources.from_run_dir(str(folder)), with_curves=False)


def _is_safe(folder, original):
  """Whether an edited run is refused, or says no less than the one that ran."""
  try:
    said = _state(folder)
  except ValueError:
    return True
  epsilon = said['guarantee']['epsilon']
  least = original['guarantee']['epsilon'] * (1 - 1e-9)
  return (
    (epsilon is None or epsilon >= least)
    and said['guarantee']['delta'] <= original['guarantee']['delta']
    and set(said['warnings']) >= set(original['warnings'])
  )


def test_no_edit_of_a_configuration_makes_epsilon_less(run):
  folder, config, lines = run
  _write(folder, config, lines)
  original = _state(folder)
  assert original['guarantee']['epsilon'] > 0
  assert original['warnings'] == []  # Nobody guesses a seed of more than 64 bits.
  edits = 0
  for path, value in _fields(config):
    if path[0] in _SILENT and len(path) > 1:
      continue
    for other in _others(value):
      edited = copy.deepcopy(config)
      _put(edited, path, other)
      _write(folder, edited, lines)
      edits += 1
      assert _is_safe(folder, original), (path, value, other)
  assert edits > 200


@pytest.mark.parametrize('places', [range(_ROUNDS), [-1]], ids=['all', 'last'])
def test_no_edit_of_a_ledger_makes_epsilon_less(run, places):
  folder, config, lines = run
  _write(folder, config, lines)
  original = _state(folder)
  edits = 0
  for path, value in _fields(lines[places[0]]):
    # Without its source, who drew is not known, and nothing is said of it.
    if path == ('sampling_source',):
      continue
    for other in _others(value):
      edited = copy.deepcopy(lines)
      for place in places:
        try:
          _put(edited[place], path, other)
        except (KeyError, TypeError):  # Another kind of event has no such field.
          continue
      _write(folder, config, edited)
      edits += 1
      assert _is_safe(folder, original), (path, value, other)
  assert edits > 50


def test_a_ledger_without_its_first_line_is_refused(run):
  folder, config, lines = run
  _write(folder, config, lines[1:])
  with pytest.raises(ValueError):
    _state(folder)

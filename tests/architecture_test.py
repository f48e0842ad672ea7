"""Files and functions named in docs/architecture.md exist, and run when it says so."""

import ast
import functools
import gc
import importlib
import pathlib
import re
import sys

import pytest

from benchmarks import files_walked
from experiments import simulate
from tff_dp_aggregators.strategies import registry

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / 'docs' / 'architecture.md'
TEXT = DOCUMENT.read_text(encoding='utf-8')
ENTRY = re.compile(r'^\| `(\S+\.py)` \| `([\w.]+)` \|', re.MULTILINE)
ENTRIES = list(dict.fromkeys(ENTRY.findall(TEXT)))
PACKAGE = 'tff_dp_aggregators'
# The link to experiments/ is left out.
LAYERS = sorted(
  path.parent.name
  for path in (ROOT / PACKAGE).glob('*/__init__.py')
  if not path.parent.is_symlink()
)


def path_of(name):
  """Returns the path, from the root, of a file or folder named in the document."""
  in_package = pathlib.PurePath(name).parts[0] in LAYERS
  return pathlib.PurePath(PACKAGE if in_package else '', name)


def names_defined_in(path):
  """Returns the dotted names of functions, classes and methods in a file."""
  names = set()

  def walk(node, prefix):
    for child in ast.iter_child_nodes(node):
      if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
        names.add(prefix + child.name)
        walk(child, f'{prefix}{child.name}.')

  walk(ast.parse(path.read_text(encoding='utf-8')), '')
  return names


def test_tables_of_document_have_entries():
  assert len(ENTRIES) > 30
  files = {file for file, _ in ENTRIES}
  visited = {pathlib.PurePath(file).parts[0] for file in files}
  assert visited >= {'strategies', 'accounting', 'noise', 'queries', 'aggregators'}


@pytest.mark.parametrize('file, name', ENTRIES, ids=lambda each: each)
def test_documented_function_is_defined_in_its_file(file, name):
  assert name in names_defined_in(ROOT / path_of(file))


def test_documented_files_and_folders_exist():
  named = re.findall(r'`([a-z_]+/[\w/.]*)`', TEXT)
  assert len(named) > 40
  missing = [path for path in named if not (ROOT / path_of(path)).exists()]
  assert not missing


FILES_WALKED = re.findall(
  r'^\| `(\S+\.py)`', TEXT.split('of their first calls:\n\n')[1].split('\n\n')[0], re.M
)


def test_documented_files_match_calls_from_banded_to_noise(tmp_path, monkeypatch):
  monkeypatch.setenv('TFF_DP_AGGREGATORS_CACHE', str(tmp_path))
  gc.collect()  # Else leftovers of other tests would be finalized during the walk.
  assert [*files_walked.walk()] == FILES_WALKED
  assert len(FILES_WALKED) <= files_walked.MAX_FILES


@pytest.mark.slow
def test_documented_files_match_calls_in_a_fresh_process():
  assert sorted(files_walked.walk_afresh()) == sorted(FILES_WALKED)


def module_of(file):
  path = path_of(file).with_suffix('')
  parts = path.parts[:-1] if path.name == '__init__' else path.parts
  return importlib.import_module('.'.join(parts))


def recording(function, called, entry):
  @functools.wraps(function)
  def recorded(*args, **kwargs):
    called.setdefault(entry, len(called))
    return function(*args, **kwargs)

  return recorded


def record_calls(monkeypatch, called):
  """Adds each entry of the tables to `called` when its function is first called."""
  for entry in ENTRIES:
    file, name = entry
    owner = module_of(file)
    *classes, function = name.split('.')
    for each in classes:
      owner = getattr(owner, each)
    original = owner.__dict__[function]
    is_classmethod = isinstance(original, classmethod)
    plain = original.__func__ if is_classmethod else original

    recorded = recording(plain, called, entry)
    if is_classmethod:
      recorded = classmethod(recorded)
    monkeypatch.setattr(owner, function, recorded)
    if classes:
      continue
    for module in list(sys.modules.values()):  # Some import the function by its name.
      if getattr(module, '__name__', '').startswith(PACKAGE):
        if module.__dict__.get(function) is original:
          monkeypatch.setattr(module, function, recorded)
    for kind in registry.KINDS.values():  # Closures hold the optimiser of a kind.
      for cell in kind.build.__closure__ or ():
        if cell.cell_contents is original:
          monkeypatch.setattr(cell, 'cell_contents', recorded)


@pytest.fixture(scope='module')
def called(tmp_path_factory):
  """Returns the entries that a real training called, with their order."""
  if sys.version_info < (3, 10):
    pytest.skip('signatures of wrapped methods have self, and TFF reads them')
  order = {}
  run_dir = tmp_path_factory.mktemp('architecture') / 'run'
  with pytest.MonkeyPatch.context() as monkeypatch:
    record_calls(monkeypatch, order)
    code = simulate.execute(
      [
        '--target_epsilon=8',
        '--target_delta=1e-5',
        '--num_rounds=2',
        '--num_clients=30',
        '--clients_per_round=3',
        '--min_separation=2',
        '--secret_noise',
        f'--run_dir={run_dir}',
      ]
    )
  assert code == 0
  return order


@pytest.mark.slow
@pytest.mark.parametrize('entry', ENTRIES, ids=lambda each: each[1])
def test_training_calls_documented_function(called, entry):
  assert entry in called


@pytest.mark.slow
def test_training_plans_then_runs_then_reports(called):
  parts = TEXT.split('\n### ')[1:]
  first = [min(called[entry] for entry in ENTRY.findall(part)) for part in parts]
  assert first == sorted(first)
  assert [part.split(':')[0] for part in parts] == ['Planning', 'Running', 'Reporting']

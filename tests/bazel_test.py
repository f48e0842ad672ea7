"""Claims about the BUILD files.

Continuous integration runs a part of the tests in Bazel's sandbox. That the rest would
find there what they import is claimed here, from what the files say.
"""

import ast
import functools
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = (
  'strategies',
  'sampling',
  'accounting',
  'noise',
  'queries',
  'aggregators',
  'learning',
)


def _python_folders():
  """Returns the folders of the checkout that hold Python files of the project."""
  left_out = {'build', 'dist', 'runs', 'site'}
  folders = set()
  for folder, below, files in os.walk(ROOT):
    below[:] = [
      name
      for name in below
      if not name.startswith(('.', 'bazel-'))
      and name not in left_out
      and not name.endswith('.egg-info')
    ]
    if any(name.endswith('.py') for name in files):
      folders.add(pathlib.Path(folder).relative_to(ROOT))
  return sorted(folders)


TEST_FOLDERS = [each for each in _python_folders() if each.parts[:1] == ('tests',)]


def _calls(folder, name):
  """Returns the arguments of each call of a rule in a folder's BUILD file, as trees."""
  build = ast.parse((ROOT / folder / 'BUILD').read_text('utf-8'))
  return [
    {keyword.arg: keyword.value for keyword in node.keywords}
    for node in ast.walk(build)
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == name
  ]


def _listed(folder, argument):
  """Returns what the tests of a folder are said to have, or not to be."""
  (arguments,) = _calls(folder, 'pytest_tests')
  return ast.literal_eval(arguments[argument]) if argument in arguments else []


@functools.cache
def _imported(path):
  """Returns the dotted names that a file of the project imports from the project."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text('utf-8'))):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names.update(f'{node.module}.{alias.name}' for alias in node.names)
  ours = ('tests', 'experiments', 'benchmarks', 'tff_dp_aggregators')
  return frozenset(name for name in names if name.partition('.')[0] in ours)


def _all_imported(path):
  """Returns what a test imports, with what the helpers that it imports do."""
  found, left = set(), [path]
  while left:
    for name in _imported(left.pop()) - found:
      found.add(name)
      if name.startswith('tests.'):
        left.append(_test_module(name))
  return sorted(found)


def _test_module(name):
  """Returns the file of a dotted name in tests/, of a module or of something in one."""
  path = ROOT.joinpath(*name.split('.')).with_suffix('.py')
  return path if path.is_file() else path.parent.with_suffix('.py')


@functools.cache
def _layers_of(layer):
  """Returns a layer and those that its library depends on, as labels."""
  labels = {f'//tff_dp_aggregators/{layer}'}
  for label in ast.literal_eval(
    _calls(f'tff_dp_aggregators/{layer}', 'py_library')[-1]['deps']
  ):
    name = label.rpartition('/')[2]
    if label.startswith('//tff_dp_aggregators/') and name in ('base', *LAYERS):
      labels |= _layers_of(name)
  return frozenset(labels)


def _provided(labels):
  """Returns the labels of tests, and of what those of the package depend on."""
  provided = set(labels)
  for label in labels:
    name = label.rpartition('/')[2]
    if label == f'//tff_dp_aggregators/{name}':
      provided |= _layers_of(name)
    elif label in ('//tff_dp_aggregators', '//experiments', '//benchmarks'):
      provided.update(f'//tff_dp_aggregators/{each}' for each in ('base', *LAYERS))
  return provided


def _needed(folder, name):
  """Returns the label that provides what is imported, `None` if all tests have it."""
  package, *rest = name.split('.')
  if package == 'tests':
    where = _test_module(name).parent.relative_to(ROOT)
    own = where in (folder, pathlib.Path('tests'))
    return None if own else f'//{where.as_posix()}:helpers'
  if package != 'tff_dp_aggregators':
    return f'//{package}'
  if rest and rest[0] in ('base', *LAYERS):
    return f'//{package}/{rest[0]}'
  return None


class TestBazel:
  @pytest.mark.parametrize('folder', _python_folders(), ids=str)
  def test_python_files_of_a_folder_are_in_a_target(self, folder):
    build = ROOT / folder / 'BUILD'
    if not build.is_file():  # Rooms of a layer are part of its library.
      build = next(p / 'BUILD' for p in build.parents if (p / 'BUILD').is_file())
      assert '"**/*.py"' in build.read_text('utf-8'), f'{folder} is in no target'

  def test_each_layer_depends_on_the_one_before_it_and_no_other(self):
    chain = ['base', *LAYERS]
    before = {after: [layer] for layer, after in zip(chain, chain[1:])}
    for layer in ('base', *LAYERS):
      calls = _calls(f'tff_dp_aggregators/{layer}', 'py_library')
      (listed,) = [ast.literal_eval(call['deps']) for call in calls if 'deps' in call]
      parts = f'//tff_dp_aggregators/{layer}/'  # Of the layer itself.
      expected = [f'//tff_dp_aggregators/{each}' for each in before.get(layer, ())]
      assert [each for each in listed if not each.startswith(parts)] == (
        expected or ['//tff_dp_aggregators:package']
      ), layer

  @pytest.mark.parametrize('folder', TEST_FOLDERS, ids=str)
  def test_what_tests_import_is_in_what_their_targets_depend_on(self, folder):
    labels = _listed(folder, 'deps')
    excluded = _listed(folder, 'exclude')
    provided = _provided(labels)
    for path in sorted((ROOT / folder).glob('*_test.py')):
      if path.name in excluded:
        continue
      for name in _all_imported(path):
        label = _needed(folder, name)
        assert label is None or any(
          # A label of a part of benchmarks has that part.
          each == label or (each.startswith(f'{label}/') and 'tests' not in label)
          for each in provided
        ), f'{path.name} needs {label} for {name}: list it in {folder}/BUILD'
        assert not _test_module(name).name.endswith('_test.py') or not name.startswith(
          'tests.'
        ), f'{path.name} imports {name}; what tests share belongs to a file of its own'

"""The BUILD files: every test has a target that provides what it imports.

Continuous integration runs only a part of the tests in Bazel's sandbox. For the rest,
this is checked from the text of the files.
"""

import ast
import fnmatch
import functools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / 'tests').rglob('*_test.py'))


@functools.cache
def _build(folder):
  return ast.parse((ROOT / folder / 'BUILD').read_text('utf-8'))


def _layers():
  """Returns the names of the layers, in the order of the package's BUILD file."""
  (layers,) = (
    ast.literal_eval(node.value)
    for node in _build('tff_dp_aggregators').body
    if isinstance(node, ast.Assign)
  )
  return layers


def _deps(test):
  """Returns the labels that a test depends on, or `None` without a target."""
  name = test.relative_to(ROOT / 'tests').as_posix()
  deps = []
  for node in _build('tests').body:
    if isinstance(node, ast.Expr) and node.value.func.id == 'pytest_tests':
      arguments = {each.arg: each.value for each in node.value.keywords}
      for folder in ast.literal_eval(node.value.args[0]):
        below = fnmatch.fnmatch(name, folder.replace('**/', '*')) and folder
        if below or (not folder and '/' not in name):
          if name not in ast.literal_eval(arguments.get('exclude', ast.List([]))):
            deps.append(ast.literal_eval(arguments['deps']))
  assert len(deps) < 2, f'{name} is in two targets'
  return deps[0] if deps else None


@functools.cache
def _imported(path):
  """Returns the names that a file and its helpers in `tests` import."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text('utf-8'))):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      names.update(f'{node.module}.{alias.name}' for alias in node.names)
  for name in sorted(names):
    if name.startswith('tests.'):
      helper = ROOT.joinpath(*name.split('.')).with_suffix('.py')
      helper = helper if helper.is_file() else helper.parent.with_suffix('.py')
      assert not helper.name.endswith('_test.py'), (
        f'{path.name} imports {name}; what tests share belongs to a file of its own'
      )
      names |= _imported(helper)
  return names


def test_layers_in_build_file_match_package():
  package = ROOT / 'tff_dp_aggregators'
  folders = {each.parent.name for each in package.glob('*/__init__.py')}
  assert set(_layers()) == folders - {'experiments'}


def test_only_listed_tests_have_no_target():
  left_out = {path.name for path in TESTS if _deps(path) is None}
  assert left_out == {
    'bazel_test.py',
    'notebook_test.py',
    'packaging_test.py',
    'workflows_test.py',
  }


def test_imports_of_tests_are_in_deps_of_their_targets():
  for test in TESTS:
    deps = _deps(test)
    if deps is not None:
      _check_imports(test, deps)


def _check_imports(test, deps):
  provided = {'//tff_dp_aggregators:package'}
  for label in deps:
    provided.add(label)
    if label in ('//benchmarks', '//experiments'):
      provided |= {'//experiments', f'//tff_dp_aggregators:{_layers()[-1]}'}
  last = max(
    (
      _layers().index(label.rpartition(':')[2])
      for label in provided
      if label.rpartition(':')[2] in _layers()
    ),
  )
  allowed = {f'//tff_dp_aggregators:{layer}' for layer in _layers()[: last + 1]}
  for name in _imported(test):
    first, _, rest = name.partition('.')
    layer = rest.partition('.')[0]
    if first == 'tff_dp_aggregators' and layer in _layers():
      assert f'//{first}:{layer}' in allowed, (test, name)
    elif first in ('benchmarks', 'experiments', 'tools'):
      assert f'//{first}' in provided, (test, name)

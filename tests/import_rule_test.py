"""Each layer imports only itself and lower layers; light ones never load TensorFlow.

This is checked twice: in the source of every file, with imports inside functions, and
by importing every module of the light layers in a new interpreter. Both checks walk the
folders, so that files added later are checked as well.
"""

import ast
import functools
import pathlib

from tests import executing
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import registry

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = 'tff_dp_aggregators'
BASE = 'base'  # The lowest layer.
LAYERS = (
  'strategies',
  'sampling',
  'accounting',
  'noise',
  'queries',
  'aggregators',
  'learning',
)
HEAVY = ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy', 'keras', 'jax')
# What a layer must not import, besides higher layers.
FORBIDDEN = {
  BASE: ('numpy', 'scipy', 'dp_accounting', *HEAVY),
  'strategies': ('dp_accounting', *HEAVY),
  'sampling': HEAVY,
  'accounting': HEAVY,
  'noise': ('tensorflow_federated', 'tensorflow_privacy'),
  'queries': ('tensorflow_federated',),
}
# Modules of a layer, from the lowest sublayer up. None imports a module of a higher
# sublayer; those of one sublayer may import each other.
SUBLAYERS = {
  'strategies': (
    ('participation', 'workload', 'recursion', 'strategy'),
    ('numerics',),
    ('sensitivity', 'registry'),
    ('cache',),
    ('toeplitz', 'tree', 'dense'),
    ('banded', 'banded_inverse', 'blt'),
    ('epoch_scaled', 'restarts'),
  ),
  'accounting': (
    ('events',),
    ('accountants',),
    ('calibration',),
    ('distributed_noise',),
    ('noises',),
    (
      'run_events',
      'budget',
      'nbafl',
      'adaptive_clipping',
      'tree_aggregation_accountant',
    ),
    ('local',),
    ('mechanism',),
    ('joint_mechanism',),
    ('records', 'noise_to_signal', 'spent_by_round', 'canaries'),
    ('planning', 'reports', 'vectors'),
    ('programs',),
    ('report', 'plan', 'participation'),
  ),
}
FILES = sorted((ROOT / PACKAGE).rglob('*.py'))
# Files besides `strategies` that check for kinds of strategies, and why they may. All
# others ask the registry.
EXCEPTIONS = {
  'tff_dp_aggregators/accounting/noises.py': 'a kind of noise has that name, too',
  'tff_dp_aggregators/accounting/programs/table.py': 'the default, of a part as well',
  'tff_dp_aggregators/queries/adaptive_clipping.py': 'clip norms change with a tree',
  'tff_dp_aggregators/queries/matrix_mechanism.py': 'one query is for banded ones',
  'tff_dp_aggregators/sampling/round_sampling.py': 'a kind of noise has that name, too',
  'tff_dp_aggregators/sampling/scheme.py': 'a kind of noise has that name, too',
}


@functools.cache
def nodes_of(path):
  """Returns all nodes of a file's syntax tree."""
  return list(ast.walk(ast.parse(path.read_text(encoding='utf-8'))))


@functools.cache
def names_imported_by(path):
  """Returns the absolute dotted names of everything that a file imports."""
  relative = path.relative_to(ROOT).with_suffix('')
  is_package = relative.name == '__init__'
  module = '.'.join(relative.parent.parts if is_package else relative.parts)
  names = set()
  for node in nodes_of(path):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        parts = module.split('.')
        kept = parts[: len(parts) - node.level + is_package]
        base = '.'.join([*kept, *([base] if base else [])])
      names.update(f'{base}.{alias.name}' for alias in node.names)
  return names


def layer_of(path):
  return path.relative_to(ROOT / PACKAGE).parts[0]


def is_in(name, package):
  return name == package or name.startswith(package + '.')


def test_every_file_belongs_to_a_layer():
  folders = {layer_of(path) for path in FILES} - {'__init__.py'}
  assert folders == {BASE, *LAYERS}
  assert len(FILES) > 20


def test_layers_import_only_themselves_and_lower_layers():
  for path in FILES:
    names = names_imported_by(path)
    if path.parent == ROOT / PACKAGE:
      own = {name for name in names if is_in(name, PACKAGE)}
      assert not own, 'the package itself loads its layers on first use'
      continue
    layer = layer_of(path)
    allowed = [BASE]
    if layer != BASE:
      allowed += LAYERS[: LAYERS.index(layer) + 1]
    for name in names:
      if is_in(name, PACKAGE) and name != PACKAGE:
        assert name.split('.')[1] in (*allowed, '__version__'), (path, name)
      assert not is_in(name, 'experiments'), (path, name)
      for package in FORBIDDEN.get(layer, ()):
        assert not is_in(name, package), (path, name)


def modules_of(layer):
  return {path.stem for path in (ROOT / PACKAGE / layer).iterdir()} - {'__init__'}


def sublayer_of(layer, module):
  indices = [i for i, modules in enumerate(SUBLAYERS[layer]) if module in modules]
  assert len(indices) == 1, f'in which sublayer of {layer} is {module}?'
  return indices[0]


def test_modules_of_a_layer_import_no_higher_sublayer():
  for path in FILES:
    layer, *inside = path.relative_to(ROOT / PACKAGE).with_suffix('').parts
    if layer not in SUBLAYERS or inside == ['__init__']:
      continue
    sublayer, modules = sublayer_of(layer, inside[0]), modules_of(layer)
    for name in names_imported_by(path):
      parts = name.split('.')
      if parts[:2] == [PACKAGE, layer] and parts[2:3] and parts[2] in modules:
        assert sublayer_of(layer, parts[2]) <= sublayer, (path, name)


def test_only_accounting_programs_import_absl():
  importing = {
    path.relative_to(ROOT / PACKAGE).parts[:2]
    for path in FILES
    if any(is_in(name, 'absl') for name in names_imported_by(path))
  }
  assert importing == {('accounting', 'programs')}


def test_only_one_file_imports_tensorflow_privacy():
  importing = {
    path.relative_to(ROOT / PACKAGE).as_posix()
    for path in FILES
    if any(is_in(name, 'tensorflow_privacy') for name in names_imported_by(path))
  }
  assert importing == {'queries/matrix_mechanism.py'}


@functools.cache
def classes():
  """Returns the names of all classes of strategies, base classes included."""
  names, pending = set(), [strategies.Strategy]
  while pending:
    each = pending.pop()
    pending.extend(each.__subclasses__())
    names.add(each.__name__)
  return names - {'Strategy'}


def checks_of(path):
  """Yields where a file checks for kinds of strategies."""
  exported = {
    id(node)
    for assignment in nodes_of(path)
    if isinstance(assignment, ast.Assign)
    and any(getattr(each, 'id', '') == '__all__' for each in assignment.targets)
    for node in ast.walk(assignment)
  }
  for node in nodes_of(path):
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'isinstance':
      for each in ast.walk(node.args[1]):
        name = getattr(each, 'attr', getattr(each, 'id', None))
        if name in classes():
          yield f'line {node.lineno}: isinstance of {name}'
    if isinstance(node, ast.Constant) and node.value in registry.KINDS:
      if id(node) not in exported:
        yield f'line {node.lineno}: {node.value!r}'


def test_only_exceptions_check_kinds_of_strategies():
  checking = {
    path.relative_to(ROOT).as_posix()
    for path in [*FILES, *(ROOT / 'experiments').rglob('*.py')]
    if 'tff_dp_aggregators/strategies/' not in path.as_posix() and any(checks_of(path))
  }
  assert checking == set(EXCEPTIONS)


def test_light_layers_do_not_load_tensorflow():
  modules = [
    '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    for path in FILES
    if layer_of(path) in ('strategies', 'sampling', 'accounting')
    and path.stem != '__main__'
  ]
  assert f'{PACKAGE}.accounting.records.ledger' in modules
  result = executing.run_python(
    'import importlib, sys\n'
    f'import {PACKAGE} as package\n'
    f'assert set({LAYERS}) <= set(dir(package))\n'
    f'loaded = [m for m in {LAYERS} if "{PACKAGE}." + m in sys.modules]\n'
    'assert not loaded, loaded\n'
    'package.strategies.BinaryTree, package.accounting.accountants.gaussian\n'
    f'for module in {modules}:\n'
    '  importlib.import_module(module)\n'
    f'  heavy = [m for m in {HEAVY} if m in sys.modules]\n'
    '  assert not heavy, (module, heavy)\n'
    'print("light")\n'
  )
  assert result.returncode == 0, result.stderr
  assert result.stdout == 'light\n'


def test_unknown_attribute_of_package_raises_attribute_error():
  result = executing.run_python(f'import {PACKAGE} as package\npackage.nothing\n')
  assert "has no attribute 'nothing'" in result.stderr

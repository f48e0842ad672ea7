"""A kind of strategy is known to `strategies` alone; all else asks the registry."""

import ast
import pathlib

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import registry

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXCEPTIONS = {
  'tff_dp_aggregators/accounting/noises.py': 'a kind of noise has that name, too',
  'tff_dp_aggregators/accounting/programs/table.py': 'the default, of a part as well',
  'tff_dp_aggregators/queries/adaptive_clipping.py': 'clip norms change with a tree',
  'tff_dp_aggregators/queries/matrix_mechanism.py': 'one query is for banded ones',
  'tff_dp_aggregators/sampling/poisson.py': 'a kind of noise has that name, too',
  'tff_dp_aggregators/sampling/scheme.py': 'a kind of noise has that name, too',
}
FILES = sorted(
  path
  for folder in ('tff_dp_aggregators', 'experiments')
  for path in (ROOT / folder).rglob('*.py')
  if 'tff_dp_aggregators/strategies/' not in path.as_posix()
)


def classes():
  """Names of all classes of strategies, also of those that others are made from."""
  found, left = set(), [strategies.Strategy]
  while left:
    each = left.pop()
    left.extend(each.__subclasses__())
    found.add(each.__name__)
  return found - {'Strategy'}


def switches(source):
  """Where a source tells kinds of strategies apart."""
  tree = ast.parse(source)
  exported = {
    id(node)
    for assignment in ast.walk(tree)
    if isinstance(assignment, ast.Assign)
    and any(getattr(each, 'id', '') == '__all__' for each in assignment.targets)
    for node in ast.walk(assignment)
  }
  for node in ast.walk(tree):
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'isinstance':
      for each in ast.walk(node.args[1]):
        name = getattr(each, 'attr', getattr(each, 'id', None))
        if name in classes():
          yield f'line {node.lineno}: isinstance of {name}'
    if isinstance(node, ast.Constant) and node.value in registry.KINDS:
      if id(node) not in exported:
        yield f'line {node.lineno}: {node.value!r}'


def test_only_strategies_and_the_exceptions_tell_kinds_apart():
  found = {
    path.relative_to(ROOT).as_posix(): list(switches(path.read_text('utf-8')))
    for path in FILES
  }
  telling = {name: lines for name, lines in found.items() if lines}
  assert set(telling) == set(EXCEPTIONS), telling

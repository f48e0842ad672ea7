"""`dir` of a package shows its public names only, also before anything is loaded.

So nobody mistakes submodules and imports for the package's interface.
"""

import ast
import importlib
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = sorted(
  '.'.join(path.parent.relative_to(ROOT).parts)
  for path in (ROOT / 'tff_dp_aggregators').rglob('__init__.py')
)


def _fresh(name):
  """Returns a new copy of the package, of which nothing was used."""
  spec = importlib.util.find_spec(name)
  package = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(package)
  return package


@pytest.mark.parametrize('name', [*PACKAGES, 'tff_dp_aggregators.learning.runtime'])
def test_dir_shows_only_public_names(name):
  public = getattr(importlib.import_module(name), '__all__', None)
  if public is None:  # The package has only submodules.
    source = importlib.util.find_spec(name).loader.get_source(name)
    assert ast.get_docstring(ast.parse(source)) and len(ast.parse(source).body) == 1
    return
  assert dir(_fresh(name)) == dir(importlib.import_module(name)) == sorted(public)
  for each in public:
    assert getattr(importlib.import_module(name), each) is not None


def test_packages_are_found():
  assert {'tff_dp_aggregators', 'tff_dp_aggregators.learning'} < set(PACKAGES)

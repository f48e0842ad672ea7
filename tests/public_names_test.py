"""What a package offers is what `dir` shows of it, also before it is loaded.

So nobody takes what a package is made of, or what it imports, for what it offers.
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


def _anew(name):
  """The package as it is when nothing of it was used."""
  spec = importlib.util.find_spec(name)
  package = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(package)
  return package


@pytest.mark.parametrize('name', [*PACKAGES, 'tff_dp_aggregators.learning.runtime'])
def test_dir_shows_the_public_names_and_no_others(name):
  public = getattr(importlib.import_module(name), '__all__', None)
  if public is None:  # Nothing but what lies in it.
    source = importlib.util.find_spec(name).loader.get_source(name)
    assert ast.get_docstring(ast.parse(source)) and len(ast.parse(source).body) == 1
    return
  assert dir(_anew(name)) == dir(importlib.import_module(name)) == sorted(public)
  for each in public:
    assert getattr(importlib.import_module(name), each) is not None


def test_packages_are_found():
  assert {'tff_dp_aggregators', 'tff_dp_aggregators.learning'} < set(PACKAGES)

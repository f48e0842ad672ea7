"""Checks of `make docs`: docstrings, links and navigation, without building a site."""

import pathlib
import re
import textwrap

import pytest

from tools.docs import api
from tools.docs import html_links

ROOT = pathlib.Path(__file__).resolve().parents[1]

SHAPES = """
  '''Shapes.'''
  class Shape:
    '''Any shape.'''
    def area(self):
      '''Its area.'''
  class Square(Shape):
    '''Four sides.

    Attributes:
      size: One of them.
    '''
    size: float
    colour: str
    # How it is called.
    name = 'square'
    def area(self):
      '''See `Shape`.'''
    def grow(self):
      pass
    def _private(self):
      pass
  """


def test_undocumented_lists_names_without_own_docstring(tmp_path):
  package = tmp_path / 'pack'
  package.mkdir()
  offered = "'Top.'\nfrom pack.shapes import Square\n__all__ = ['Square']\n"
  (package / '__init__.py').write_text(offered, encoding='utf-8')
  text = textwrap.dedent(SHAPES).lstrip()
  (package / 'shapes.py').write_text(text, encoding='utf-8')
  undocumented = api.Api(package).undocumented()
  assert sorted(line.split(' ')[:2] for line in undocumented) == [
    ['pack/shapes.py:13:', 'pack.shapes.Square.colour'],
    ['pack/shapes.py:16:', 'pack.shapes.Square.area'],
    ['pack/shapes.py:18:', 'pack.shapes.Square.grow'],
  ]


def test_html_links_lists_broken_and_external_links(tmp_path):
  (tmp_path / 'api').mkdir()
  (tmp_path / 'index.html').write_text(
    '<a href="api/a.html#here">fine</a>\n'
    '<a href="api/a.html#there">no anchor</a>\n'
    '<a href="api/b.html">no page</a> <a href="https://example.com">not followed</a>\n'
    '<img src="picture.png">\n'
    '<script src="https://cdn.example.com/x.js"></script>\n'
  )
  (tmp_path / 'api' / 'a.html').write_text(
    '<h1 id="here"><a href="../index.html">up</a> <a href="#here">here</a></h1>\n'
    '<pre class="mermaid">graph</pre>'
  )
  assert html_links.problems(tmp_path) == [
    'api/a.html: a Mermaid diagram would load a script from elsewhere.',
    'index.html:2: <a> leads to api/a.html#there, which has no such anchor.',
    'index.html:3: <a> leads to api/b.html, which does not exist.',
    'index.html:4: <img> leads to picture.png, which does not exist.',
    'index.html:5: <script> loads https://cdn.example.com/x.js from another server.',
  ]


def test_every_page_is_in_navigation_once_and_names_its_readers():
  text = (ROOT / 'mkdocs.yml').read_text('utf-8')
  listed = re.findall(r'^ +- (?:\w+: )?(\S+\.md)$', text, re.MULTILINE)
  docs = ROOT / 'docs'
  pages = {path.relative_to(docs).as_posix() for path in docs.rglob('*.md')}
  assert sorted(listed) == sorted({*pages, 'index.md', 'programs.md', 'published.md'})
  generated = {'example_run/report.md', 'results/digits/table.md'}
  for page in pages - generated:
    first = (docs / page).read_text('utf-8').split('\n\n')[1]
    assert first.startswith('This page is for '), page


@pytest.mark.slow
def test_every_module_has_an_api_page():
  package = ROOT / 'tff_dp_aggregators'
  modules = set()
  for path in package.rglob('*.py'):
    parts = path.relative_to(ROOT).with_suffix('').parts
    if not any(part.startswith('_') and part != '__init__' for part in parts):
      modules.add('.'.join(part for part in parts if part != '__init__'))
  assert set(api.Api(package).pages) == modules

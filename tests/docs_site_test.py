"""What `make docs` refuses, and where names lead; to build the site takes too long."""

import pathlib
import re
import textwrap

import pytest

from tools.docs import api
from tools.docs import hooks
from tools.docs import html_links

ROOT = pathlib.Path(__file__).resolve().parents[1]

FILES = {
  '__init__.py': """
    '''Top.'''
    __all__ = ['shapes', 'draw']
    def __getattr__(name):
      raise AttributeError(name)
    """,
  'drawing.py': """
    '''Internal, but for what the package offers of it.'''
    from pack import shapes
    def draw(shape: shapes.Shape):
      '''Draws a `shape`, a `Shape`; see `shapes.Square.area`, `inner.help_out`.'''
    def helper():
      '''Helps.'''
    """,
  'shapes/__init__.py': """
    '''Shapes.'''
    from pack.shapes.square import Square
    from pack.shapes.square import Shape
    from pack.shapes.elsewhere import OrderedDict
    __all__ = ['Square', 'Shape', 'OrderedDict']
    """,
  'shapes/square.py': """
    '''Squares, as `Square` or in `shapes`.'''
    class Shape:
      '''Any shape.'''
      def area(self):
        '''Its area.'''
      def sides(self):
        '''How many sides it has.'''
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
    """,
  'shapes/elsewhere.py': """
    '''The one place that imports it.'''
    from collections import OrderedDict
    """,
  'inner.py': """
    '''Internal.'''
    LIMIT = 3
    def help_out():
      '''Likewise.'''
    def other():
      '''See `help_out`, but for numbers that are negative.'''
    def _private():
      pass
    """,
}


def _write(folder, files):
  for name, text in files.items():
    path = folder / 'pack' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip('\n'), encoding='utf-8')
  return folder / 'pack'


@pytest.fixture(scope='module')
def pack(tmp_path_factory):
  return api.Api(_write(tmp_path_factory.mktemp('docs'), FILES))


def test_names_without_a_docstring_that_says_something_are_found(pack):
  assert sorted(line.split(' ')[:2] for line in pack.undocumented()) == [
    ['pack/inner.py:3:', 'pack.inner.help_out'],
    ['pack/shapes/square.py:15:', 'pack.shapes.square.Square.colour'],
    ['pack/shapes/square.py:18:', 'pack.shapes.square.Square.area'],
    ['pack/shapes/square.py:20:', 'pack.shapes.square.Square.grow'],
  ]


@pytest.mark.parametrize(
  'docstring, nothing',
  [
    ('See `LowerToeplitz`; O(n d).', True),
    ('Likewise.', True),
    ('The same as `f`, squared and summed.', False),
  ],
)
def test_what_says_nothing(tmp_path, docstring, nothing):
  files = {'__init__.py': f'"""Top."""\ndef f():\n  """{docstring}"""\n'}
  assert bool(api.Api(_write(tmp_path, files)).undocumented()) == nothing


@pytest.mark.parametrize(
  'scope, text, target',
  [
    ('pack.drawing.draw', 'shape', None),  # An argument.
    ('pack.drawing.draw', 'Shape', 'pack.shapes.square.Shape'),
    ('pack.drawing.draw', 'shapes.Square.sides()', 'pack.shapes.square.Shape.sides'),
    ('pack.drawing.draw', 'inner.help_out(x)', 'pack.inner.help_out'),
    ('pack.drawing', 'area', None),  # Of what?
    ('pack.drawing', 'inner._private', None),
    ('pack', 'shapes/square.py', 'pack.shapes.square'),
    ('pack', 'shapes.Square.size', 'pack.shapes.square.Square'),
  ],
)
def test_what_a_name_in_backticks_means(pack, scope, text, target):
  found = pack.resolve(text, pack.found[scope])
  assert (found and found.path) == target


def test_links_leave_code_and_other_links_alone(pack):
  text = textwrap.dedent("""
    `draw` and [`draw`](x.md), ``a `draw` b``.

    ```python
    `draw`
    ```
    Example:
      >>> '`draw`'

    After it: `draw`, arXiv:2306.08153.
    """)
  link = '[`draw`][pack.drawing.draw]'
  paper = '[arXiv:2306.08153](https://arxiv.org/abs/2306.08153)'
  expected = text.replace('\n`draw` and', f'\n{link} and').replace(
    'it: `draw`, arXiv:2306.08153', f'it: {link}, {paper}'
  )
  assert pack.link(text, pack.found['pack']) == expected


def test_links_of_a_built_site_are_followed(tmp_path):
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


@pytest.mark.parametrize(
  'uri, target, expected',
  [
    ('index.md', 'docs/noise.md#seeds', 'noise.md#seeds'),
    ('index.md', 'docs/example_run/accuracy.png', 'example_run/accuracy.png'),
    ('contributing.md', 'README.md', 'index.md'),
    ('noise.md', '../tff_dp_aggregators/noise/streaming.py', 'api/noise/streaming.md'),
    ('noise.md', '../Makefile', 'files/Makefile'),
    ('noise.md', '../gone.py', '../gone.py'),
    ('noise.md', 'https://example.com/README.md', 'https://example.com/README.md'),
  ],
)
def test_links_to_files_of_the_repository_lead_to_pages(uri, target, expected):
  assert hooks.relinked(f'a [b]({target}).', uri) == f'a [b]({expected}).'


def test_every_page_is_in_the_navigation_once_and_says_for_whom_it_is():
  text = (ROOT / 'mkdocs.yml').read_text('utf-8')
  listed = re.findall(r'^ +- (?:\w+: )?(\S+\.md)$', text, re.MULTILINE)
  docs = ROOT / 'docs'
  pages = {path.relative_to(docs).as_posix() for path in docs.rglob('*.md')}
  assert sorted(listed) == sorted({*pages, 'index.md', 'programs.md', 'published.md'})
  made = {'example_run/report.md', 'results/digits/table.md'}
  for page in pages - made:
    first = (docs / page).read_text('utf-8').split('\n\n')[1]
    assert first.startswith('This page is for '), page


def test_every_module_has_a_page():
  package = ROOT / 'tff_dp_aggregators'
  modules = set()
  for path in package.rglob('*.py'):
    parts = path.relative_to(ROOT).with_suffix('').parts
    if not any(part.startswith('_') and part != '__init__' for part in parts):
      modules.add('.'.join(part for part in parts if part != '__init__'))
  assert set(api.Api(package).pages) == modules

"""MkDocs hooks: pages for README and its kin, for the API and for the programs.

Nothing is written twice. A link in README leads to a file of the repository; the site
has that file as a page, a module as its API page, and anything else as a copy.
"""

import functools
import html
import importlib
import inspect
import logging
import pathlib
import posixpath
import re
from typing import Any, Optional

from absl import flags
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from tff_dp_aggregators.accounting.programs import program
from tools.docs import api
from tools.docs import html_links

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = 'tff_dp_aggregators'
# Pages that are files of other folders: where they are on the site.
_ELSEWHERE = {'experiments/published/README.md': 'published.md'}
# What the theme does not have, by its name on the site.
ASSETS = {
  'assets/site.css': 'site.css',
  # Material's offline plugin loads one from elsewhere unless it finds this name.
  'assets/iframe-worker.js': 'file_worker.js',
}

# MkDocs counts what its loggers warn of, and with --strict ends with an error.
_LOG = logging.getLogger('mkdocs.hooks.docs')
_LINK = re.compile(r'(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=[)\s])')


@functools.cache
def _api() -> api.Api:
  return api.Api(ROOT / PACKAGE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the generated pages and sets the navigation."""
  for line in _api().undocumented():
    _LOG.warning(line)
  root_pages = {
    path.name: 'index.md' if path.name == 'README.md' else path.name.lower()
    for path in sorted(ROOT.glob('*.md'))
  }
  texts = {uri: (ROOT / name).read_text('utf-8') for name, uri in root_pages.items()}
  texts.update(
    (uri, (ROOT / name).read_text('utf-8')) for name, uri in _ELSEWHERE.items()
  )
  texts['api/index.md'] = _index()
  texts['programs.md'] = _programs()
  for page in _api().pages.values():
    texts[_uri(page)] = _module_page(page)
  guides = sorted(uri for uri in files.src_uris if uri.endswith('.md'))
  for uri, text in texts.items():
    files.append(File.generated(config, uri, content=text))
  for uri, name in ASSETS.items():
    text = (pathlib.Path(__file__).parent / name).read_text('utf-8')
    files.append(File.generated(config, uri, content=text))
  for path in sorted(_copied(texts, guides)):
    content = (ROOT / path).read_bytes()
    files.append(File.generated(config, f'files/{path}', content=content))
  # The pages of docs/ are in mkdocs.yml, by kind of reader.
  config.nav = [
    *config.nav,
    {'API': ['api/index.md', *_nav(public=True)]},
    {'Internals': _nav(public=False)},
    {'Project': [uri for name, uri in root_pages.items() if name != 'README.md']},
  ]
  return files


def on_page_markdown(
  markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
  """Turns links to files of the repository, and names, into links within the site."""
  uri = page.file.src_uri
  if uri.startswith('api/'):
    return markdown
  # A guide that is called like a layer speaks of what that layer offers.
  layer = _api().found.get(f'{PACKAGE}.{posixpath.splitext(uri)[0]}')
  return relinked(_api().link(markdown, layer or _api().package), uri)


def relinked(markdown: str, uri: str) -> str:
  """The text of a page, with links to files of the repository made those of the site.

  Args:
    markdown: The text, with links as the code host follows them.
    uri: Which page of the site it is.
  """
  source = _source(uri)

  def rewritten(match: re.Match) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
    target = _target(path)
    if target is None:
      return match[0]
    return posixpath.relpath(target, posixpath.dirname(uri) or '.') + (match[2] or '')

  return _LINK.sub(rewritten, markdown)


def on_post_build(config: MkDocsConfig) -> None:
  """Looks at what was built as a browser would."""
  for line in html_links.problems(pathlib.Path(config.site_dir)):
    _LOG.warning(line)


def _source(uri: str) -> str:
  """The file of the repository that a page shows."""
  if uri == 'index.md':
    return 'README.md'
  for path in ROOT.glob('*.md'):
    if path.name.lower() == uri:
      return path.name
  elsewhere = {page: name for name, page in _ELSEWHERE.items()}
  return elsewhere.get(uri, f'docs/{uri}')


def _target(path: str) -> Optional[str]:
  """The site's file for one of the repository, if there is one."""
  if path == 'README.md':
    return 'index.md'
  if path in _ELSEWHERE:
    return _ELSEWHERE[path]
  if path.startswith('docs/'):
    return path[len('docs/') :]
  if '/' not in path and path.endswith('.md'):
    return path.lower()
  if path.startswith(f'{PACKAGE}/'):
    name = path.removesuffix('.py').rstrip('/').replace('/', '.')
    page = _api().pages.get(name.removesuffix('.__init__'))
    if page is not None:
      return _uri(page)
  return f'files/{path}' if (ROOT / path).is_file() else None


def _copied(texts: dict[str, str], guides: list[str]) -> set[str]:
  """The files that pages link to and that are no pages themselves."""
  pages = {uri: text for uri, text in texts.items() if '/' not in uri}
  pages.update((uri, (ROOT / 'docs' / uri).read_text('utf-8')) for uri in guides)
  result = set()
  for uri, text in pages.items():
    folder = posixpath.dirname(_source(uri))
    for match in _LINK.finditer(text):
      path = posixpath.normpath(posixpath.join(folder, match[1]))
      if (_target(path) or '').startswith('files/'):
        result.add(path)
  return result


def _pages() -> list[api.Page]:
  """All pages of modules, the layers in the order in which the package names them."""
  layers = list(_api().exports[PACKAGE])

  def key(page: api.Page) -> tuple[int, str]:
    layer = _short(page.module.path).partition('.')[0]
    return (layers.index(layer) if layer in layers else -1, page.module.path)

  return sorted(_api().pages.values(), key=key)


def _uri(page: api.Page) -> str:
  parts = page.module.path.split('.')[1:]
  if page.module.is_init_module:
    return '/'.join(['api', *parts, 'index.md' if parts else 'package.md'])
  return '/'.join(['api', *parts]) + '.md'


def _short(path: str) -> str:
  return path.removeprefix(f'{PACKAGE}.')


def _nav(public: bool) -> list[Any]:
  """The pages of public or of other modules, with a section for each folder."""
  below: dict[str, list[api.Page]] = {}
  for page in _pages():
    below.setdefault(page.module.path.rpartition('.')[0], []).append(page)

  def entries(path: str) -> list[Any]:
    result: list[Any] = []
    for page in below.get(path, []):
      wanted = page.public == public
      inner = entries(page.module.path)
      own = [{page.module.name: _uri(page)}] if wanted else []
      if inner:
        # The first is the section's own page.
        result.append({page.module.name: [*([_uri(page)] if wanted else []), *inner]})
      else:
        result += own
    return result

  package = [{PACKAGE: _uri(_api().pages[PACKAGE])}] if public else []
  return package + entries(PACKAGE)


def _directive(path: str, **options: Any) -> str:
  lines = [f'::: {path}', '    options:']
  lines += [f'      {name}: {value}' for name, value in options.items()]
  return '\n'.join(lines) + '\n'


def _table(page: api.Page) -> str:
  """What a module offers, each with the first sentence of its docstring."""
  rows = []
  for name, item in page.exports.items():
    if isinstance(item, str):
      rows.append((f'`{name}`', f'From `{item.partition(".")[0]}`.'))
    elif _api().shown(item) is item:
      text = _api().link(api.summary(item), page.module)
      rows.append((f'[`{name}`][{item.path}]', text.replace('|', '\\|')))
  if not rows:
    return ''
  lines = [f'| {name} | {text} |' for name, text in rows]
  return '\n'.join(['| name | |', '|---|---|', *lines]) + '\n'


def _module_page(page: api.Page) -> str:
  path = page.module.path
  short = _short(path)
  # Whoever searches is more likely to want what is public.
  boost = 1 if page.public else 0.3
  parts = [f'---\ntitle: {short}\nsearch:\n  boost: {boost}\n---\n']
  parts.append(_directive(path, heading_level=1, heading=short, members='false'))
  if not page.public:
    parts.append('!!! note "Internal"\n    It may change without notice.\n')
  parts.append(_table(page))
  # As in the table, so that the page's contents are in its order.
  order = {name: place for place, name in enumerate(page.exports)}
  members = sorted(page.members, key=lambda obj: order.get(obj.name, len(order)))
  parts += [_directive(obj.path, heading_level=2) for obj in members]
  return '\n'.join(parts)


def _index() -> str:
  parts = [
    '# API\n',
    f'Everything that `{PACKAGE}` offers, layer by layer. A layer imports only those',
    'before it.\n',
  ]
  for page in _pages():
    if page.public and page.module.path != PACKAGE and _table(page):
      depth = page.module.path.count('.') + 1
      parts += [f'{"#" * depth} [`{_short(page.module.path)}`][{page.module.path}]\n']
      parts += [_table(page)]
  return '\n'.join(parts)


def _programs() -> str:
  """The flags of all programs, as they define them."""
  setup = (ROOT / 'setup.py').read_text('utf-8')
  modules = {}
  for name, module in re.findall(r"'([\w-]+) = ([\w.]+):\w+'", setup):
    # What is part of the package only where that is installed.
    module = module.replace(f'{PACKAGE}.experiments.', 'experiments.')
    if (ROOT / f'{module.replace(".", "/")}.py').is_file():
      modules[name] = module
  parts = [
    '# Programs and their flags\n',
    'This page is for those who look up a flag. In a checkout, the commands are in '
    '`.venv/bin`.\n',
  ]
  for name in sorted(modules):
    module = importlib.import_module(modules[name])
    summary = inspect.cleandoc(module.__doc__ or '').split('\n\n')[0]
    parts += [f'## `{name}`\n', summary + '\n', _flags(module.PROGRAM)]
  return '\n'.join(parts)


def _flags(of: program.Program) -> str:
  values = flags.FlagValues()
  program.define(values, of.groups())
  lines = []
  for name in values:
    flag = values[name]
    default = flag.default_as_str.strip("'") if flag.default_as_str else ''
    shown = f' (default `{default}`)' if default else ''
    # absl adds how to give a flag several times, after a semicolon.
    said = flag.help.partition(';\n')[0]
    meaning = re.sub(r'([\\`*_\[\]])', r'\\\1', html.escape(said))
    lines += [f'`--{name}`{shown}', f':   {" ".join(meaning.split())}', '']
  return '\n'.join(lines)

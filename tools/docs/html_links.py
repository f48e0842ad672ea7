"""Follows every link of a built site, and finds what a page loads from elsewhere."""

import dataclasses
import pathlib
from html import parser
from urllib import parse

# What a browser fetches by itself when it shows a page.
_LOADED = {'audio', 'embed', 'iframe', 'img', 'link', 'script', 'source', 'video'}


@dataclasses.dataclass
class _Link:
  line: int
  tag: str
  target: str


class _Reader(parser.HTMLParser):
  """Collects the links and the anchors of one page."""

  def __init__(self) -> None:
    super().__init__()
    self.links: list[_Link] = []
    self.anchors: set[str] = set()
    self.mermaid = False

  def handle_starttag(self, tag: str, attrs: list) -> None:
    values = dict(attrs)
    self.anchors.update(values[name] for name in ('id', 'name') if values.get(name))
    self.mermaid |= 'mermaid' in (values.get('class') or '').split()
    for name in ('href', 'src'):
      if values.get(name):
        self.links.append(_Link(self.getpos()[0], tag, values[name]))


def problems(site: pathlib.Path) -> list[str]:
  """Links that lead nowhere and files that would be loaded from other servers.

  Args:
    site: The folder of the built site.

  Returns:
    One sentence each, with the page and its line.
  """
  pages = {}
  for path in sorted(site.rglob('*.html')):
    reader = _Reader()
    reader.feed(path.read_text(encoding='utf-8'))
    pages[path.resolve()] = reader
  result = []
  for path, reader in pages.items():
    # Its links are absolute: it stands for any address that does not exist.
    if path.name == '404.html':
      continue
    name = path.relative_to(site.resolve())
    if reader.mermaid:
      result.append(f'{name}: a Mermaid diagram would load a script from elsewhere.')
    for link in reader.links:
      url = parse.urlsplit(link.target)
      place = f'{name}:{link.line}: <{link.tag}> '
      if url.scheme or url.netloc:
        if link.tag in _LOADED and url.scheme != 'data':
          result.append(f'{place}loads {link.target} from another server.')
        continue
      target = (path.parent / parse.unquote(url.path)).resolve() if url.path else path
      if not target.is_file():
        result.append(f'{place}leads to {link.target}, which does not exist.')
      elif url.fragment and target in pages:
        anchors = pages[target].anchors
        # As material's own links to the top of a page.
        if not {url.fragment, parse.unquote(url.fragment)} & {*anchors, '__skip'}:
          result.append(f'{place}leads to {link.target}, which has no such anchor.')
  return result

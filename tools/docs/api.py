"""What the package offers, read from its sources: nothing is imported.

Pages, names and links follow from the folders, from `__all__` and from what modules
define, so that no list has to be kept up when something moves.
"""

import ast
import dataclasses
import functools
import pathlib
import re
import tokenize
from collections.abc import Iterator
from typing import Optional, Union

import griffe

_Found = Union[griffe.Module, griffe.Class, griffe.Function, griffe.Attribute]

# What may stand in backticks and name something: `a.b`, and `a.b(c)` as well.
_NAME = re.compile(r'([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?')
_MODULE_FILE = re.compile(r'(?:[\w]+/)*\w+\.py')
# Code in single backticks; longer runs and links are matched to be passed over.
_CODE = re.compile(r'``.+?``|\[[^]]*\]\([^)]*\)|(?<![`\[\\])`([^`\n]+)`(?![`\]])')
_ARXIV = re.compile(r'(?<![\w/\[])arXiv:(\d{4}\.\d{4,5})')
_FOR_TOOLS = re.compile(r'# *(type:|noqa|fmt:|pylint:)')
_EXAMPLE = re.compile(r'^( *)Examples?:$')
_REFERRING = re.compile(r'(see|as|like|same as|likewise|ditto)\b', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Page:
  """One module's page.

  Attributes:
    module: The module.
    public: Whether users may rely on it: `__all__` leads there from the package.
    exports: What the module offers, by name; a string for what comes from elsewhere.
    members: What is written out on this page, in the order of the source.
  """

  module: griffe.Module
  public: bool
  exports: dict[str, Union[_Found, str]]
  members: list[_Found]


class Api:
  """The modules of a package, where each name is documented, and what names mean.

  Args:
    folder: The package's folder; its name is the package's.
  """

  def __init__(self, folder: pathlib.Path):
    loader = griffe.GriffeLoader(
      search_paths=[str(folder.parent)],
      allow_inspection=False,
      docstring_parser='google',
    )
    package = loader.load(folder.name)
    assert isinstance(package, griffe.Module)
    self._read(package)

  @classmethod
  def of(cls, package: griffe.Module) -> 'Api':
    """The same for a package that griffe has already loaded."""
    result = cls.__new__(cls)
    result._read(package)
    return result

  def _read(self, package: griffe.Module) -> None:
    self.package = package
    # The link to experiments/, whose programs have pages of their own.
    package.members.pop('experiments', None)
    self.modules = list(_modules(package))
    # All that is defined in the package, by path. Not found through members: a
    # function of a package may have the name of the module that defines it.
    self.found: dict[str, _Found] = {}
    for module in self.modules:
      self.found[module.path] = module
      for definition in _definitions(module):
        self.found[definition.path] = definition
        if isinstance(definition, griffe.Class):
          for member in _definitions(definition):
            self.found[member.path] = member
    for obj in self.found.values():
      _take_comment(obj)
    self.exports = {module.path: self._exports(module) for module in self.modules}
    public = {self.package.path}
    queue = [self.package]
    while queue:
      for item in self.exports[queue.pop().path].values():
        if isinstance(item, griffe.Module) and item.path not in public:
          public.add(item.path)
          queue.append(item)
    # Modules that are not public, but whose names a public one offers.
    self.homes: dict[str, str] = {}
    for path in sorted(public, key=lambda path: (path.count('.'), path)):
      for item in self.exports[path].values():
        if (
          not isinstance(item, (griffe.Module, str)) and item.module.path not in public
        ):
          self.homes.setdefault(item.path, path)
    self.pages = {
      module.path: Page(
        module, module.path in public, self.exports[module.path], self._members(module)
      )
      for module in self.modules
    }
    self._names: dict[str, list[str]] = {}
    for path in self.found:
      parts = path.split('.')
      for start in range(1, len(parts)):
        self._names.setdefault('.'.join(parts[start:]), []).append(path)

  def _exports(self, module: griffe.Module) -> dict[str, Union[_Found, str]]:
    names = _all(module)
    if names is None:
      return {
        obj.name: obj for obj in _definitions(module) if not obj.name.startswith('_')
      }
    result: dict[str, Union[_Found, str]] = {}
    for name in names:
      if name.startswith('__'):  # Python's, as `__version__`.
        continue
      # Before what lies below: a function may have the name of its module.
      if name in module.imports:
        path = self._origin(module.imports[name])
        result[name] = self._follow(path) or path
      else:
        below = self.found.get(f'{module.path}.{name}')
        lazy = self._nearest_below(module, name)
        if below is None and len(lazy) != 1:
          raise ValueError(
            f'{_place(module)}: __all__ has {name!r}, which the module neither imports '
            'nor defines, and which not exactly one module below it defines.'
          )
        result[name] = lazy[0] if below is None else below
    return result

  def _nearest_below(self, module: griffe.Module, name: str) -> list[_Found]:
    """What modules below define by a name: those in the module, or else deeper."""
    paths = [
      path
      for path in self.found
      if path.startswith(f'{module.path}.') and f'{path}.{name}' in self.found
    ]
    nearest = min((path.count('.') for path in paths), default=0)
    return [
      self.found[f'{path}.{name}'] for path in paths if path.count('.') == nearest
    ]

  def _origin(self, path: str) -> str:
    """Where something comes from that modules of the package import and pass on."""
    while path not in self.found:
      parent, _, name = path.rpartition('.')
      passed_on = self.found.get(parent)
      if not isinstance(passed_on, griffe.Module) or name not in passed_on.imports:
        break
      path = passed_on.imports[name]
    return path

  def _members(self, module: griffe.Module) -> list[_Found]:
    own = [self.found[path] for path, home in self.homes.items() if home == module.path]
    own += [
      obj
      for obj in _definitions(module)
      if not obj.name.startswith('_') and obj.path not in self.homes
    ]
    own = [obj for obj in own if not isinstance(obj, griffe.Attribute) or obj.docstring]
    return sorted(own, key=lambda obj: (str(obj.filepath), obj.lineno or 0))

  def _follow(self, path: str, depth: int = 10) -> Optional[_Found]:
    """What a dotted path means, through imports."""
    if path in self.found or not depth:
      return self.found.get(path)
    parent_path, _, name = path.rpartition('.')
    parent = self._follow(parent_path, depth - 1) if parent_path else None
    return None if parent is None else self._member(parent, name, depth - 1)

  def _member(self, obj: _Found, name: str, depth: int = 10) -> Optional[_Found]:
    if isinstance(obj, griffe.Module):
      exported = getattr(self, 'exports', {}).get(obj.path, {}).get(name)
      if exported is not None:
        return None if isinstance(exported, str) else exported
    member = obj.members.get(name)
    if isinstance(member, griffe.Alias):
      return self._follow(member.target_path, depth - 1) if depth else None
    if member is not None:
      return self.found.get(member.path)
    if isinstance(obj, griffe.Class):
      for base in self.bases(obj):
        inherited = self._member(base, name, depth - 1) if depth else None
        if inherited is not None:
          return inherited
    return None

  def bases(self, obj: griffe.Class) -> list[griffe.Class]:
    """Its base classes, those that the package defines."""
    paths = [getattr(base, 'canonical_path', str(base)) for base in obj.bases]
    bases = [self._follow(path) for path in paths]
    return [base for base in bases if isinstance(base, griffe.Class)]

  def shown(self, obj: Optional[_Found]) -> Optional[_Found]:
    """What has a place on the site and comes closest: a field's class, for example."""
    if obj is None or any(part.startswith('_') for part in obj.path.split('.')):
      return None
    if isinstance(obj, griffe.Module):
      return obj if obj.path in self.pages else None
    if obj.docstring is None:
      parent = obj.parent
      return self.shown(parent) if isinstance(parent, griffe.Class) else None
    return obj

  def page_of(self, obj: _Found) -> Page:
    """The page on which it is written out."""
    if isinstance(obj, griffe.Module):
      return self.pages[obj.path]
    parent = obj.parent
    if isinstance(parent, griffe.Class):
      return self.page_of(parent)
    return self.pages[self.homes.get(obj.path, obj.module.path)]

  def resolve(self, text: str, scope: _Found) -> Optional[_Found]:
    """What a name or file in backticks means in a docstring, if that is on the site.

    Args:
      text: What stands between the backticks.
      scope: What the docstring belongs to.

    Returns:
      Nothing for arguments and what cannot be told for certain.
    """
    if _MODULE_FILE.fullmatch(text):
      path = text[: -len('.py')].replace('/', '.')
      path = path.removesuffix('.__init__')
      if not path.startswith(f'{self.package.path}.'):
        path = f'{self.package.path}.{path}'
      return self.shown(self.found.get(path))
    match = _NAME.fullmatch(text)
    if match is None:
      return None
    name = match[1]
    first, _, rest = name.partition('.')
    if not rest and first in _arguments(scope):
      return None
    found = None
    for place in _places(scope):
      found = self._member(place, first)
      for part in rest.split('.') if rest else ():
        found = None if found is None else self._member(found, part)
      if found is not None:
        break
    else:
      if name == self.package.path or name.startswith(f'{self.package.path}.'):
        found = self._follow(name)
      elif rest or not name.islower():
        found = self._by_end(name)
    found = self.shown(found)
    # Saying in a class's own documentation where it is helps nobody.
    inside = (
      found is not None
      and not isinstance(found, griffe.Module)
      and f'{scope.path}.'.startswith(f'{found.path}.')
    )
    return None if inside else found

  def _by_end(self, name: str) -> Optional[_Found]:
    """The one thing whose path ends with a name, be it through a base class."""
    paths = self._names.get(name, [])
    if not paths and '.' in name:
      start, _, last = name.rpartition('.')
      parent = self._by_end(start)
      return None if parent is None else self._member(parent, last)
    public = [path for path in paths if self.page_of(self.found[path]).public] or paths
    return self.found[public[0]] if len(public) == 1 else None

  def link(self, text: str, scope: _Found) -> str:
    """Makes links of the names in backticks, and of papers, in a Markdown text."""

    def code(match: re.Match) -> str:
      found = self.resolve(match[1], scope) if match[1] else None
      return match[0] if found is None else f'[{match[0]}][{found.path}]'

    lines = []
    fence = example = None
    for line in text.split('\n'):
      indentation = len(line) - len(line.lstrip())
      if fence is None and line.lstrip().startswith('```'):
        fence = line[:indentation]
      elif fence is not None:
        fence = None if line.rstrip() == f'{fence}```' else fence
      elif example is not None and (not line or indentation > example):
        pass
      else:
        match = _EXAMPLE.match(line)
        example = len(match[1]) if match else None
        if not line.startswith(('#', '    $', '>>>')):
          line = _CODE.sub(code, line)
          line = _ARXIV.sub(r'[arXiv:\1](https://arxiv.org/abs/\1)', line)
      lines.append(line)
    return '\n'.join(lines)

  def markdown(self, docstring: str, scope: _Found) -> str:
    """A docstring with links, and its examples under the heading that griffe knows."""
    return re.sub(r'^Example:$', 'Examples:', self.link(docstring, scope), flags=re.M)

  def inherited(self, obj: griffe.Class) -> dict[str, list[_Found]]:
    """Public methods and properties that it does not write anew, by their class."""
    seen = set(obj.members)
    result: dict[str, list[_Found]] = {}
    queue = self.bases(obj)
    while queue:
      base = queue.pop(0)
      queue += self.bases(base)
      names: list[_Found] = [
        member
        for member in _definitions(base)
        if not member.name.startswith('_')
        and member.name not in seen
        and member.docstring
        and self.shown(base)
      ]
      seen.update(base.members)
      if names:
        result[base.path] = names
    return result

  def undocumented(self) -> list[str]:
    """Names whose docstring is missing, or refers elsewhere and says no more.

    Constants, and fields of classes, are looked at where a package exports them; a
    comment serves as their docstring, and so does a line in that of the class.

    Returns:
      One sentence each, which begins with the file and line.
    """
    result = []
    for obj in self.found.values():
      if any(part.startswith('_') for part in obj.path.split('.')):
        continue
      reason = None
      if obj.docstring is None:
        if not isinstance(obj, griffe.Attribute):
          reason = 'has no docstring'
        elif self._is_exported(obj) and not self._is_explained_field(obj):
          reason = 'has neither docstring nor comment'
      elif _says_nothing(obj.docstring.value):
        reason = f'only refers elsewhere: {obj.docstring.value!r}'
      if reason is not None:
        result.append(f'{_place(obj)}: {obj.path} {reason}.')
    return result

  def _is_exported(self, obj: _Found) -> bool:
    """Whether a package, and not a module alone, offers it, or the class of a field."""
    offered = obj.parent if isinstance(obj.parent, griffe.Class) else obj
    return any(
      offered is item
      for page in self.pages.values()
      if page.public and page.module.is_init_module
      for item in page.exports.values()
    )

  def _is_explained_field(self, obj: _Found) -> bool:
    """Whether it is a field that its class or a base class explains."""
    if not isinstance(obj.parent, griffe.Class):
      return False
    classes = [obj.parent]
    for cls in classes:
      classes += self.bases(cls)
      member = cls.members.get(obj.name)
      if _explains(cls, obj.name) or (member is not None and member.docstring):
        return True
    return False


def summary(obj: _Found) -> str:
  """The first sentence of its docstring."""
  if obj.docstring is None:
    return ''
  paragraph = ' '.join(obj.docstring.value.split('\n\n')[0].split())
  return re.split(r'(?<=\.)\s(?=[A-Z`*])', paragraph)[0]


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
  yield module
  for name, member in sorted(module.modules.items()):
    if isinstance(member, griffe.Module) and not name.startswith('_'):
      yield from _modules(member)


def _definitions(
  obj: Union[griffe.Module, griffe.Class],
) -> Iterator[Union[griffe.Class, griffe.Function, griffe.Attribute]]:
  """What it defines itself, private or not, without what the language defines."""
  for member in obj.members.values():
    if isinstance(member, (griffe.Class, griffe.Function, griffe.Attribute)):
      if not (member.name.startswith('__') and member.name.endswith('__')):
        yield member


def _all(module: griffe.Module) -> Optional[list[str]]:
  """`__all__` of a module, or nothing if it has none."""
  values: dict[str, list[str]] = {}
  for node in _tree(_file(module)).body:
    if isinstance(node, ast.Assign):
      items: list[str] = []
      listed = getattr(node.value, 'elts', None) or getattr(node.value, 'keys', [])
      for item in listed:  # A table's keys are names as well.
        if isinstance(item, ast.Starred) and isinstance(item.value, ast.Name):
          items += values.get(item.value.id, [])
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
          items.append(item.value)
      for target in node.targets:
        if isinstance(target, ast.Name):
          values[target.id] = items
  return values.get('__all__')


@functools.cache
def _tree(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text(encoding='utf-8'))


@functools.cache
def _comments(path: pathlib.Path) -> dict[int, tuple[str, bool]]:
  """Line, text, and whether nothing else is on the line, of each comment of a file."""
  with tokenize.open(str(path)) as file:
    return {
      token.start[0]: (token.string.lstrip('# '), not token.line.split('#')[0].strip())
      for token in tokenize.generate_tokens(file.readline)
      if token.type == tokenize.COMMENT and not _FOR_TOOLS.match(token.string)
    }


def _take_comment(obj: _Found) -> None:
  """Gives a constant or field the comment above or behind it as docstring."""
  if not isinstance(obj, griffe.Attribute) or obj.docstring or not obj.lineno:
    return
  if obj.name.startswith('_') or 'property' in obj.labels:
    return
  parent = obj.parent
  if isinstance(parent, griffe.Class) and _explains(parent, obj.name):
    return
  comments = _comments(_file(obj))
  lines: list[str] = []
  line = obj.lineno - 1
  while line in comments and comments[line][1]:
    lines.insert(0, comments[line][0])
    line -= 1
  if not lines and obj.lineno in comments:
    lines = [comments[obj.lineno][0]]
  if lines:
    obj.docstring = griffe.Docstring('\n'.join(lines), parent=obj, parser='google')


def _explains(cls: griffe.Class, name: str) -> bool:
  """Whether the docstring of a class has a line about a field."""
  text = cls.docstring.value if cls.docstring else ''
  return bool(re.search(rf'^ +{re.escape(name)}: ', text, re.MULTILINE))


def _arguments(obj: _Found) -> set[str]:
  if isinstance(obj, griffe.Function):
    return {parameter.name for parameter in obj.parameters}
  if isinstance(obj, griffe.Class):
    names = {parameter.name for parameter in obj.parameters}
    return names | {name for name, member in obj.members.items() if member.is_attribute}
  return set()


def _places(scope: _Found) -> Iterator[_Found]:
  """Where a name is looked up, nearest first."""
  place = scope
  while True:
    if not isinstance(place, (griffe.Function, griffe.Attribute)):
      yield place
    if place.parent is None:
      return
    place = place.parent


def _says_nothing(docstring: str) -> bool:
  """Whether nothing is left of a docstring without its references to others."""
  if _REFERRING.match(docstring) is None:
    return False
  rest = re.sub(r'`[^`]*`', ' ', docstring)
  rest = re.sub(_REFERRING.pattern + r'|\band\b|\bor\b', ' ', rest, flags=re.IGNORECASE)
  return len(re.findall(r'[A-Za-z]{2,}', rest)) < 3


def _file(obj: _Found) -> pathlib.Path:
  path = obj.filepath
  assert isinstance(path, pathlib.Path), path
  return path


def _place(obj: _Found) -> str:
  path = _file(obj)
  folder = path
  for _ in (
    obj.module.path.split('.')
    if not path.name.startswith('__init__')
    else (
      *obj.module.path.split('.'),
      '',
    )
  ):
    folder = folder.parent
  return f'{path.relative_to(folder)}:{obj.lineno or 1}'

"""Whether a report is what the JSON schema says.

It knows the keywords that the schema of reports uses, and no others.
"""

import re
from collections.abc import Iterator
from typing import Any, Optional

_TYPES: dict[str, tuple[type, ...]] = {
  'object': (dict,),
  'array': (list,),
  'string': (str,),
  'boolean': (bool,),
  'null': (type(None),),
  'integer': (int,),
  'number': (int, float),
}
# What a keyword that says nothing about a value may be.
_SAID_ONLY = {'$schema', '$id', '$defs', 'title', 'description'}
_CHECKED = {
  '$ref', 'type', 'const', 'enum', 'oneOf', 'anyOf', 'pattern', 'minimum', 'maximum',
  'exclusiveMinimum', 'exclusiveMaximum', 'items', 'minItems', 'maxItems', 'required',
  'properties', 'additionalProperties',
}  # fmt: skip
_KNOWN = _SAID_ONLY | _CHECKED


def violations(
  value: Any, schema: dict[str, Any], path: str = '', root: Optional[dict] = None
) -> Iterator[str]:
  """Where a value is not what a JSON schema says.

  Args:
    value: What `json.loads` returned.
    schema: A schema, or a part of `root`.
    path: Name of the value, for messages; empty for the whole.
    root: What `$ref` refers to; `schema` itself if `None`.

  Yields:
    A line for each violation, with the name of the value.

  Raises:
    ValueError: If the schema has a keyword that is not known here.

  Example:
    >>> list(violations({'a': 'b'}, {'properties': {'a': {'type': 'integer'}}}))
    ["a is 'b', which is no integer"]
  """
  root = schema if root is None else root
  if not schema.keys() <= _KNOWN:
    unknown = set(schema) - _KNOWN
    raise ValueError(f'this schema needs keywords that are not known: {unknown}.')
  if '$ref' in schema:
    referred = root['$defs'][schema['$ref'].split('/')[-1]]
    yield from violations(value, referred, path, root)
  name = path or 'the report'
  types = schema.get('type', [])
  types = [types] if isinstance(types, str) else types
  if types and not any(_is(value, each) for each in types):
    yield f'{name} is {value!r}, which is no {" or ".join(types)}'
    return
  if 'const' in schema and not _equal(value, schema['const']):
    yield f'{name} is {value!r}, not {schema["const"]!r}'
  if 'enum' in schema and not any(_equal(value, each) for each in schema['enum']):
    yield f'{name} is {value!r}, not one of {schema["enum"]}'
  for keyword in ('oneOf', 'anyOf'):
    if keyword in schema:
      yield from _of_alternatives(value, schema[keyword], path, root, keyword)
  if _is(value, 'number'):
    yield from _of_number(value, schema, name)
  elif isinstance(value, str):
    if not re.search(schema.get('pattern', ''), value):
      yield f'{name} is {value!r}, which does not match {schema["pattern"]}'
  elif isinstance(value, list):
    yield from _of_array(value, schema, path, root)
  elif isinstance(value, dict):
    yield from _of_object(value, schema, path, root)


def _is(value: Any, name: str) -> bool:
  """Whether a value is of a type; true and false are no numbers."""
  if isinstance(value, bool):
    return name == 'boolean'
  return isinstance(value, _TYPES[name])


def _equal(value: Any, other: Any) -> bool:
  return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _of_alternatives(
  value: Any, alternatives: list[dict], path: str, root: dict, keyword: str
) -> Iterator[str]:
  fitting = sum(
    next(violations(value, each, path, root), None) is None for each in alternatives
  )
  if not fitting:  # What it comes closest to is what it was meant to be.
    found = [list(violations(value, each, path, root)) for each in alternatives]
    yield from min(found, key=len)
  elif fitting > 1 and keyword == 'oneOf':
    yield f'{path or "the report"} fits {fitting} alternatives, not one'


def _of_number(value: float, schema: dict[str, Any], name: str) -> Iterator[str]:
  bounds = (
    ('minimum', 'at least', lambda limit: value >= limit),
    ('exclusiveMinimum', 'above', lambda limit: value > limit),
    ('maximum', 'at most', lambda limit: value <= limit),
    ('exclusiveMaximum', 'below', lambda limit: value < limit),
  )
  for keyword, words, keeps in bounds:
    if keyword in schema and not keeps(schema[keyword]):
      yield f'{name} is {value!r}, not {words} {schema[keyword]}'


def _of_array(
  value: list, schema: dict[str, Any], path: str, root: dict
) -> Iterator[str]:
  least, most = schema.get('minItems', 0), schema.get('maxItems', len(value))
  if not least <= len(value) <= most:
    yield f'{path or "the report"} has {len(value)} entries'
  if 'items' in schema:
    for index, each in enumerate(value):
      yield from violations(each, schema['items'], f'{path}[{index}]', root)


def _of_object(
  value: dict[str, Any], schema: dict[str, Any], path: str, root: dict
) -> Iterator[str]:
  known = schema.get('properties', {})
  others = schema.get('additionalProperties', {})
  inner = f'{path}.' if path else ''
  for key in schema.get('required', []):
    if key not in value:
      yield f'{inner}{key} is missing'
  for key, each in value.items():
    if key in known:
      yield from violations(each, known[key], f'{inner}{key}', root)
    elif others is False:
      yield f'{inner}{key} is in no report'
    else:
      yield from violations(each, others, f'{inner}{key}', root)

"""Whether values are what a JSON schema says; knows the keywords that ours uses."""

import re

_TYPES = {
  'object': dict,
  'array': list,
  'string': str,
  'boolean': bool,
  'null': type(None),
}
_CHECKED = {
  '$schema', '$id', '$defs', '$ref', 'title', 'description', 'type', 'const', 'enum',
  'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'pattern', 'items',
  'minItems', 'maxItems', 'required', 'properties', 'additionalProperties', 'oneOf',
  'anyOf',
}  # fmt: skip


def violations(value, schema, path='report', root=None):
  """Where a value breaks a JSON schema, or a part of the one that is `root`."""
  root = schema if root is None else root
  assert set(schema) <= _CHECKED, schema
  if '$ref' in schema:
    referred = root['$defs'][schema['$ref'].split('/')[-1]]
    yield from violations(value, referred, path, root)
  types = schema.get('type', [])
  types = [types] if isinstance(types, str) else types
  if types and not any(_is(value, each) for each in types):
    yield f'{path} is {value!r}, not of type {types}'
  if 'const' in schema and value != schema['const']:
    yield f'{path} is {value!r}, not {schema["const"]!r}'
  if 'enum' in schema and value not in schema['enum']:
    yield f'{path} is {value!r}, not one of {schema["enum"]}'
  for keyword, number in (('oneOf', 1), ('anyOf', None)):
    if keyword in schema:
      fits = [not list(violations(value, each, path, root)) for each in schema[keyword]]
      if sum(fits) != number and not (number is None and any(fits)):
        yield f'{path} fits {sum(fits)} of {keyword}'
  if _is(value, 'number'):
    yield from _number_violations(value, schema, path)
  if isinstance(value, str) and not re.search(schema.get('pattern', ''), value):
    yield f'{path} is {value!r}'
  if isinstance(value, list):
    if not schema.get('minItems', 0) <= len(value) <= schema.get('maxItems', 10**9):
      yield f'{path} has {len(value)} items'
    for each in value:
      yield from violations(each, schema.get('items', {}), f'{path}[]', root)
  if isinstance(value, dict):
    yield from _object_violations(value, schema, path, root)


def _is(value, name):
  if name in ('number', 'integer'):
    kinds = (int, float) if name == 'number' else int
    return isinstance(value, kinds) and not isinstance(value, bool)
  return isinstance(value, _TYPES[name])


def _number_violations(value, schema, path):
  if not (
    schema.get('minimum', value) <= value <= schema.get('maximum', value)
    and value != schema.get('exclusiveMinimum')
    and schema.get('exclusiveMinimum', value) <= value
    and value != schema.get('exclusiveMaximum')
    and value <= schema.get('exclusiveMaximum', value)
  ):
    yield f'{path} is {value}'


def _object_violations(value, schema, path, root):
  known = schema.get('properties', {})
  others = schema.get('additionalProperties', {})
  for key in schema.get('required', []):
    if key not in value:
      yield f'{path} lacks {key}'
  for key, each in value.items():
    if key in known:
      yield from violations(each, known[key], f'{path}.{key}', root)
    elif others is False:
      yield f'{path} has an unknown {key}'
    else:
      yield from violations(each, others, f'{path}.{key}', root)

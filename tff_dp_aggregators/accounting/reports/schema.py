"""The JSON schema of reports.

It is made from the structs of `model` and from the registries of mechanisms, their
options, schemes of participation and accountants. `tff-dp-report --schema` prints it.
"""

import copy
import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.strategies import registry


def load() -> dict[str, Any]:
  """Returns the JSON schema (draft 2020-12) of all reports."""
  refs, definitions = msgspec.json.schema_components(
    model.REPORTS, ref_template='#/$defs/{name}'
  )
  comments = list(_comments())
  for name, each in definitions.items():
    struct = getattr(model, name)
    each['description'] = ' '.join((inspect.getdoc(struct) or '').split())
    bases = {base.__name__ for base in struct.__mro__}
    for base, field, text in comments:
      if base in bases and field in each['properties']:
        each['properties'][field]['description'] = text
    each['properties'].pop('registered', None)
    # Reports have all fields, also those with a default, except fields that are unset.
    fields = msgspec.structs.fields(struct)
    unset = {field.encode_name for field in fields if field.default is msgspec.UNSET}
    each['required'] = [field for field in each['properties'] if field not in unset]
  _add_mechanisms(definitions)
  _add_schemas(definitions)
  _add_accountants(definitions)
  definitions['NoGuarantee']['properties']['is_private']['enum'] = [False]
  definitions['Software']['additionalProperties'] = {'type': 'string'}
  composed = definitions['Composition']['properties']['parts']
  composed['items'] = {'anyOf': list(refs[:3])}
  return {
    '$schema': 'https://json-schema.org/draft/2020-12/schema',
    '$id': f'urn:tff_dp_aggregators:privacy_report:{model.VERSION}',
    'title': 'Privacy report of tff_dp_aggregators',
    'description': 'A differential privacy guarantee with everything it rests on. '
    'Infinite numbers are null.',
    'anyOf': list(refs),
    '$defs': definitions,
  }


def _comments() -> Iterator[tuple[str, str, str]]:
  """Yields struct, field and the comment above or behind it, for fields of `model`."""
  struct, above = '', ''
  for line in inspect.getsource(model).splitlines():
    code, _, comment = line.partition('  # ')
    text = f'{above} {comment}'.strip()
    if code.startswith('class '):
      struct = code[len('class ') : code.index('(')]
    elif field := re.match(r'  (\w+): ', code):
      if text and not text.startswith('type: '):
        yield struct, field[1], text
      text = ''
    above = '' if code else text


def _add_mechanisms(definitions: dict[str, Any]) -> None:
  """Adds the names of mechanisms and the fields of their options."""
  names = [*mechanism_lib.names(), mechanism_lib.FROM_FILE]
  options: dict[str, Any] = {}
  for name, by_kind in registry.options().items():
    texts = {kind: f'{each.title}, {each.meaning}' for kind, each in by_kind.items()}
    options[name] = {
      'description': f'{registry.describe(texts)} Null for others.',
      'type': ['integer', 'null'],
    }
  for name, option in terms.OPTIONS.items():
    options[name] = {
      'description': f'{option.title}: {option.meaning}. Null for others.',
      'type': ['integer', 'null'],
      'minimum': 1,
    }
  for each in (definitions['Mechanism'], definitions['Part']):
    each['properties'].update(options)
    each['properties']['name']['enum'] = names
    each['properties']['noise_site']['enum'] = list(noises.PLACEMENTS)
    each['required'] += options


def _add_schemas(definitions: dict[str, Any]) -> None:
  """Makes `participation` a choice of one form for each scheme."""
  common = definitions['Participation']
  forms = []
  for scheme in sampling.SCHEMES.values():
    form = copy.deepcopy(common)
    numbers = {
      scheme.json_names.get(field.name, field.name): _number(field)
      for field in dataclasses.fields(scheme.data)
      if field.name != 'num_rounds'
    }
    form['properties'].update(numbers)
    form['properties']['schema']['const'] = scheme.name
    form['required'] = list(dict.fromkeys([*common['required'], *numbers]))
    forms.append({**form, 'description': f'As of --sampling={scheme.flag}.'})
  definitions['Participation'] = {'description': common['description'], 'anyOf': forms}


def _number(field: dataclasses.Field[Any]) -> dict[str, Any]:
  """The JSON schema of a scheme's field: a count, a probability or a boolean."""
  field_schema = {'description': f'As the flag, or argument, {field.name}.'}
  if 'bool' in str(field.type):
    return {**field_schema, 'type': 'boolean'}
  if 'float' in str(field.type):
    return {**field_schema, 'type': 'number', 'exclusiveMinimum': 0, 'maximum': 1}
  return {**field_schema, 'type': 'integer', 'minimum': 1}


def _add_accountants(definitions: dict[str, Any]) -> None:
  """Adds the names of accountants and their fields in guarantees."""
  names = list(accountants.ACCOUNTANTS)
  for name, field, known in (
    ('Guarantee', 'accountant', names),
    ('AccountantsEpsilon', 'name', names),
    ('OtherGuarantee', 'accountant', names),
    ('VerificationInputs', 'accountant', [*names, None]),
    ('InputsWithoutPrivacy', 'accountant', [*names, None]),
  ):
    definitions[name]['properties'][field]['enum'] = known
  guarantee = definitions['Guarantee']
  for name in terms.IN_GUARANTEE:
    title = terms.of_accountant(name).title
    guarantee['required'].append(f'epsilon_{name}')
    guarantee['properties'][f'epsilon_{name}'] = {
      'description': f'By {title}; null where not computed, or infinite.',
      'type': ['number', 'null'],
    }

"""The JSON schema of reports.

It is made from the structs of `model` and from the registries of mechanisms, their
options, schemes of participation and accountants. `tff-dp-report --schema` prints it.
"""

import dataclasses
import inspect
import itertools
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

# JSON types of the fields of schemes, by what their types in Python have.
_TYPES = {'bool': 'boolean', 'float': 'number', 'int': 'integer'}


def load() -> dict[str, Any]:
  """Returns the JSON schema (draft 2020-12) of all reports."""
  refs, definitions = msgspec.json.schema_components(
    (*model.REPORTS, *model.MECHANISMS), ref_template='#/$defs/{name}'
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
  reports, mechanisms = refs[: len(model.REPORTS)], refs[len(model.REPORTS) :]
  definitions['Private']['properties']['mechanism'] = {'anyOf': list(mechanisms)}
  definitions['Private']['properties']['parts']['items'] = reports[0]
  definitions['Software']['additionalProperties'] = {'type': 'string'}
  _add_mechanisms(definitions)
  _add_schemes(definitions)
  _add_accountants(definitions)
  return {
    '$schema': 'https://json-schema.org/draft/2020-12/schema',
    '$id': f'urn:tff_dp_aggregators:privacy_report:{model.VERSION}',
    'title': 'Privacy report of tff_dp_aggregators',
    'description': 'A differential privacy guarantee with everything it rests on. '
    'Infinite numbers are null.',
    'anyOf': list(reports),
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
      if text:
        yield struct, field[1], text
      text = ''
    above = '' if code else text


def _add_mechanisms(definitions: dict[str, Any]) -> None:
  texts = {
    name: registry.describe(
      {kind: f'{each.title}, {each.meaning}' for kind, each in by_kind.items()}
    )
    for name, by_kind in registry.options().items()
  }
  texts |= {name: f'{o.title}: {o.meaning}.' for name, o in terms.OPTIONS.items()}
  names = [*mechanism_lib.names(), mechanism_lib.FROM_FILE]
  for each in (definitions['Mechanism'], definitions['Part']):
    for name, text in texts.items():
      _add(each, name, f'{text} Null for others.', 'integer')
    # Options of kinds that are registered where a report was made are null for others.
    each['additionalProperties'] = {'type': 'null'}
    each['properties']['name']['enum'] = names
    each['properties']['noise_site']['enum'] = list(noises.PLACEMENTS)


def _add(definition: dict[str, Any], name: str, description: str, type: str) -> None:
  added = {'description': description, 'type': [type, 'null']}
  definition['properties'][name] = added
  definition['required'].append(name)


def _add_schemes(definitions: dict[str, Any]) -> None:
  """Makes `participation` a choice of one form for each scheme."""
  common, forms = definitions['Participation'], []
  for scheme in sampling.SCHEMES.values():
    numbers = {
      scheme.json_names.get(field.name, field.name): {
        'description': f'As the flag, or argument, {field.name}.',
        'type': next(v for k, v in _TYPES.items() if k in str(field.type)),
      }
      for field in dataclasses.fields(scheme.data)
      if field.name != 'num_rounds'
    }
    properties = {**common['properties'], **numbers, 'schema': {'const': scheme.name}}
    forms.append(
      {
        **common,
        'description': f'As of --sampling={scheme.flag}.',
        'properties': properties,
        'required': list(dict.fromkeys([*common['required'], *numbers])),
      }
    )
  definitions['Participation'] = {'description': common['description'], 'anyOf': forms}


def _add_accountants(definitions: dict[str, Any]) -> None:
  for name, field in (
    ('Guarantee', 'accountant'),
    ('AccountantsEpsilon', 'name'),
    ('OtherGuarantee', 'accountant'),
    ('VerificationInputs', 'accountant'),
  ):
    known = [*accountants.ACCOUNTANTS, *([None] if name.endswith('Inputs') else [])]
    definitions[name]['properties'][field]['enum'] = known
  for name in terms.IN_GUARANTEE:
    title = terms.of_accountant(name).title
    text = f'By {title}; null where not computed, or infinite.'
    _add(definitions['Guarantee'], f'epsilon_{name}', text, 'number')


def violations(report: Any) -> Iterator[str]:
  """Yields a line for each violation of the JSON schema by a value."""
  import jsonschema  # Imported here as only reading a report needs it.

  draft = jsonschema.Draft202012Validator
  # A float with an integral value is not an integer: reports write integers as such.
  types = draft.TYPE_CHECKER.redefine('integer', lambda _, value: type(value) is int)
  validator = jsonschema.validators.extend(draft, type_checker=types)
  mechanism = report.get('mechanism') if isinstance(report, dict) else None
  kind = 'WithoutPrivacy'
  if isinstance(mechanism, dict):
    kind = 'Nbafl' if mechanism.get('name') == 'nbafl' else 'Private'
  own = {'$defs': load()['$defs'], '$ref': f'#/$defs/{kind}'}
  for each in validator(own).iter_errors(report):
    for error in _of_closest_form(each):
      yield f'{error.json_path.lstrip("$.") or "the report"}: {error.message:.300}'


def _of_closest_form(error: Any) -> Iterator[Any]:
  """The error; of a value of several forms, those of the form it violates least."""
  if not error.context:
    yield error
    return
  by_form = itertools.groupby(error.context, lambda each: each.schema_path[0])
  for each in min((list(errors) for _, errors in by_form), key=len):
    yield from _of_closest_form(each)

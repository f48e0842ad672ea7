"""The JSON schema of reports.

What follows from registries is put in when the schema is loaded: mechanisms and their
options, participation schemas with their numbers, accountants. All else is in
`report_schema.json`. The whole is printed by
`python -m tff_dp_aggregators.accounting.report --schema`.
"""

import json
import pathlib
from typing import Any

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.reports import other_guarantees
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.strategies import registry

_PATH = pathlib.Path(__file__).parent / 'report_schema.json'


def load() -> dict[str, Any]:
  """The schema (draft 2020-12) of every report that `statement` makes.

  Example:
    >>> 'tree' in load()['$defs']['mechanism']['properties']['name']['enum']
    True
    >>> load()['$defs']['guarantee']['properties']['accountant']['enum']
    ['exact', 'pld', 'prv', 'rdp', 'zcdp', 'monte_carlo']
  """
  schema: dict[str, Any] = json.loads(_PATH.read_text(encoding='utf-8'))
  definitions = schema['$defs']
  _add_mechanisms(definitions)
  _add_schemas(definitions)
  _add_joint(schema)
  _add_accountants(definitions)
  return schema


def _add_mechanisms(definitions: dict[str, Any]) -> None:
  """Names of mechanisms, and the fields of their options."""
  mechanism = definitions['mechanism']
  names = [*mechanism_lib.names(), mechanism_lib.FROM_FILE]
  mechanism['properties']['name']['enum'] = names
  for name, by_kind in registry.options().items():
    said = {kind: f'{each.title}, {each.meaning}' for kind, each in by_kind.items()}
    mechanism['properties'][name] = {
      'description': f'{registry.describe(said)} Null for others.',
      'type': ['integer', 'null'],
    }
    mechanism['required'].append(name)
  for name, option in terms.OPTIONS.items():
    mechanism['properties'][name] = {
      'description': f'{option.title}: {option.meaning}. Null for others.',
      'type': ['integer', 'null'],
      'minimum': 1,
    }
    mechanism['required'].append(name)
  mechanism['properties']['noise_site']['enum'] = list(sites.SITES)


def _add_joint(schema: dict[str, Any]) -> None:
  """Reports of joint mechanisms, which say of each part what others say of all."""
  definitions = schema['$defs']
  mechanism, part = definitions['mechanism'], definitions['part']
  definitions['part'] = {
    **part,
    'required': [*part['required'], *mechanism['required']],
    'properties': {**part['properties'], **mechanism['properties']},
  }
  single = definitions['single']
  of_joint = {'mechanism': {'$ref': '#/$defs/joint_mechanism'}}
  definitions['joint'] = {
    **single,
    'description': 'A joint mechanism, or one run of it.',
    'properties': {**single['properties'], **of_joint},
  }
  composed = definitions['composition']['properties']['parts']['items']
  for each in (schema, composed):
    each['oneOf'] = [*each['oneOf'], {'$ref': '#/$defs/joint'}]


def _add_schemas(definitions: dict[str, Any]) -> None:
  """One form of `participation` for each kind of schema."""
  every = definitions['participation']
  forms = []
  for kind in schemas.KINDS.values():
    name = {**every['properties']['schema'], 'type': 'string', 'const': kind.name}
    form = {
      **every,
      'description': kind.description,
      'required': list(dict.fromkeys([*every['required'], *kind.properties])),
      'properties': {**every['properties'], **kind.properties, 'schema': name},
    }
    forms.append(form)
  definitions['participation'] = {'description': every['description'], 'oneOf': forms}


def _add_accountants(definitions: dict[str, Any]) -> None:
  """Names of accountants, and the fields that some have in every guarantee."""
  guarantee = definitions['guarantee']
  names = list(accountants.ACCOUNTANTS)
  guarantee['properties']['accountant']['enum'] = names
  listed = guarantee['properties']['accountants']['items']
  listed['properties']['name']['enum'] = names
  other = definitions['other_guarantee']['properties']
  other['accountant']['enum'] = names
  other['against']['enum'] = list(other_guarantees.AGAINST)
  definitions['asked_accountant']['enum'] = [*names, None]
  for name in names:
    entry = terms.of_accountant(name)
    if entry.in_guarantee:
      field = f'epsilon_{name}'
      guarantee['required'].append(field)
      guarantee['properties'][field] = {
        'description': f'By {entry.title}; null where not computed, or infinite.',
        'type': ['number', 'null'],
      }

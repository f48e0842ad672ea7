"""The JSON schema of reports.

What follows from the kinds of strategies, the names of mechanisms and their options, is
put in when the schema is loaded; all else is in `report_schema.json`. The whole is
printed by `python -m tff_dp_aggregators.accounting.report --schema`.
"""

import json
import pathlib
from typing import Any

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.strategies import registry

_PATH = pathlib.Path(__file__).parent / 'report_schema.json'


def load() -> dict[str, Any]:
  """The schema of every report that `statement` makes.

  Example:
    >>> 'tree' in load()['$defs']['mechanism']['properties']['name']['enum']
    True
  """
  schema = json.loads(_PATH.read_text(encoding='utf-8'))
  mechanism = schema['$defs']['mechanism']
  names = [*mechanism_lib.NAMES, mechanism_lib.FROM_FILE]
  mechanism['properties']['name']['enum'] = names
  for name, by_kind in registry.options().items():
    said = {kind: f'{each.title}, {each.meaning}' for kind, each in by_kind.items()}
    mechanism['properties'][name] = {
      'description': f'{registry.describe(said)} Null for others.',
      'type': ['integer', 'null'],
    }
    mechanism['required'].append(name)
  return schema

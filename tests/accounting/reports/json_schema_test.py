"""The package's check of JSON schemas finds what another one finds.

That in `tests.json_schema` was written apart from it.
"""

import copy
import json

import pytest

from tests import json_schema as other
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import json_schema
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import statement

SCHEMA = schema_lib.load()


@pytest.mark.parametrize(
  'schema, right, wrong',
  [
    ({'type': 'integer'}, [0, -3], [1.0, True, '1', None]),
    ({'type': 'number'}, [0, 1.5], [False, '1', None, [1]]),
    ({'type': ['string', 'null']}, ['', None], [0, False, {}]),
    ({'type': 'boolean'}, [True], [1, 0, None]),
    ({'const': 1}, [1], [True, 2, '1']),
    ({'enum': ['a', None, 0]}, ['a', None, 0], ['b', False, 1]),
    ({'minimum': 1}, [1, 2.5, 'text'], [0.9]),
    ({'exclusiveMinimum': 1}, [1.1], [1, 0]),
    ({'maximum': 1}, [1], [1.1]),
    ({'exclusiveMaximum': 1}, [0], [1]),
    ({'pattern': '^a+$'}, ['a', 'aa', 3], ['', 'ab']),
    ({'items': {'type': 'null'}, 'minItems': 1, 'maxItems': 2}, [[None]], [[], [1]]),
    ({'maxItems': 1}, [[], [1]], [[1, 1]]),
    ({'required': ['a']}, [{'a': None}, []], [{}, {'b': 1}]),
    (
      {'properties': {'a': {'type': 'null'}}, 'additionalProperties': False},
      [{}, {'a': None}],
      [{'a': 1}, {'b': None}],
    ),
    ({'additionalProperties': {'type': 'null'}}, [{'a': None}], [{'a': 1}]),
    ({'anyOf': [{'minimum': 1}, {'maximum': 2}]}, [0, 1.5, 3], []),
    ({'oneOf': [{'minimum': 1}, {'maximum': 2}]}, [0, 3], [1.5]),
    ({'oneOf': [{'type': 'null'}, {'type': 'string'}]}, [None, ''], [1]),
    ({'$defs': {'n': {'type': 'null'}}, '$ref': '#/$defs/n'}, [None], [0]),
  ],
  ids=str,
)
def test_every_keyword_is_checked(schema, right, wrong):
  for value in right:
    assert list(json_schema.violations(value, schema)) == [], value
  for value in wrong:
    assert list(json_schema.violations(value, schema)), value


def test_a_keyword_that_is_not_known_is_an_error():
  with pytest.raises(ValueError, match='uniqueItems'):
    list(json_schema.violations([], {'uniqueItems': True}))


def test_violations_name_the_value_in_the_alternative_it_comes_closest_to():
  mechanism = accounting.Mechanism('tree', strategies.Participation(12, 4), 5.0)
  built = statement.build(reports.Inputs(mechanism, 1e-6), with_curves=False)
  assert list(json_schema.violations(built, SCHEMA)) == []
  built['guarantee']['accountants'][0]['epsilon'] = '8'
  del built['participation']['assumed_at_most']
  built['extra'] = 1
  assert set(json_schema.violations(built, SCHEMA)) == {
    "guarantee.accountants[0].epsilon is '8', which is no number or null",
    'participation.assumed_at_most is missing',
    'extra is in no report',
  }
  assert list(json_schema.violations([], SCHEMA)) == [
    'the report is [], which is no object'
  ]


def _changes(value):
  """Values with one place replaced by something else, added to, or taken away."""
  if isinstance(value, (dict, list)):
    for key in list(value) if isinstance(value, dict) else range(len(value)):
      for changed in _changes(value[key]):
        copied = copy.copy(value)
        copied[key] = changed
        yield copied
      copied = copy.copy(value)
      del copied[key]
      yield copied
    yield {**value, 'added': 1} if isinstance(value, dict) else [*value, {}]
  yield from (None, -1, [])


def test_it_finds_what_the_other_one_finds():
  limits = strategies.Participation(12, 4, max_participations=2)
  mechanism = accounting.Mechanism('gaussian', limits, 5.0)
  single = statement.build(reports.Inputs(mechanism, 1e-6), with_curves=False)
  single = json.loads(json.dumps(single))
  found = 0
  for changed in _changes(single):
    ours = bool(list(json_schema.violations(changed, SCHEMA)))
    assert ours == bool(list(other.violations(changed, SCHEMA))), changed
    found += ours
  assert found > 300

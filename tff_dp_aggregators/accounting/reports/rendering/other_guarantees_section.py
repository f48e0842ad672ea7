"""What a report says of what else the same noise guarantees."""

from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting.reports import other_guarantees
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.base import rounding

_CHANGES = {
  'zero_out': 'its contributions are replaced by zeros',
  'add_or_remove': 'it is there or not',
  'replace_one': 'its data are replaced by any others',
}
_INTRO = (
  'Clients make the noise, so that one number is not all. Of the same noise these hold '
  'as well, each for one client in all its rounds:'
)


def usual_local(statement: dict[str, Any]) -> Iterator[document.Paragraph]:
  """What local differential privacy mostly means, where the guarantee is another.

  Args:
    statement: As `statement.build` or `compose` returned it.
  """
  for each in statement['other_guarantees']:
    if (each['against'], each['adjacency']) == ('everybody', 'replace_one'):
      yield document.Paragraph(
        'Local differential privacy is mostly stated for any two data of a client. '
        f'That is epsilon = {rounding.up(each["epsilon"])} at the same delta, of the '
        'same noise (what else holds, below).'
      )


def sections(statement: dict[str, Any]) -> Iterator[document.Section]:
  """The section, if there is anything to say.

  Args:
    statement: As `statement.build` or `compose` returned it.
  """
  stated = statement['other_guarantees']
  if not stated:
    return
  delta = rounding.exact(stated[0]['delta'])
  rows = tuple(
    (
      other_guarantees.AGAINST[each['against']],
      _CHANGES[each['adjacency']],
      rounding.up(each['epsilon']),
      each['accountant'],
      each['rests_on'],
    )
    for each in stated
  )
  header = (
    'towards', 'hidden of a client', f'epsilon at delta = {delta}', 'accountant',
    'rests on',
  )  # fmt: skip
  yield document.Section(
    'What else holds', (document.Paragraph(_INTRO), document.Table(header, rows))
  )

"""The last section of a report: how to compute it again."""

import posixpath
from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.base import version


def section(statement: dict[str, Any]) -> document.Section:
  """Commands, files and versions that a statement can be computed again with.

  Args:
    statement: As `statement.build` or `compose` returned it.
  """
  verification, software = statement['verification'], statement.get('software')
  blocks: list[document.Block] = []
  if verification['command'] is not None:
    blocks.append(document.Paragraph('This command prints the same numbers again:'))
    blocks.append(document.Verbatim(verification['command']))
  if verification['files']:
    blocks.append(
      document.Paragraph(
        'It reads these files, whose checksums must be the same (sha256sum prints '
        'them):'
      )
    )
    rows = tuple(
      (file['role'], document.Code(file['path']), document.Code(file['sha256']))
      for file in verification['files']
    )
    blocks.append(document.Table(('file', 'path', 'SHA-256'), rows))
  blocks.extend(_how_to_compare(statement))
  if software is not None:
    versions = ', '.join(
      f'{name} {words}' for name, words in version.in_words(software).items()
    )
    blocks.append(document.Paragraph(f'This report was computed by {versions}.'))
  return document.Section('How to verify', tuple(blocks))


def _how_to_compare(statement: dict[str, Any]) -> Iterator[document.Block]:
  """The command that computes a JSON report again, and which report that is."""
  configs = [
    file['path']
    for file in statement['verification']['files']
    if file['role'] == 'config'
  ]
  if configs and not statement.get('parts'):
    path = posixpath.join(posixpath.dirname(configs[0]), 'report.json')
    found = (
      "report.json in the run's directory is this report with all inputs in it (with "
      '--format=json the command prints it). It'
    )
  else:
    path = 'report.json'
    found = (
      'With --format=json it prints a report that has all inputs in it. Saved as '
      'report.json, that'
    )
  yield document.Paragraph(
    f'{found} is computed again and compared number by number by'
  )
  yield document.Verbatim(sources.command_of([f'--verify={path}']))

"""The privacy report of a run directory, in all forms."""

import json
from typing import Any

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.learning.runs import attempts
from tff_dp_aggregators.learning.runs import run_directory

_FORMS = {'md': 'markdown', 'json': 'json', 'html': 'html'}


def write(
  directory: run_directory.RunDirectory,
  schedule: sampling.Schedule,
  *,
  has_mechanism: bool,
) -> dict[str, Any]:
  """Writes `report.md`, `report.json` and `report.html`, over those that may be there.

  What a reviewer may have, with them, is then in `share/` as well: there the page is
  without what was measured on test data, which may be clients' own.
  """
  ledger = ledger_lib.read(directory.file(run_directory.LEDGER))
  attempts.check(ledger, schedule)
  if has_mechanism:
    stated = statement.build(sources.from_run_dir(directory.path))
  else:
    found = sources.without_privacy(directory.path)
    stated = statement.build_without_privacy(found)
  learned = learning_curves.of_run(directory.path)
  for suffix, form in _FORMS.items():
    directory.write(f'report.{suffix}', rendering.render(stated, form, learned))
  directory.share({'report.html': rendering.render(stated, 'html')})
  return stated


def read(directory: run_directory.RunDirectory) -> dict[str, Any]:
  """The statement that the last report was made of."""
  with open(directory.file(run_directory.REPORT), encoding='utf-8') as file:
    stated: dict[str, Any] = json.load(file)
    return stated

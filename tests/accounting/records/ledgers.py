"""Ledgers for tests: rounds as runs append them, and what is in the file."""

import dataclasses
import pathlib

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent
DELTA = 1e-7
_EVENT = Gaussian(2.0)


def append(writer, event=_EVENT, **changes):
  arguments = {
    'cohort_requested': 10,
    'cohort_reported': 9,
    'clip_norm': 0.5,
    'noise_multiplier': 2.0,
    'strategy_checksum': None,
    **changes,
  }
  return writer.append(event=event, **arguments)


def release(writer, number, **changes):
  """Appends a round as a run would that is the same each time it runs."""
  return append(
    writer,
    Gaussian(2.0 + number),
    round=number,
    cohort_reported=90 + number,
    clip_norm=0.5 + number / 7,
    strategy_checksum='sha256:1234567890',
    **{'result_checksum': ledger.checksum_of([np.full(3, number)]), **changes},
  )


def timeless(entries):
  stamp = '2000-01-01T00:00:00+00:00'
  return [dataclasses.replace(entry, time=stamp) for entry in entries]


def lines_of(path):
  return pathlib.Path(path).read_bytes().splitlines(keepends=True)

"""Helpers of tests that append to ledgers, and read and change their files."""

import dataclasses
import hashlib
import json
import pathlib

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent
DELTA = 1e-7
_EVENT = Gaussian(2.0)
# A round's event of a sampled mechanism.
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(1.0))
# Strategies of runs, each with its limits on participation.
MECHANISMS = {
  'gaussian': (strategies.Identity(12), strategies.Participation(12, 5)),
  'tree': (strategies.BinaryTree(13), strategies.Participation(13, 4)),
  'banded': (
    strategies.BandedToeplitz.square_root(12, 4),
    strategies.Participation(12, 4),
  ),
}


def append(writer, event=_EVENT, **changes):
  """Appends a round with default fields, except for the changes."""
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
  """Appends a round whose fields depend on its number only, like a repeated run."""
  fields = {
    'cohort_requested': 100,
    'result_checksum': ledger.checksum_of([np.full(3, number)]),
    **changes,
  }
  return append(
    writer,
    Gaussian(2.0 + number),
    round=number,
    cohort_reported=90 + number,
    clip_norm=0.5 + number / 7,
    strategy_checksum='sha256:1234567890',
    **fields,
  )


def write(path, *numbers):
  """Writes the ledger of released rounds; returns its content."""
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in numbers:
      release(writer, number)
  return ledger.read(path)


def append_of(writer, mechanism, event, **changes):
  """Appends a round of a mechanism."""
  clip_norm = None if mechanism.parts else 0.5
  return append(writer, event, **{**mechanism.line(clip_norm), **changes})


def write_of(path, mechanism, num_rounds, delta):
  """Writes the ledger of a mechanism's first rounds; returns what is read from it."""
  with ledger.LedgerWriter(path, delta) as writer:
    events = mechanism.round_events[:num_rounds]
    written = [append_of(writer, mechanism, event) for event in events]
  read = ledger.read(path)
  assert list(read.entries) == written
  return read


def changed(line, **changes):
  """Returns a line with other values, and without a new hash."""
  return json.dumps({**json.loads(line), **changes}).encode() + b'\n'


def untimed(entries):
  """Returns the entries without what differs when a run is repeated."""
  same = {'time': '2000-01-01T00:00:00+00:00', 'previous_line_sha256': 64 * '0'}
  return [dataclasses.replace(entry, **same) for entry in entries]


def rehashed(lines):
  """Returns the lines with recomputed hashes, as a forger could write them."""
  sha256, result = hashlib.sha256().hexdigest(), []
  for line in lines:
    data = {**json.loads(line), 'previous_line_sha256': sha256}
    result.append(json.dumps(data).encode() + b'\n')
    sha256 = hashlib.sha256(result[-1]).hexdigest()
  return result


def lines_of(path):
  """Returns the lines of a file as bytes, with their ends."""
  return pathlib.Path(path).read_bytes().splitlines(keepends=True)


def replace_file(path, content):
  """Replaces a file, which is faster than truncating it: that waits for the disk."""
  pathlib.Path(path).unlink(missing_ok=True)
  pathlib.Path(path).write_bytes(content)

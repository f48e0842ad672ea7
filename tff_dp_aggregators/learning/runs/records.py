"""Records of a run: checkpoints, aborted attempts, how far it is, and its report.

Released rounds are in the ledger, which is on disk before any other file has the round.
So if another file has more rounds than the ledger, lines are lost, and a resumed run
would use their noise on other data.
"""

import io
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import run_directory

_LATER = (
  run_directory.METRICS,
  run_directory.MODEL,
  run_directory.REPORT,
  run_directory.EVENTS,
)
_PREFIX = 'after_round_'
_NUM_KEPT = 2
_BYTES = 'bytes_'  # Prefix of entries that are bytes or text.
_FORMS = {'md': 'markdown', 'json': 'json', 'html': 'html'}


def write_aborted(
  ledger: ledger_lib.LedgerWriter,
  number: int,
  attempts: Sequence[sampling.Attempt],
  reporting_goal: Optional[int],
) -> None:
  """Writes the lines of a round's aborted attempts, or confirms existing ones."""
  *aborted, _ = attempts
  written = ledger.aborted_attempts(number)
  if written > len(aborted):
    raise ValueError(
      f'at round {number} the ledger has {written} aborted attempts, but the schedule '
      f'{len(aborted)}. Go on with the schedule that the run was begun with.'
    )
  for index, attempt in enumerate(aborted):
    write = ledger.confirm_aborted if index < written else ledger.append_aborted
    write(
      round=number,
      attempt=index,
      cohort_requested=len(attempt.requested),
      cohort_reported=len(attempt.reporting),
      reporting_goal=reporting_goal,
    )


class Status(NamedTuple):
  """How far a run is."""

  rounds: int  # Released rounds, which the ledger has.
  is_finished: bool  # All rounds were run and reported, and no checkpoint is left.


def find(directory: run_directory.RunDirectory, num_rounds: int) -> Status:
  """Returns how far a run is; raises FilesError if its files contradict each other."""
  path = directory.file(run_directory.LEDGER)
  has_ledger = directory.has(run_directory.LEDGER)
  has_checkpoint = has_checkpoint_in(directory.file(run_directory.CHECKPOINTS))
  # Existing files that are written after the ledger.
  later = list(filter(directory.has, _LATER))
  if has_checkpoint:
    later.append(run_directory.CHECKPOINTS)
  rounds, found = 0, {}
  if has_ledger:
    with run_directory.reading(path):
      rounds = len(ledger_lib.read(path, as_resumed=has_checkpoint).entries)
  if run_directory.METRICS in later:
    rows = learning_curves.read(directory.file(run_directory.METRICS))
    found[run_directory.METRICS] = len(rows)
  if run_directory.REPORT in later:
    report = directory.read(run_directory.REPORT)
    run = report.get('run') or report.get('simulated_cohort')
    # Without privacy, the report has no number of rounds.
    found[run_directory.REPORT] = run['rounds_completed'] if run else rounds
  if later and not has_ledger:
    problem = f'is gone, but there is {", ".join(later)}'
  elif max(found.values(), default=0) > rounds:
    problem = (
      f'has {rounds} rounds, but there are {found}: lines are missing at its end'
    )
  elif has_checkpoint or not (rounds or later):
    return Status(rounds, is_finished=False)  # Or before its first checkpoint.
  elif len(found) == 2 and {rounds, *found.values()} == {num_rounds}:
    return Status(rounds, is_finished=True)
  else:
    problem = (
      f'has {rounds} of {num_rounds} rounds, other files {found}, and there is no '
      f'checkpoint in {run_directory.CHECKPOINTS} to go on from'
    )
  raise run_directory.FilesError(
    f'{path} {problem}. What was released is spent, and its noise must not be used '
    'again. Put the files back, or begin another run in another run_dir.'
  )


def write_report(directory: run_directory.RunDirectory) -> dict[str, Any]:
  """Writes the privacy report in all formats, and copies what reviewers may have.

  The page in `share/` has no measurements on test data, which may be clients'.
  """
  stated = statement.build(sources.from_run_dir(directory.path))
  learned = learning_curves.of_run(directory.path)
  for suffix, form in _FORMS.items():
    directory.write(f'report.{suffix}', rendering.render(stated, form, learned))
  directory.share({'report.html': rendering.render(stated, 'html')})
  return stated


class Checkpoint(NamedTuple):
  """The state of a run after some rounds."""

  rounds: int  # Number of rounds completed.
  state: Any  # State of the learning process, with the key of the noise.
  head: ledger_lib.Head  # The ledger's when it was written.
  # If the last round cannot be run again, and its line may be missing: JSON values that
  # its line and its metrics need. Otherwise `None`.
  measured: Optional[dict[str, Any]] = None


class Checkpoints:
  """The last checkpoints of a run, for its owner alone: they hold the noise's key."""

  def __init__(self, directory: str):
    """Makes the directory, or opens it and removes files that are half written."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    self._directory = directory
    new_files.remove_half_written(directory)

  def save(self, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint unless it exists; keeps the one before, no older ones."""
    path = self._path(checkpoint.rounds)
    if os.path.exists(path):
      return
    _, state, head, measured = checkpoint
    content = to_bytes((state, *head, json.dumps(measured)))
    new_files.replace(path, content, is_private=True)
    for rounds in _rounds(self._directory)[:-_NUM_KEPT]:
      os.unlink(self._path(rounds))

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """Returns the last checkpoint, or `None`; `state` has the same structure."""
    saved = _rounds(self._directory)
    if not saved:
      return None
    path = self._path(saved[-1])
    try:
      with open(path, 'rb') as file:
        content = from_bytes(file.read(), (state, 0, '', ''))
    except (OSError, ValueError) as e:
      raise ValueError(
        f'the checkpoint {path} cannot be read: {e}. If it is of an earlier version, '
        'that resumes it. Otherwise put it back; or move it away, and the run goes on '
        'from the one before, if that is there.'
      ) from e
    loaded, lines, sha256, measured = content
    head = ledger_lib.Head(int(lines), sha256)
    return Checkpoint(saved[-1], loaded, head, json.loads(measured))

  def _path(self, rounds: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{rounds}')


def has_checkpoint_in(directory: str) -> bool:
  """Whether a directory exists and has a checkpoint."""
  return os.path.isdir(directory) and bool(_rounds(directory))


def _rounds(directory: str) -> list[int]:
  numbers = (name.removeprefix(_PREFIX) for name in os.listdir(directory))
  return sorted(int(number) for number in numbers if number.isdigit())


def to_bytes(structure: Any) -> bytes:
  """Serializes arrays, numbers, bytes and texts in NumPy's format, with checksums."""
  arrays = {}
  for number, leaf in enumerate(tf.nest.flatten(structure)):
    text = leaf.encode() if isinstance(leaf, str) else np.asarray(leaf)[()]
    if isinstance(text, bytes):
      arrays[f'{_BYTES}{number}'] = np.frombuffer(text, np.uint8)
    else:
      arrays[str(number)] = np.asarray(leaf)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  return buffer.getvalue()


def from_bytes(content: bytes, template: Any) -> Any:
  """Inverts `to_bytes`; `template` has the same structure. Numbers are NumPy's."""
  flat = []
  try:
    with np.load(io.BytesIO(content)) as arrays:
      for number, leaf in enumerate(tf.nest.flatten(template)):
        if f'{_BYTES}{number}' in arrays:
          text = arrays[f'{_BYTES}{number}'].tobytes()
          flat.append(text.decode() if isinstance(leaf, str) else text)
        else:
          dtype = np.asarray(leaf).dtype
          array = arrays[str(number)]
          # NumPy loads dtypes that are not its own as raw bytes, of kind 'V'.
          flat.append((array.view(dtype) if array.dtype.kind == 'V' else array)[()])
      if len(arrays.files) != len(flat):
        raise ValueError(f'it has {len(arrays.files)} parts, and a state {len(flat)}')
  except Exception as e:  # NumPy and zipfile raise many kinds for a damaged file.
    raise ValueError(f'it is not whole: {e}') from e
  return tf.nest.pack_sequence_as(template, flat)

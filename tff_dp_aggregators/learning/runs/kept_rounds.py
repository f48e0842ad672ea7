"""Results of rounds that cannot be run again, kept until a checkpoint has them.

A server's noise is a function of its key, which checkpoints have: a round that is run
again comes to the same bits. Noise that clients draw, each for itself, is in no state.
Run again, the round would be another release, of the same clients, with other noise;
nothing would tell. So its result is on disk before its line is in the ledger, and who
goes on takes it from there: each round is released once, and its line is that of the
result which the model was made of.
"""

import glob
import json
import os
import shutil
from typing import Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import checkpoints

_PREFIX = 'result_of_round_'


class KeptRound(NamedTuple):
  """What a round came to.

  Attributes:
    state: That of the learning process after it.
    measured: JSON-ready: what its line and its row of metrics are made of besides.
  """

  state: Any
  measured: dict[str, Any]


class KeptRounds:
  """Results of rounds, in the directory of the checkpoints."""

  def __init__(self, directory: str):
    """Takes up what is there.

    Args:
      directory: That of the checkpoints, which only its owner may enter.
    """
    self._directory = directory
    for half in glob.glob(os.path.join(glob.escape(directory), f'{_PREFIX}*_temp*')):
      shutil.rmtree(half)  # Of a run that was killed.
    self._manager = tff.program.FileProgramStateManager(
      directory, _PREFIX, keep_total=0, keep_first=False
    )

  def save(self, number: int, kept: KeptRound) -> None:
    """Keeps the result of a round; when it returns, it is on disk.

    Args:
      number: The round.
      kept: What it came to.

    Raises:
      OSError: If it cannot be written.
    """
    path = self._path(number)
    if os.path.exists(path):  # One that cannot be read, of a round without a line.
      shutil.rmtree(path)
    structure = (kept.state, json.dumps(kept.measured))
    checkpoints.wait(self._manager.save(structure, number))
    new_files.sync_tree(path)

  def load(self, number: int, like: Any) -> Optional[KeptRound]:
    """The result of a round; `None` if it is not there, or cannot be read.

    Args:
      number: The round.
      like: A state of the same structure.
    """
    if not os.path.exists(self._path(number)):
      return None
    try:
      state, text = checkpoints.wait(self._manager.load(number, (like, '')))
      return KeptRound(state, json.loads(text))
    except Exception:  # Whatever TensorFlow makes of files that are broken.
      return None

  def remove_before(self, number: int) -> None:
    """Removes the results of rounds that checkpoints have.

    Args:
      number: The first round that is still needed.
    """
    for name in os.listdir(self._directory):
      kept = name.removeprefix(_PREFIX)
      if name.startswith(_PREFIX) and kept.isdigit() and int(kept) < number:
        shutil.rmtree(os.path.join(self._directory, name))

  def _path(self, number: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{number}')

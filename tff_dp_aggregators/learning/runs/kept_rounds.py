"""Results of rounds that cannot be run again, kept until a checkpoint has them.

A server's noise is a function of its key, which checkpoints have: a round that is run
again comes to the same bits. Noise that clients draw, each for itself, is in no state.
Run again, the round would be another release, of the same clients, with other noise;
nothing would tell. Nor may what a cluster trained come to the same last digits on
those that go on. So its result is on disk before its line is in the ledger, and who
goes on takes it from there: each round is released once, and its line is that of the
result which the model was made of.
"""

import json
import os
from typing import Any, NamedTuple, Optional

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
    """Takes up what is there."""
    self._directory = directory

  @property
  def is_any(self) -> bool:
    """Whether the result of any round is there."""
    return any(name.startswith(_PREFIX) for name in os.listdir(self._directory))

  def save(self, number: int, kept: KeptRound) -> None:
    """Keeps the result of a round; when it returns, it is on disk."""
    content = checkpoints.to_bytes((kept.state, json.dumps(kept.measured)))
    new_files.replace(self._path(number), content, is_private=True)

  def load(self, number: int, like: Any) -> Optional[KeptRound]:
    """The result of a round; `None` if it is not there, or not whole."""
    try:
      with open(self._path(number), 'rb') as file:
        state, measured = checkpoints.from_bytes(file.read(), (like, ''))
    except (FileNotFoundError, ValueError):
      return None
    return KeptRound(state, json.loads(measured))

  def remove_before(self, number: int) -> None:
    """Removes the results of rounds that checkpoints have."""
    for name in os.listdir(self._directory):
      kept = name.removeprefix(_PREFIX)
      if name.startswith(_PREFIX) and kept.isdigit() and int(kept) < number:
        os.unlink(os.path.join(self._directory, name))

  def _path(self, number: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{number}')

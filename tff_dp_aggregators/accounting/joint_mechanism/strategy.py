"""The strategies of the parts of a model, together."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from tff_dp_aggregators import strategies


@dataclasses.dataclass(frozen=True)
class JointStrategy:
  """The strategies of all parts.

  Attributes:
    parts: By name of the part, in the order of the parts.
  """

  parts: Mapping[str, strategies.Strategy]

  @property
  def num_rounds(self) -> int:
    """Rounds that they are for."""
    return next(iter(self.parts.values())).num_rounds

  @property
  def checksum(self) -> str:
    """SHA-256 over the names of the parts and the checksums of their strategies."""
    content = [[name, strategy.checksum] for name, strategy in self.parts.items()]
    return f'sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}'

  def sensitivity_kind(self, limits: Optional[strategies.Participation] = None) -> str:
    """Whether that of all parts together is known exactly, or by an upper bound.

    Each part is taken for the rounds of a client that are the worst for it; these are
    the same for all parts if the strategies are.

    Args:
      limits: As for `Strategy.sensitivity_kind`.

    Returns:
      'exact' or 'bound'.
    """
    each = list(self.parts.values())
    kinds = {strategy.sensitivity_kind(limits) for strategy in each}
    are_same = len({strategy.checksum for strategy in each}) == 1
    return 'exact' if are_same and kinds == {'exact'} else 'bound'

  def to_npz(self) -> bytes:
    """The content of a NumPy .npz archive that `load` reads back exactly."""
    arrays = {
      name: np.frombuffer(strategy.to_npz(), np.uint8)
      for name, strategy in self.parts.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()

  @classmethod
  def load(cls, path: str, names: Sequence[str]) -> 'JointStrategy':
    """Reads a file with what `to_npz` wrote.

    Args:
      path: Of the file.
      names: Of the parts, in their order.

    Raises:
      OSError: If it cannot be read.
      ValueError: If it is of other parts, or no such file.
    """
    try:
      with np.load(path, allow_pickle=False) as archive:
        found = {name: archive[name].tobytes() for name in archive.files}
    except (ValueError, EOFError, KeyError) as e:
      raise ValueError(f'{path} does not have the strategies of parts: {e}') from e
    if set(found) != set(names):
      raise ValueError(
        f'{path} has the strategies of the parts {sorted(found)}, and the parts are '
        f'{sorted(names)}: it is of another mechanism.'
      )
    return cls({name: strategies.Strategy.from_npz(found[name]) for name in names})

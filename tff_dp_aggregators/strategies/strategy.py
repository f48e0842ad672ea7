"""What every strategy offers: sensitivity, error, and a form to save it in.

A strategy is the matrix `C` of a matrix mechanism, held as plain data. With the
clients' clipped sums of n rounds as the rows of `X` and z iid standard Gaussian rows,
the server releases, in each round t, what is needed to know row t of

    A X + B z,    A = B C,    A the prefix-sum workload,

scaled so that z has standard deviation `noise_multiplier * clip_norm`. Releasing
those rows is post-processing of `C X + z`, one Gaussian mechanism, whose sensitivity
is `sensitivity(participation)` times the clip norm (arXiv:2202.08312, section 2;
arXiv:2211.06530, section 2, for several participations and adaptive clients).

This module is not for any particular strategy: each has a module of its own.
"""

import abc
import dataclasses
import hashlib
import json
import math
from typing import Any, ClassVar, Optional

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib

_FORMAT = 'tff_dp_aggregators.strategy'
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
  """A strategy matrix `C` for `num_rounds` rounds, with its estimator `B`.

  Attributes:
    num_rounds: Rounds n the mechanism is built for; `C` has n columns.
  """

  num_rounds: int
  kind: ClassVar[str]
  _kinds: ClassVar[dict[str, type['Strategy']]] = {}

  def __post_init__(self) -> None:
    # A NumPy integer would compare equal but could not be saved.
    num_rounds = participation_lib.check_positive_int('num_rounds', self.num_rounds)
    object.__setattr__(self, 'num_rounds', num_rounds)

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    if 'kind' in cls.__dict__:
      Strategy._kinds[cls.kind] = cls

  # What a strategy has to say for itself.

  @abc.abstractmethod
  def sensitivity_squared_by_round(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> np.ndarray:
    """Squared sensitivity of the first 1, 2, ..., n rounds.

    Entry t is max ||C_t u||^2 over one client's participation patterns u, with `C_t`
    what is released of `C` in rounds 0 to t. The last entry is the squared
    sensitivity of the whole run; entry t is what has been spent after round t.

    Args:
      participation: Who may take part when; `None` means a single participation.

    Returns:
      A non-decreasing float64 array of shape [n].

    Raises:
      ValueError: If `participation` is for another number of rounds, or if the exact
        sensitivity is not known for this strategy under it.
    """

  @abc.abstractmethod
  def materialize(self) -> np.ndarray:
    """`C` as a dense float64 array with n columns; for tests and small n."""

  @abc.abstractmethod
  def materialize_estimator(self) -> np.ndarray:
    """`B` with `B C = A` for prefix sums A, dense; for tests and small n."""

  @property
  @abc.abstractmethod
  def noise_buffers(self) -> int:
    """How many model-sized buffers a server carries to draw this noise."""

  # What follows from it.

  def sensitivity(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> float:
    """sens(C): largest ||C u|| over participation patterns u, exact.

    Args:
      participation: Who may take part when; `None` means a single participation.

    Raises:
      ValueError: As `sensitivity_squared_by_round` does.
    """
    return math.sqrt(self.sensitivity_squared_by_round(participation)[-1])

  def noise_matrix(self) -> np.ndarray:
    """`D` such that the noise added to the sum of round t is `(D z)[t]`; dense.

    `D` is `A^-1 B`: for a square strategy `C^-1`, for the tree the difference of
    consecutive prefix-sum estimates.
    """
    return np.diff(self.materialize_estimator(), axis=0, prepend=0.0)

  def per_query_error(self, workload: Optional[np.ndarray] = None) -> np.ndarray:
    """Variance of each workload row's noise for unit-variance z, before sensitivity.

    Args:
      workload: Lower-triangular array of shape [n, n] whose rows are the linear
        queries over rounds; `None` means prefix sums.

    Returns:
      Squared row norms of the estimator, float64 of shape [n].

    Raises:
      ValueError: If `workload` is not a lower-triangular n x n array.
    """
    if workload is None:
      return np.square(self.materialize_estimator()).sum(axis=1)
    workload = np.asarray(workload, np.float64)
    shape = (self.num_rounds, self.num_rounds)
    if workload.shape != shape or np.any(np.triu(workload, 1)):
      raise ValueError(
        f'workload must be lower-triangular of shape {shape}, got an array of '
        f'shape {workload.shape}.'
      )
    return np.square(workload @ self.noise_matrix()).sum(axis=1)

  def rmse(
    self,
    participation: Optional[participation_lib.Participation] = None,
    workload: Optional[np.ndarray] = None,
  ) -> float:
    """Root mean square error: sens(C) x sqrt(mean of `per_query_error`)."""
    error = self.per_query_error(workload)
    return self.sensitivity(participation) * math.sqrt(error.mean())

  def max_error(
    self,
    participation: Optional[participation_lib.Participation] = None,
    workload: Optional[np.ndarray] = None,
  ) -> float:
    """Largest error: sens(C) x sqrt(max of `per_query_error`)."""
    error = self.per_query_error(workload)
    return self.sensitivity(participation) * math.sqrt(error.max())

  # Saving and loading.

  def parameters(self) -> dict[str, Any]:
    """The dataclass fields as JSON-ready values."""
    return {
      field.name: _plain(getattr(self, field.name))
      for field in dataclasses.fields(self)
    }

  @property
  def checksum(self) -> str:
    """SHA-256 over kind and parameters: two strategies with it are the same."""
    content = {'kind': self.kind, 'parameters': self.parameters()}
    text = json.dumps(content, sort_keys=True, separators=(',', ':'))
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def to_json(self) -> str:
    """A versioned, checksummed JSON text that `from_json` reads back exactly."""
    return json.dumps(
      {
        'format': _FORMAT,
        'version': _VERSION,
        'kind': self.kind,
        'parameters': self.parameters(),
        'checksum': self.checksum,
      },
      indent=2,
    )

  @staticmethod
  def from_json(text: str) -> 'Strategy':
    """Reads what `to_json` wrote.

    Raises:
      ValueError: If the text is not a saved strategy, is of an unknown kind or
        version, or does not have the checksum it states.
    """
    try:
      data = json.loads(text)
    except json.JSONDecodeError as e:
      raise ValueError(f'not a saved strategy: {e}') from e
    if not isinstance(data, dict) or data.get('format') != _FORMAT:
      raise ValueError(f'not a saved strategy: it has no "format": "{_FORMAT}".')
    if data.get('version') != _VERSION:
      raise ValueError(
        f'this strategy has version {data.get("version")!r}; this release reads '
        f'version {_VERSION}.'
      )
    kind = data.get('kind')
    if not isinstance(kind, str) or kind not in Strategy._kinds:
      raise ValueError(
        f'unknown strategy kind {kind!r}; known: {sorted(Strategy._kinds)}.'
      )
    try:
      strategy = Strategy._kinds[kind](**data['parameters'])
    except (KeyError, TypeError, OverflowError) as e:
      raise ValueError(f'the saved {kind} strategy is incomplete: {e}') from e
    if strategy.checksum != data.get('checksum'):
      raise ValueError(
        f'the saved {kind} strategy was altered: it states checksum '
        f'{data.get("checksum")!r} but has {strategy.checksum!r}.'
      )
    return strategy

  def _participation(
    self, participation: Optional[participation_lib.Participation]
  ) -> participation_lib.Participation:
    """Defaults `participation` to a single one and checks that it fits."""
    if participation is None:
      return participation_lib.Participation.single(self.num_rounds)
    if participation.num_rounds != self.num_rounds:
      raise ValueError(
        f'participation.num_rounds is {participation.num_rounds}, but the strategy '
        f'was built for {self.num_rounds} rounds; build both for the same number.'
      )
    return participation


def _plain(value: Any) -> Any:
  """A field's value as JSON writes and reads it back without loss."""
  return list(value) if isinstance(value, tuple) else value

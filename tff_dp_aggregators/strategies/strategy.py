"""Base class of strategies: sensitivity, error, serialisation, cost of the noise.

With the clients' clipped sums of n rounds as the rows of `X` and z iid standard
Gaussian rows, the server releases in round t what is needed to compute row t of

    A X + B z,    A = B C,    A the prefix-sum workload,

scaled so that z has standard deviation `noise_multiplier * clip_norm`. That is
post-processing of `C X + z`, one Gaussian mechanism, whose sensitivity is
`sensitivity(participation)` times the clip norm (arXiv:2202.08312, section 2;
arXiv:2211.06530, section 2, for several participations and adaptive clients).
"""

import abc
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import reprlib
import zipfile
import zlib
from typing import Any, ClassVar, NamedTuple, Optional, TypeVar, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.participation import Participation
from tff_dp_aggregators.strategies.workload import WorkloadLike

_FORMAT = 'tff_dp_aggregators.strategy'
_VERSION = 1
_MAX_SHOWN_NUMBERS = 6  # Numbers of a field in a strategy's repr.
MAX_ROUNDS = 10**7  # About ten arrays of this length exist at once: a gigabyte.
# Exceptions that reading a damaged archive may raise.
_ARCHIVE_ERRORS = (
  *(AttributeError, EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError),
  *(zipfile.BadZipFile, zlib.error),
)
_MAX_NUMBERS = 10**8  # Entries of a strategy whose bands differ from round to round.
_AnyProblem = TypeVar('_AnyProblem', bound='Problem')


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy(abc.ABC):
  """A strategy matrix `C` for `num_rounds` rounds, with its estimator `B`.

  A kind of strategy is a frozen dataclass with a class attribute `kind`. Its fields
  are numbers, tuples of numbers, or float64 arrays; a class with arrays is declared
  `eq=False`. Two strategies are equal if their checksums are.

  Attributes:
    num_rounds: Rounds n the mechanism is built for; `C` has n columns.
    needs_no_matrix: Whether norms and correlations of the noise are computed from
      columns, without n x n matrices.
  """

  num_rounds: int
  kind: ClassVar[str]  # The name of this class in files and in `checksum`.
  needs_no_matrix: ClassVar[bool] = False
  _kinds: ClassVar[dict[str, type['Strategy']]] = {}
  # Whether the constructor refuses more than MAX_ROUNDS rounds.
  _has_max_rounds: ClassVar[bool] = True

  def __post_init__(self) -> None:
    # A NumPy integer would compare equal but could not be saved.
    num_rounds = checks.check_positive_int('num_rounds', self.num_rounds)
    if self._has_max_rounds:
      check_rounds(num_rounds)
    object.__setattr__(self, 'num_rounds', num_rounds)

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    # `dataclass` generates a repr unless the class defines one itself.
    cls.__repr__ = cls.__repr__  # type: ignore[method-assign]
    if 'kind' in cls.__dict__:
      other = Strategy._kinds.get(cls.kind, cls)
      # With the same name it is this class defined again, by a reload of its module.
      if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
          f'the kind {cls.kind!r} is taken by {other.__module__}.{other.__qualname__}: '
          f'files and checksums could not distinguish {cls.__qualname__} from it.'
        )
      Strategy._kinds[cls.kind] = cls

  def __repr__(self) -> str:
    """Returns class and fields; long tuples and arrays are shown by their size."""
    names = [each.name for each in dataclasses.fields(self)]
    shown = ', '.join(f'{name}={_abbreviated(getattr(self, name))}' for name in names)
    return f'{type(self).__name__}({shown})'

  def __reduce__(self) -> tuple[Any, ...]:
    """Copies and pickles are constructed anew: read-only, and without cached values."""
    names = [field.name for field in dataclasses.fields(self) if field.init]
    fields = {name: getattr(self, name) for name in names}
    return functools.partial(type(self), **fields), ()

  @abc.abstractmethod
  def sensitivity_squared_by_round(
    self, participation: Optional[Participation] = None
  ) -> np.ndarray:
    """Returns the squared sensitivity of the first 1, 2, ..., n rounds.

    Entry t, what is spent after round t, is max ||C_t u||^2 over one client's
    participation patterns u, with `C_t` the part of `C` that is released in rounds 0
    to t, or a proven upper bound of it. The last entry is the squared sensitivity of
    the whole run, which is exact if `sensitivity_kind` returns 'exact'.

    Args:
      participation: Who may take part when; `None` means a single participation.

    Returns:
      A non-decreasing float64 array of shape [n].
    """

  @abc.abstractmethod
  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Returns sens(C)^2 and True, or a proven upper bound of it and False.

    This is the last entry of `sensitivity_squared_by_round`, at less cost if possible.
    """

  @abc.abstractmethod
  def materialize(self) -> np.ndarray:
    """`C` as a dense float64 array with n columns; for tests and small n."""

  def materialize_estimator(self) -> np.ndarray:
    """`B`, dense, with `B C = A` for prefix sums A; `A C^-1` if `C` is square."""
    prefix_sums = workload_lib.Workload(self.num_rounds)
    return workload_lib.estimator(self.materialize(), prefix_sums)

  @abc.abstractmethod
  def recursion(self) -> recursion_lib.Recursion:
    """Returns how round t's noise, row t of `noise_matrix() z`, is computed."""

  def sensitivity_squared(self, participation: Optional[Participation] = None) -> float:
    """sens(C)^2: the last entry of `sensitivity_squared_by_round`."""
    return self.squared_or_bound(self._participation(participation))[0]

  def sensitivity_kind(self, participation: Optional[Participation] = None) -> str:
    """'exact', or 'bound' if `sensitivity` is an upper bound that may be too large."""
    is_exact = self.squared_or_bound(self._participation(participation))[1]
    return 'exact' if is_exact else 'bound'

  def sensitivity(self, participation: Optional[Participation] = None) -> float:
    """sens(C), the largest ||C u|| over participation patterns u, or a proven bound."""
    cached = self.__dict__.setdefault('_sensitivities', {})
    try:
      return float(cached[participation])
    except (KeyError, TypeError):  # TypeError: no Participation, refused below.
      sensitivity = math.sqrt(self.sensitivity_squared(participation))
    cached[participation] = sensitivity
    return sensitivity

  def noise_matrix(self) -> np.ndarray:
    """`D = A^-1 B`, so that the noise added in round t is `(D z)[t]`; dense."""
    return np.diff(self.materialize_estimator(), axis=0, prepend=0.0)

  def noise_row_norms(self) -> np.ndarray:
    """Standard deviation of the noise that each round adds, for unit-variance z.

    Correlated noise partly cancels in sums over rounds: see `per_query_error`.
    """
    return np.linalg.norm(self.noise_matrix(), axis=1)

  @property
  def noise_buffers(self) -> int:
    """Model-sized buffers of noise that a server keeps; 0 if z is drawn again."""
    return self.recursion().buffers_needed

  def noise_correlation(self, num_lags: int) -> np.ndarray:
    """Correlation of the last round's noise with that of earlier rounds, by lag."""
    lags = min(checks.check_positive_int('num_lags', num_lags), self.num_rounds)
    rows = self.noise_matrix()[::-1][:lags]
    return rows @ rows[0] / (np.linalg.norm(rows, axis=1) * np.linalg.norm(rows[0]))

  def per_query_error(self, workload: WorkloadLike = None) -> np.ndarray:
    """Variance of each workload row's noise for unit-variance z, without sensitivity.

    Args:
      workload: The linear queries over rounds: a `Workload`, or a lower-triangular
        array of shape [n, n]; `None` means prefix sums.
    """
    if workload is None:
      return np.square(self.materialize_estimator()).sum(axis=1)
    workload = workload_lib.check(self.num_rounds, workload)
    return np.square(workload_lib.apply(workload, self.noise_matrix())).sum(axis=1)

  def error_by_round(
    self, participation: Optional[Participation] = None, workload: WorkloadLike = None
  ) -> np.ndarray:
    """Standard deviation of the noise in each query, for the same privacy.

    This is sens(C) x sqrt(`per_query_error`): in clip norms, at an effective noise
    multiplier of 1.
    """
    error = self.per_query_error(workload)
    return self.sensitivity(participation) * np.sqrt(error)

  def squared_error(self, objective: str, workload: WorkloadLike = None) -> float:
    """The mean ('mean') or the maximum ('max') of `per_query_error`."""
    error = self.per_query_error(workload)
    return float(error.mean() if objective == 'mean' else error.max())

  def error(
    self,
    objective: str,
    participation: Optional[Participation] = None,
    workload: WorkloadLike = None,
  ) -> float:
    """`rmse` if the objective is 'mean', `max_error` if it is 'max'."""
    squared = self.squared_error(objective, workload)
    return self.sensitivity(participation) * math.sqrt(squared)

  def rmse(
    self, participation: Optional[Participation] = None, workload: WorkloadLike = None
  ) -> float:
    """Root mean square of `error_by_round`: sens(C) x ||B||_F / sqrt(n)."""
    return self.error('mean', participation, workload)

  def max_error(
    self, participation: Optional[Participation] = None, workload: WorkloadLike = None
  ) -> float:
    """Largest of `error_by_round`: sens(C) x the largest row norm of B."""
    return self.error('max', participation, workload)

  def parameters(self) -> dict[str, Any]:
    """The dataclass fields as JSON-ready values, except for arrays."""
    values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

  @functools.cached_property
  def checksum(self) -> str:
    """SHA-256 of kind and parameters: equal checksums mean equal strategies."""
    content = {'kind': self.kind, 'parameters': self.parameters()}
    text = json.dumps(
      content, sort_keys=True, separators=(',', ':'), default=array_digest
    )
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def __eq__(self, other: object) -> bool:
    if type(self) is not type(other):
      return NotImplemented
    assert isinstance(other, Strategy)
    return self.checksum == other.checksum

  def __hash__(self) -> int:
    return hash(self.checksum)

  def to_json(self) -> str:
    """Returns a versioned, checksummed JSON text that `from_json` reads exactly."""
    content = self._content(self.parameters())
    return json.dumps(content, indent=2, default=np.ndarray.tolist)

  @staticmethod
  def from_json(text: str) -> 'Strategy':
    """Reads what `to_json` wrote; ValueError if it is no such text, or was altered."""
    try:
      data = strict_json.Decoder().decode(text)
    except ValueError as e:
      raise ValueError(f'not a saved strategy: {e}') from e
    return _from_content(data)

  def save(self, path: Union[str, os.PathLike[str]]) -> None:
    """Writes the strategy to a new file: .json, or .npz for large strategies.

    Raises ValueError for another suffix, FileExistsError if the file exists.

    Example:
      >>> import tempfile
      >>> from tff_dp_aggregators import strategies
      >>> with tempfile.TemporaryDirectory() as folder:
      ...   strategies.BinaryTree(8).save(f'{folder}/tree.json')
      ...   strategies.Strategy.load(f'{folder}/tree.json')
      BinaryTree(num_rounds=8, honaker=True)
    """
    path = os.fspath(path)
    if _suffix(path) == '.json':
      new_files.write_new(path, self.to_json() + '\n')
    else:
      new_files.write_new(path, self.to_npz())

  @staticmethod
  def load(path: Union[str, os.PathLike[str]]) -> 'Strategy':
    """Reads and verifies a file that `save` wrote; errors begin with the path."""
    path = os.fspath(path)
    suffix = _suffix(path)
    with open(path, 'rb') as file:
      data = file.read()
    try:
      if suffix == '.json':
        return Strategy.from_json(data.decode())
      return Strategy.from_npz(data)
    except ValueError as e:
      raise ValueError(f'{path}: {e}') from e

  def to_npz(self) -> bytes:
    """Returns the bytes of a NumPy .npz archive that `from_npz` reads exactly."""
    parameters = self.parameters()
    arrays = {n: v for n, v in parameters.items() if isinstance(v, np.ndarray)}
    others = {n: v for n, v in parameters.items() if n not in arrays}
    content = np.array(json.dumps(self._content(others)))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, strategy=content, **arrays)
    return buffer.getvalue()

  @staticmethod
  def from_npz(data: bytes) -> 'Strategy':
    """Reads what `to_npz` wrote; raises as `from_json` does."""
    try:
      with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
      content = strict_json.Decoder().decode(str(arrays.pop('strategy')))
      content['parameters'].update(arrays)
    except _ARCHIVE_ERRORS as e:
      raise ValueError(f'not a saved strategy, or a damaged one: {e}') from e
    return _from_content(content)

  def _content(self, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
      'format': _FORMAT,
      'version': _VERSION,
      'kind': self.kind,
      'parameters': parameters,
      'checksum': self.checksum,
    }

  def _participation(self, participation: Optional[Participation]) -> Participation:
    """Checks `participation`; `None` becomes a single participation."""
    return participation_lib.check(self.num_rounds, participation)


@dataclasses.dataclass(frozen=True)
class Problem:
  """The checked arguments of an optimiser."""

  participation: Participation  # Who may take part when.
  objective: str  # 'mean' or 'max'.
  workload: workload_lib.Checked  # The queries whose error is minimised.

  @classmethod
  def check(
    cls: type[_AnyProblem],
    num_rounds: int,
    objective: str,
    participation: Optional[Participation],
    workload: WorkloadLike,
    **others: Any,
  ) -> _AnyProblem:
    """Checks the arguments of an optimiser; raises TypeError or ValueError."""
    check_rounds(checks.check_positive_int('num_rounds', num_rounds))
    return cls(
      participation_lib.check(num_rounds, participation),
      checks.check_objective(objective),
      workload_lib.check(num_rounds, workload),
      **others,
    )

  @property
  def num_rounds(self) -> int:
    """Rounds n."""
    return self.participation.num_rounds

  def parameters(self, **others: Any) -> dict[str, Any]:
    """Returns the fields and `others`, as the parameters of `cache.fetch`."""
    own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {**own, **others}

  def error(self, strategy: Strategy) -> float:
    """The objective, which is minimised, for a strategy."""
    return strategy.error(self.objective, self.participation, self.workload)


def array_digest(array: np.ndarray) -> dict[str, Any]:
  """A JSON-ready value that identifies a float64 array: its shape and hash."""
  if not isinstance(array, np.ndarray):
    raise TypeError(f'{array!r} is neither an array nor of a type of JSON.')
  data = np.ascontiguousarray(array, '<f8').tobytes()
  return {'shape': list(array.shape), 'float64': hashlib.sha256(data).hexdigest()}


def check_rounds(num_rounds: int) -> int:
  """Returns `num_rounds`; raises ValueError if it is more than MAX_ROUNDS."""
  if num_rounds > MAX_ROUNDS:
    raise ValueError(
      f'num_rounds must be at most {MAX_ROUNDS}, got {num_rounds}. State fewer rounds, '
      'or compose the events of runs of at most that many.'
    )
  return num_rounds


def check_bands(num_rounds: int, num_bands: int, name: str = 'num_bands') -> int:
  """Returns `num_bands`; TypeError or ValueError unless from 1 to `num_rounds`."""
  checks.check_positive_int('num_rounds', num_rounds)
  num_bands = checks.check_positive_int(name, num_bands)
  if num_bands > num_rounds:
    raise ValueError(
      f'{name} must be at most num_rounds={num_rounds}, got {num_bands}.'
    )
  return num_bands


def check_numbers(num_rounds: int, num_bands: int) -> None:
  """Raises ValueError if `num_bands` diagonals of all rounds are too many numbers."""
  check_rounds(num_rounds)
  if num_rounds * num_bands > _MAX_NUMBERS:
    raise ValueError(
      f'num_bands={num_bands} in num_rounds={num_rounds} are more than the '
      f'{_MAX_NUMBERS} numbers that a banded strategy may have; use at most '
      f'{max(1, _MAX_NUMBERS // num_rounds)} bands, or a toeplitz or blt strategy.'
    )


def require(strategy: Any) -> Strategy:
  """Returns the strategy; raises TypeError if it is none."""
  if not isinstance(strategy, Strategy):
    raise TypeError(
      f'strategy must be a strategies.Strategy, got {reprlib.repr(strategy)}. '
      'strategies.Dense(num_rounds, matrix) makes one of a matrix.'
    )
  return strategy


def _abbreviated(value: Any) -> str:
  """A field's value as text; for many numbers, only how many there are."""
  if isinstance(value, np.ndarray):
    return f'<{" x ".join(map(str, value.shape))} numbers>'
  if isinstance(value, tuple) and len(value) > _MAX_SHOWN_NUMBERS:
    return f'<{len(value)} numbers>'
  return repr(value)


def _from_content(data: Any) -> Strategy:
  """Returns the strategy in the content of a saved file, and verifies its checksum."""
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
      f'unknown strategy kind {kind!r}; known: {sorted(Strategy._kinds)}. Import the '
      'module that registers another one.'
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


def _suffix(path: str) -> str:
  suffix = os.path.splitext(path)[1]
  if suffix not in ('.json', '.npz'):
    raise ValueError(f'a strategy is kept in a .json or .npz file, not in {path!r}.')
  return suffix


# Seconds for 10^6 bytes, measured by benchmarks/noise_round.py.
_CARRY_SECONDS = 0.03  # TFF carries a state to the worker and back.
_DRAW_SECONDS = {'chacha20': 0.025, 'philox': 0.01}  # By noise generator.
_READ_SECONDS = 0.0006
_WRITE_SECONDS = 0.0025
_SECONDS_PER_FILE = 0.00015  # In addition, for a file of any size.
# To draw all earlier rows again, the computation contains the whole noise matrix.
MAX_ROUNDS_WRITTEN_OUT = 1024


class Cost(NamedTuple):
  """The cost of one way to store the noise of earlier rounds."""

  seconds: float  # Per round on one core inside TFF, where the ways to store differ.
  num_bytes: int  # Kept from round to round.


def max_terms(strategy: Strategy) -> Optional[int]:
  """Maximum rows of z in a round's noise; `None` if drawing them again is not offered.

  That of the recursion, or all rounds if there are at most `MAX_ROUNDS_WRITTEN_OUT`.
  """
  recursion, num_rounds = strategy.recursion(), strategy.num_rounds
  if recursion.max_terms is not None or not recursion.applies_noise_matrix:
    return recursion.max_terms
  return num_rounds if num_rounds <= MAX_ROUNDS_WRITTEN_OUT else None


def by_storage(
  strategy: Strategy, num_bytes: int, generator: str = 'chacha20'
) -> dict[str, Cost]:
  """The costs of storing the noise of earlier rounds, by storage of `noise.Options`.

  There is only 'redraw' if the recursion keeps no buffers.
  """
  megabytes = num_bytes / 1e6
  draw = _DRAW_SECONDS[generator]
  buffers, draws, reads, writes = strategy.recursion().work
  if not buffers:
    return {'redraw': Cost(draw * megabytes, 0)}
  kept = buffers * num_bytes
  files = (draw * draws + _READ_SECONDS * reads + _WRITE_SECONDS * writes) * megabytes
  costs = {
    'state': Cost((draw * draws + _CARRY_SECONDS * buffers) * megabytes, kept),
    'files': Cost(files + _SECONDS_PER_FILE * (reads + writes), kept),
  }
  terms = max_terms(strategy)
  if terms is not None:
    costs['redraw'] = Cost(draw * terms * megabytes, 0)
  return costs


def cheapest(costs: dict[str, Cost]) -> str:
  """The storage that takes the least time; 'auto' chooses it."""
  return min(costs, key=lambda storage: costs[storage].seconds)

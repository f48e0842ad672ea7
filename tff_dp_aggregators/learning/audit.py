"""Audits a mechanism: recovers its noise matrix from noise that its code releases.

A mechanism's noise is D z, with z iid Gaussian. The audit runs the mean with one client
who sends zeros, so that it releases its noise and nothing else. The rows of z follow
from the key in the state (`noise.GaussianRows`): the audit draws them again and solves
for D by least squares, with more entries than rows of z. The residual is noise that no
row explains. Tensors with the same noise or without noise, a key used twice, a missing
restart and a storage that loses past noise show in residual or matrix.

With Sigma = D D^T, and u the contributions of one client in units of the clip norm, the
rounds together are a Gaussian mechanism with mu^2 = max u^T Sigma^-1 u over the
patterns that the limits allow. Patterns are enumerated where they are not too many.
Otherwise mu is the sensitivity of the matrix C' with C'^T C' = Sigma^-1: exact for
some, a bound for others. Where Sigma is that of the strategy, the bound from the
strategy's structure holds as well, unless a pattern with a larger value is found.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import scipy.linalg
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import factory as factory_lib
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import runtime as runtime_lib
from tff_dp_aggregators.strategies import sensitivity

# The runtimes that run a mechanism, and the storage of past noise that each uses.
_STORAGES = {'tff': 'auto', 'simulation': 'in_process'}
RUNTIMES = tuple(_STORAGES)
# Rounding of float32, relative to the largest entry of the noise, and to sensitivities.
_TOLERANCE = 1e-5
_ROUNDING = 3e-7  # Rounding of entries of C', relative to the largest.
_MAX_PATTERNS = 20_000
_EXTRA_ROWS = 64  # Rows of z that trees may use beside two for each round.
_NO_CHANGE = 1e-30  # A learning rate so small that the clip norm does not change.
# Extra entries and dtype of each tensor of a part.
_TENSORS = ((0, np.float32), (1, np.float32), (2, np.float64))
_Key = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Reading:
  """The audit's result for one part of a mechanism.

  Attributes:
    part: Name of the part; empty if the mechanism covers all weights.
    runtime: The runtime that ran it, one of `RUNTIMES`.
    matrix: The noise matrix D in clip norms, float64 of shape [rounds, rows of z].
    claimed: The effective noise multiplier that is accounted for, in the rounds read;
      with adaptive clipping that of the values alone, as its count is not read; with
      sampling that of one round.
    found: That of the matrix, at least; 0 if some combination of rounds has no noise.
    exact: Whether `found` is that of the worst pattern, and not only a bound.
    differs: Largest entry by which the covariance D D^T differs from that of the
      mechanism's strategy, relative to the latter's largest entry.
    why: Why the noise does not protect as claimed; `None` if it does.
    unexplained: Largest entry of the noise that no known row of z explains, or by which
      the matrices of two tensors differ, relative to the largest entry.
  """

  part: str
  runtime: str
  matrix: np.ndarray
  claimed: float
  found: float
  exact: bool
  differs: float
  why: Optional[str]
  unexplained: float

  @property
  def ok(self) -> bool:
    """Whether all noise is explained, and protects at least as well as claimed."""
    return self.why is None


def audit(
  mechanism: joint_mechanism.AnyMechanism,
  *,
  runtimes: Sequence[str] = RUNTIMES,
  first_rounds: Optional[int] = None,
  clip_norm: float = 1.0,
  **noise_options: Any,
) -> tuple[Reading, ...]:
  """Runs a mechanism's mean on zeros, and recovers its noise matrix for each part.

  Args:
    mechanism: The mechanism whose claim is audited, or several parts of one; its noise
      is Gaussian, added by the server, and not 0.
    runtimes: The runtimes that run it, of `RUNTIMES`.
    first_rounds: How many of its rounds are run; `None` for all.
    clip_norm: The clip norm of the mean; parts have their own.
    **noise_options: Generator and storage, see `noise.Options`. The key is secret.
      Without a storage, each runtime has its own default.

  Raises:
    ValueError: If a number is out of range, or the noise is not the server's Gaussian
      noise.

  Example:
    >>> limits = strategies.Participation(num_rounds=8, min_separation=4)
    >>> mechanism = accounting.Mechanism('banded', limits, noise_multiplier=2.0)
    >>> (reading,) = audit(mechanism, runtimes=['simulation'], storage='state')
    >>> reading.ok, round(reading.found, 4), round(reading.claimed, 4)
    (True, 1.4142, 1.4142)
  """
  parts = _parts(mechanism, clip_norm)
  rounds = mechanism.limits.num_rounds
  if first_rounds is not None:
    checks.check_within('first_rounds', first_rounds, 1, rounds)
    rounds = checks.check_int('first_rounds', first_rounds)
  size = len(parts) * (2 * mechanism.limits.num_rounds + _EXTRA_ROWS) * 5 // 4
  specs = [tff.TensorType(dtype, [size + more]) for more, dtype in _TENSORS]
  rows = noise.GaussianRows(
    [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs],
    generator=noise_options.get('generator', 'auto'),
  )
  z_of_row = tf.function(
    lambda key, index: rows.layout.unflatten(rows.row(key, index)), autograph=False
  )
  readings = []
  seen: set[_Key] = set()
  for runtime in runtimes:
    options = {'storage': _STORAGES[runtime], **noise_options}
    factory = _factory(mechanism, clip_norm, options)
    released, keys = _run(runtime, factory, tff.to_type(specs * len(parts)), rounds)
    # The last keys are those of a second initialization.
    *keys, new_keys = keys
    first_keys = sorted(set(keys[0]))
    keys_differ = all(sorted(each) == first_keys for each in keys) and not (
      seen.intersection(first_keys) or {*seen, *first_keys}.intersection(new_keys)
    )
    seen.update(first_keys, new_keys)
    every_key = sorted(set().union(*keys))
    used_rows: list[np.ndarray] = []
    for number, (name, (each, norm)) in enumerate(parts.items()):
      tensors = [
        np.array([values[number * len(_TENSORS) + i] for values in released]) / norm
        for i, _ in enumerate(_TENSORS)
      ]
      matrix, unexplained, is_gaussian = _matrix(tensors, z_of_row, every_key)
      used = np.abs(matrix).max(axis=0).reshape(len(every_key), -1)[:, :rounds]
      used = used > _TOLERANCE * used.max()
      keys_differ = keys_differ and not any(np.any(used & one) for one in used_rows)
      used_rows.append(used)
      expected = each.strategy.noise_matrix()[:rounds]
      covariance = each.values_noise_multiplier**2 * (expected @ expected.T)
      largest_error = np.abs(matrix @ matrix.T - covariance).max()
      differs = float(largest_error / np.abs(covariance).max())
      found, exact = _effective_noise_multiplier(matrix, each, rounds, differs)
      # Not by `values_noise_multiplier`, which the code that is audited uses.
      share = each.clipped_count_share or 0.0
      claimed = each.effective_noise_multiplier / math.sqrt(1 - share)
      if not each.is_sampled:
        by_round = each.strategy.sensitivity_squared_by_round(each.limits)
        claimed *= math.sqrt(by_round[-1] / by_round[rounds - 1])
      problems = {
        'keys of the noise serve twice, or change between rounds, or another part has '
        'the same rows of z.': not keys_differ,
        'the rows of z are not independent standard Gaussians.': not is_gaussian,
        f'{unexplained:.1g} of the noise is not made of the rows of z that its key '
        'has, or differs between tensors.': unexplained > _TOLERANCE,
        "the noise is not that of the strategy, on which the accountant's number "
        f'rests; covariances differ by {differs:.1g}.': (
          each.is_sampled and differs > _TOLERANCE
        ),
        f'the effective noise multiplier is {found:.6g}, and {claimed:.6g} is '
        'claimed.': found < claimed * (1 - _TOLERANCE),
      }
      where = f'{name or "all weights"}, run by {runtime}: '
      why = next((where + text for text, is_so in problems.items() if is_so), None)
      readings.append(
        Reading(name, runtime, matrix, claimed, found, exact, differs, why, unexplained)
      )
  return tuple(readings)


def _parts(
  mechanism: joint_mechanism.AnyMechanism, clip_norm: float
) -> dict[str, tuple[accounting.Mechanism, float]]:
  parts = {each.name: (each.mechanism, each.clip_norm) for each in mechanism.parts}
  if isinstance(mechanism, accounting.Mechanism):
    parts = {'': (mechanism, clip_norm)}
  for name, (each, _) in parts.items():
    is_of_server = each.noise_site == noises.SERVER.name
    if not (each.noise.is_gaussian and is_of_server and each.has_noise):
      raise ValueError(
        f'mechanism{" of part " + name if name else ""} has {each.noise.name} noise, '
        f'made by {each.noise_site}, of noise_multiplier={each.noise_multiplier}; only '
        'Gaussian noise of the server can be read, and not 0.'
      )
  return parts


def _factory(
  mechanism: joint_mechanism.AnyMechanism, clip_norm: float, options: dict[str, Any]
) -> aggregators.DPMeanFactory:
  """The aggregator that users build from a mechanism, with a constant clip norm."""
  if isinstance(mechanism, accounting.JointMechanism):
    part_of = [each.name for each in mechanism.parts for _ in _TENSORS]
    return aggregators.from_joint_mechanism(
      mechanism, part_of, clients_per_round=1.0, **options
    )
  adapts = mechanism.clipped_count_stddev is not None
  return aggregators.from_mechanism(
    mechanism,
    clip_norm=clip_norm,
    clients_per_round=1.0,
    schedule=_OneClient(mechanism.participation),
    clip_learning_rate=_NO_CHANGE if adapts else None,
    **options,
  )


@dataclasses.dataclass(frozen=True)
class _OneClient(sampling.Schedule):
  """A schedule for the audit: one client, in every round, whatever the limits."""

  participation: Any
  num_clients: int = 1
  clients_per_round: float = 1.0

  @property
  def schema(self) -> Any:
    return self.participation

  def attempts(self, round_num: int) -> tuple[sampling.Attempt, ...]:
    return (sampling.Attempt(np.array([0]), np.array([0]), True),)


def _run(
  runtime: str,
  factory: aggregators.DPMeanFactory,
  value_type: tff.Type,
  num_rounds: int,
) -> tuple[list[list[np.ndarray]], list[list[_Key]]]:
  """Runs the rounds as a TFF process, or as packed simulation does.

  Returns each round's tensors, and its noise keys; last, the keys of a second start.
  """
  with contextlib.ExitStack() as stack:
    step: Callable[[Any], tuple[Any, Any]]
    if runtime == 'tff':
      stack.enter_context(runtime_lib.local_runtime())
      process = factory.create(value_type)
      zeros = [np.zeros(each.shape, each.dtype) for each in value_type]
      initialize = process.initialize

      def step(state: Any) -> tuple[Any, Any]:
        output = process.next(state, [zeros])
        return output.result, output.state

    else:
      mean = factory.mean_of(value_type)
      counts = factory_lib.Counts(tf.constant(1), tf.constant(0))
      step = tf.function(
        lambda state: mean.release(state, mean.no_sum(), counts)[:2], autograph=False
      )

      def initialize() -> Any:
        return mean.initial_state().query

    state, released, keys = initialize(), [], []
    for _ in range(num_rounds):
      keys.append(_keys(state))
      value, state = step(state)
      released.append([np.asarray(each) for each in tf.nest.flatten(value)])
    keys.append(_keys(initialize()))
  return released, keys


def _keys(state: Any) -> list[_Key]:
  """All keys of noise in a state, however deeply nested."""
  keys = []
  if 'key' in getattr(state, '_fields', ()):
    keys.append(tuple(np.asarray(state.key).tolist()))
  inner = state.values() if isinstance(state, Mapping) else state
  if isinstance(state, (list, tuple, Mapping)):
    keys += [key for each in inner for key in _keys(each)]
  return keys


def _matrix(
  tensors: Sequence[np.ndarray],
  z_of_row: Callable[..., Any],
  keys: Sequence[_Key],
) -> tuple[np.ndarray, float, bool]:
  """Returns the noise matrix, the unexplained part, and whether z is Gaussian.

  `tensors`: The noise of each tensor, of shape [rounds, size]; `z_of_row`: maps key and
  index to the row of z for each tensor.
  """
  num_rounds = len(tensors[0])
  largest = max(float(np.abs(each).max()) for each in tensors)
  if not largest:
    return np.zeros((num_rounds, num_rounds * len(keys))), 0.0, True
  for num_rows in (num_rounds, 2 * num_rounds + _EXTRA_ROWS):
    rows = [
      z_of_row(tf.constant(key, tf.int64), tf.constant(index))
      for key in keys
      for index in range(num_rows)
    ]
    matrices, residual, is_gaussian = [], 0.0, True
    for number, noised in enumerate(tensors):
      z = np.array([each[number].numpy() for each in rows])
      is_gaussian = is_gaussian and _is_gaussian(z)
      solution = scipy.linalg.lstsq(z.T, noised.T, lapack_driver='gelsy')[0].T
      matrices.append(solution)
      residual = max(residual, float(np.abs(noised - solution @ z).max()) / largest)
    if residual <= _TOLERANCE:
      break
  scale = max(float(np.abs(each).max()) for each in matrices)
  mismatch = max(float(np.abs(each - matrices[0]).max()) for each in matrices) / scale
  return matrices[-1], max(residual, mismatch), is_gaussian


def _is_gaussian(z: np.ndarray) -> bool:
  """Whether rows are independent standard Gaussians, by moments and correlations.

  Each number is allowed 7 standard deviations, exceeded with probability 3e-12.
  """
  for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
    if abs(np.mean(z**power) - mean) > 7 * math.sqrt(variance / z.size):
      return False
  inner = z @ z.T / z.shape[1] - np.eye(len(z))
  allowed = 7 / math.sqrt(z.shape[1])
  return bool(np.abs(inner).max() <= math.sqrt(2) * allowed)


def _effective_noise_multiplier(
  matrix: np.ndarray, mechanism: accounting.Mechanism, num_rounds: int, differs: float
) -> tuple[float, bool]:
  """Returns 1 over the largest sqrt(u^T Sigma^-1 u), and whether that is exact.

  If all contributions of a pattern are the same vector of norm 1, u^T Sigma^-1 u is the
  sum of entries; for others it is at most the sum of absolute values.
  """
  limits = dataclasses.replace(mechanism.limits, num_rounds=num_rounds)
  claimed_limits: Optional[strategies.Participation] = mechanism.limits
  if mechanism.is_sampled:
    limits = strategies.Participation(num_rounds, min_separation=num_rounds)
    claimed_limits = None
  try:
    factor = scipy.linalg.cholesky(matrix @ matrix.T, lower=True)
  except scipy.linalg.LinAlgError:
    return 0.0, True
  inverse = scipy.linalg.solve_triangular(factor, np.eye(num_rounds), lower=True)
  inverse[np.abs(inverse) < _ROUNDING * np.abs(inverse).max()] = 0.0
  gram, max_k = inverse.T @ inverse, limits.possible_participations
  patterns: Iterable[Any] = limits.patterns()
  number = sum(math.comb(num_rounds, k) for k in range(1, max_k + 1))
  if number > _MAX_PATTERNS:
    # Regular ones, whose rounds are `min_separation` or a small multiple of it apart.
    patterns = (
      range(start, num_rounds, limits.min_separation * times)[:max_k]
      for times in range(1, 5)
      for start in range(num_rounds)
    )
  attained, largest = float(np.diagonal(gram).max()), 0.0
  for pattern in patterns:
    entries = gram[np.ix_(pattern, pattern)]
    attained = max(attained, float(entries.sum()))
    largest = max(largest, float(np.abs(entries).sum()))
  exact = number <= _MAX_PATTERNS and largest <= attained * (1 + _TOLERANCE)
  bound = largest
  if not exact:
    bound, exact = sensitivity.squared(inverse, limits)
    if number <= _MAX_PATTERNS:
      bound = min(bound, largest)
  claimed_sensitivity = mechanism.strategy.sensitivity(claimed_limits)
  found = 1 / math.sqrt(bound)
  if not exact and differs <= _TOLERANCE:
    by_round = mechanism.strategy.sensitivity_squared_by_round(claimed_limits)
    of_structure = mechanism.values_noise_multiplier / math.sqrt(
      by_round[num_rounds - 1]
    )
    found = max(found, of_structure)
  # The multiplier is at most that of any pattern that was found.
  found = min(found, 1 / math.sqrt(attained))
  return found * claimed_sensitivity / mechanism.sensitivity, exact

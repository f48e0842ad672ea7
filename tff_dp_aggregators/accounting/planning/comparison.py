"""Compares all mechanisms for the same task, by their noise and its costs.

The criterion is the root mean square of the noise in prefix sums (RMSE) *at equal
epsilon*. Rows that rely on sampling are kept apart: their epsilon is for another
neighbouring relation, and holds only if the server samples clients that way, in secret.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noise_to_signal as noise_to_signal_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.strategies import registry

CLOSE = 1.05  # Errors within this factor of the smallest count as equal in advice.
SLOW = 2.0  # Rows slower than the fastest close one by this factor are not advised.
MAX_SECONDS = 10.0  # Rows that take longer are computed only on request.
_BYTES = 4  # Size of a float32.


class Assumption(NamedTuple):
  """An assumption of rows about how clients are sampled."""

  title: str  # Text after a mechanism's name; empty for no sampling.
  scheme: type[sampling_lib.Scheme]
  any_noise: bool = False  # Whether noise may be correlated between rounds.
  has_groups: bool = False  # Whether groups of clients take turns.


# By their names in JSON, in the order of rows.
ASSUMPTIONS: dict[str, Assumption] = {
  'none': Assumption('', sampling_lib.Limits),
  'poisson': Assumption('Poisson sampling', sampling_lib.PoissonSampling),
  'cyclic_poisson': Assumption(
    'cyclic Poisson sampling', sampling_lib.PoissonSampling, has_groups=True
  ),
  'fixed_size': Assumption('sampling of fixed size', sampling_lib.FixedSizeSampling),
  'balls_in_bins': Assumption('balls in bins', sampling_lib.BallsInBins, True),
  'random_allocation': Assumption('random allocation', sampling_lib.RandomAllocation),
}


def samplings() -> dict[str, set[str]]:
  """The ways in which a server can sample, and the assumptions that each allows."""
  allowed: dict[str, set[str]] = {}
  for name, assumption in ASSUMPTIONS.items():
    allowed.setdefault(assumption.scheme.flag, {'none'}).add(name)
  return allowed


@dataclasses.dataclass(frozen=True)
class Task:
  """The task to plan for, with either a privacy target or a noise multiplier."""

  limits: strategies.Participation  # Limits on participation, without sampling.
  model_size: int  # Number of float32 parameters.
  target_delta: float
  # With `target_rho`: the epsilon, at delta, of the Gaussian mechanism with that rho.
  target_epsilon: Optional[float] = None
  noise_multiplier: Optional[float] = None  # For all rows, over the clip norm.
  num_clients: Optional[int] = None  # If `None`, there are no sampled rows.
  clients_per_round: Optional[int] = None
  # How the server can sample, a key of `samplings()`. Rows that need no more can be
  # advised, and have the tightest epsilon; other rows have a quick upper bound.
  sampling: str = 'none'
  num_groups: Optional[int] = None  # For cyclic Poisson sampling; default: the best.
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mechanisms: Optional[tuple[str, ...]] = None  # `None`: all that are fast.
  accountant: Optional[str] = None  # For all rows; `None`: the tightest.
  # Whether the separation was not stated, but derived from the population
  # (`strategies.participation.allowed_separation`).
  separation_is_derived: bool = False
  target_rho: Optional[float] = None  # A zCDP target, instead of epsilon.

  def __post_init__(self) -> None:
    checks.check_positive_int('model_size', self.model_size)
    object.__setattr__(self, 'options', registry.check_numbers(self.options))
    gaussian.check_delta(self.target_delta, 'target_delta')
    if self.target_rho is not None:
      mechanism_lib.Target(self.target_epsilon, None, self.accountant, self.target_rho)
      epsilon = gaussian.epsilon_of(math.sqrt(2 * self.target_rho), self.target_delta)
      object.__setattr__(self, 'target_epsilon', epsilon)
    if (self.target_epsilon is None) == (self.noise_multiplier is None):
      raise ValueError(
        'give either a target (--target_epsilon or --target_rho), or noise_multiplier.'
      )
    numbers = 'target_epsilon noise_multiplier num_clients clients_per_round'
    for name in numbers.split():
      if getattr(self, name) is not None:
        checks.check_positive(name, getattr(self, name))
    num_clients, cohort = self.num_clients, self.clients_per_round
    if num_clients is not None and cohort is not None:
      strategies.participation.check_population(num_clients, cohort, self.limits)
    elif num_clients or cohort or self.sampling != 'none' or self.num_groups:
      raise ValueError(
        'num_clients and clients_per_round go together, and sampling and num_groups '
        f'need both; got num_clients={self.num_clients}, clients_per_round='
        f'{self.clients_per_round}, sampling={self.sampling} and '
        f'num_groups={self.num_groups}.'
      )
    compared = [registry.kind(name) for name in self.mechanisms or registry.KINDS]
    for option in self.options:  # Some row has to use it.
      having = [kind.option(option) for kind in compared]
      if not any(each is not None and each.is_compared for each in having):
        raise ValueError(
          f'{option}={self.options[option]} is for none of the mechanisms compared, '
          f'{", ".join(kind.name for kind in compared)}; leave it out.'
        )
    if self.accountant and accountants.entry_of(self.accountant).is_drawn:
      raise ValueError(
        f'accountant={self.accountant} has a confidence that covers one calibration: '
        'leave it out, and find the noise of the row that you choose with '
        f'tff-dp-report --accountant={self.accountant}.'
      )

  @property
  def num_bytes(self) -> int:
    """Size of a model update."""
    return _BYTES * self.model_size


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
  """One mechanism, with its noise; errors are of prefix sums, in clip norms."""

  mechanism: mechanism_lib.Mechanism
  sampling: str  # The assumption of its guarantee, a key of `ASSUMPTIONS`.
  accountant: str
  epsilon: float  # At the task's delta.
  equal_noise_multiplier: float  # Noise multiplier for `Comparison.equal_epsilon`.
  error_by_round: np.ndarray  # Standard deviation of each prefix sum; shape [n].
  rmse: float  # Root mean square of `error_by_round`.
  max_error: float  # Largest of `error_by_round`.
  equal_rmse: float  # The `rmse` with the noise for equal epsilon.
  # Standard deviation of a round's noise in a coordinate, in clip norms.
  noise_per_coordinate: noise_to_signal_lib.Points
  # By the storage for the noise of earlier rounds, and the default one.
  costs: dict[str, strategies.strategy.Cost]
  storage: str
  cost: strategies.strategy.Cost  # That of `storage`.
  name: str  # The mechanism's name with its parameters.
  instead: Optional[accountants.Instead]  # Set if another's bound is used.


class LeftOut(NamedTuple):
  """A row that was left out, and the reason, as a sentence."""

  mechanism: str
  sampling: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All mechanisms for a task."""

  task: Task
  # The epsilon at which mechanisms are compared: the target, or for a given noise
  # multiplier that of the best mechanism without sampling.
  equal_epsilon: float
  # Sorted by assumption, without sampling first, and then by error at equal epsilon.
  rows: tuple[Row, ...]
  left_out: tuple[LeftOut, ...]

  @property
  def unsampled(self) -> tuple[Row, ...]:
    """Rows that assume no sampling, which others are compared to."""
    return tuple(row for row in self.rows if row.sampling == 'none')

  def relative(self, row: Row, what: str) -> float:
    """A row's 'rmse', 'max_error' or 'equal_rmse' over the minimum without sampling."""
    smallest = min(getattr(each, what) for each in self.unsampled)
    return getattr(row, what) / smallest

  def noise_norm(self, row: Row) -> noise_to_signal_lib.Points:
    """The L2 norm of a row's noise over all parameters, in clip norms."""
    return row.noise_per_coordinate.times(math.sqrt(self.task.model_size))

  def may_be_advised(self, row: Row) -> bool:
    """Whether the task's sampling satisfies the assumption of a row."""
    return row.sampling in samplings()[self.task.sampling]

  @property
  def advised(self) -> Row:
    """The row with the best trade-off.

    Candidates have an RMSE at equal epsilon within 5% of the minimum, and take at most
    twice the time of the fastest of these. The advised row is the one that keeps the
    fewest bytes between rounds; ties are broken by time, then by error.
    """
    rows = [row for row in self.rows if self.may_be_advised(row)]
    smallest = min(row.equal_rmse for row in rows)
    close = [row for row in rows if row.equal_rmse <= CLOSE * smallest]
    fastest = min(row.cost.seconds for row in close)
    close = [row for row in close if row.cost.seconds <= SLOW * fastest]
    return min(close, key=lambda r: (r.cost.num_bytes, r.cost.seconds, r.equal_rmse))


def compare(
  task: Task, report: Callable[[str], None] = lambda message: None
) -> Comparison:
  """Builds every mechanism for a task; `report` receives progress messages.

  Example:
    >>> task = Task(
    ...   strategies.Participation(200, min_separation=200),
    ...   model_size=1_000_000,
    ...   target_delta=1e-6,
    ...   target_epsilon=2.0,
    ...   mechanisms=('gaussian', 'toeplitz', 'blt'),
    ... )
    >>> comparison = compare(task)
    >>> [row.name for row in comparison.rows]
    ['toeplitz, 200 bands', 'blt, 3 buffers', 'gaussian']
    >>> comparison.advised.name
    'blt, 3 buffers'
  """
  left_out: list[LeftOut] = []
  built: list[tuple[_Candidate, mechanism_lib.Mechanism]] = []

  def leave_out(candidate: _Candidate, reason: str) -> None:
    left_out.append(LeftOut(candidate.kind.name, candidate.sampling, reason))

  for candidate in _candidates(task):
    reason = candidate.reason_against(task)
    if reason is not None:
      leave_out(candidate, reason)
      continue
    report(str(candidate))
    try:
      mechanism = mechanism_lib.Mechanism(
        candidate.kind.name,
        candidate.schema,
        task.noise_multiplier or 1.0,
        options=candidate.options,
      )
    except (ValueError, RuntimeError) as e:  # RuntimeError: it did not converge.
      leave_out(candidate, str(e))
      continue
    # Variants with more bands may yield the same strategy.
    same = [made.strategy for each, made in built if str(each) == str(candidate)]
    if mechanism.strategy not in same:
      built.append((candidate, mechanism))
  unsampled = [made for candidate, made in built if candidate.sampling == 'none']
  rows: list[Row] = []
  if unsampled:
    best = min(unsampled, key=lambda made: made.strategy.rmse(task.limits))
    equal_epsilon = task.target_epsilon or best.epsilon(
      task.target_delta, accountant=_accountant(task, 'none', best)
    )
    for candidate, mechanism in built:
      if candidate.sampling != 'none':
        report(f'noise of {candidate}')
      try:
        rows.append(_row(task, candidate, mechanism, equal_epsilon))
      except (ValueError, dp_accounting.UnsupportedEventError) as e:
        leave_out(candidate, messages.without_cause(e))
  if not any(row.sampling == 'none' for row in rows):
    reasons = ' '.join(f'{each.mechanism}: {each.reason}' for each in left_out)
    raise ValueError(f'no mechanism can do it. {reasons}')
  order = list(ASSUMPTIONS)
  rows.sort(key=lambda row: (order.index(row.sampling), row.equal_rmse))
  return Comparison(task, equal_epsilon, tuple(rows), tuple(left_out))


class _Candidate(NamedTuple):
  kind: registry.Kind
  sampling: str
  schema: sampling_lib.Schema
  options: dict[str, Any]

  def __str__(self) -> str:
    sampled = '' if self.sampling == 'none' else f' with {self.sampling}'
    return f'{self.kind.name}{sampled}'

  def reason_against(self, task: Task) -> Optional[str]:
    """The reason for which the row is left out; `None` if it is built."""
    if task.target_rho is not None and self.sampling != 'none':
      return 'zCDP has no rho of sampled clients; give target_epsilon.'
    limits = sampling_lib.limits_of(self.schema)
    why_skip = self.kind.why_skip(limits, self.options)
    if why_skip is not None:
      return why_skip
    seconds = self.kind.seconds(limits, **self.options)
    if seconds <= MAX_SECONDS or task.mechanisms is not None:
      return None
    others = ' or '.join(filter(None, ['--mechanisms=all', self.kind.quicker_with]))
    return f'it would take about {seconds:,.0f} s; have it with {others}.'


def _candidates(task: Task) -> list[_Candidate]:
  names = task.mechanisms or registry.KINDS
  kinds = [kind for kind in registry.KINDS.values() if kind.name in names]
  candidates = [
    _Candidate(kind, 'none', task.limits, options)
    for kind in kinds
    for options in kind.compared(task.limits, task.options)
  ]
  if task.num_clients is None or task.clients_per_round is None:
    return candidates
  cohort = {
    'num_rounds': task.limits.num_rounds,
    'num_clients': task.num_clients,
    'clients_per_round': task.clients_per_round,
  }
  for sampling, assumption in ASSUMPTIONS.items():
    if sampling == 'none':
      continue
    make = getattr(assumption.scheme, 'of_cohort', assumption.scheme)
    make = functools.partial(make, **cohort)
    if assumption.has_groups:
      schema = _with_best_groups(task, make)
      candidates += (
        _Candidate(kind, sampling, schema, _free_bands(task, kind, schema))
        for kind in kinds
        if kind.bands is not None
      )
      continue
    schema, bands = make(), 0
    if assumption.any_noise and sampling in samplings()[task.sampling]:
      bands = _best_bands(task, schema)
    for kind in kinds:
      if kind.is_independent or bands:
        options = (
          {kind.bands: task.options.get(kind.bands, bands)} if kind.bands else {}
        )
        candidates.append(_Candidate(kind, sampling, schema, options))
  return candidates


def least_error(numbers: Iterable[int], error: Callable[[int], float]) -> int:
  """The number with the least error; stops once an error is 5% above the least."""
  errors: dict[int, float] = {}
  for number in numbers:
    errors[number] = error(number)
    if errors[number] > CLOSE * min(errors.values()):
      break  # It is not expected to decrease again.
  return min(errors, key=errors.__getitem__)


def _with_best_groups(task: Task, make: Callable[..., Any]) -> Any:
  """A scheme with about the best number of groups, or with the most if that is slow.

  Minimises the RMSE of the fastest kind, with approximate noise. More groups allow more
  bands, which reduce the error for the same noise, but sampling amplifies privacy less.
  """
  assert task.num_clients is not None and task.clients_per_round is not None
  if task.num_groups is not None:
    return make(num_groups=task.num_groups)
  largest = min(task.num_clients // task.clients_per_round, task.limits.num_rounds)
  powers = [2**i for i in range(largest.bit_length())]
  quickest, most, mu = quickest_with_bands(task.limits), powers[-1], _mu(task)
  with_most = _Candidate(quickest, '', make(num_groups=most), {})
  if with_most.reason_against(task) is not None:
    return with_most.schema

  def error(groups: int) -> float:
    schema = make(num_groups=groups)
    strategy = mechanism_lib.strategy_for(
      quickest.name, schema, **_free_bands(task, quickest, schema)
    )
    return strategy.rmse() * schema.rough_noise_multiplier(mu)

  return make(num_groups=least_error(powers, error))


def _best_bands(task: Task, schema: sampling_lib.Schema) -> int:
  """The power of 2 of bands with about the least RMSE, as in `_best_groups`."""
  limits = sampling_lib.limits_of(schema)
  quickest = quickest_with_bands(limits)
  assert quickest.bands is not None
  if quickest.bands in task.options:
    return task.options[quickest.bands]
  epsilon = task.target_epsilon or gaussian.epsilon_of(_mu(task), task.target_delta)

  def error(bands: int) -> float:
    mechanism = mechanism_lib.Mechanism.for_target(
      quickest.name,
      schema,
      epsilon,
      task.target_delta,
      accountant=task.accountant,
      options={quickest.bands: bands},
    )
    return mechanism.strategy.rmse() * mechanism.noise_multiplier

  max_bands = strategies.participation.free_bands(limits)
  return least_error((2**i for i in range(max_bands.bit_length())), error)


def _mu(task: Task) -> float:
  if task.target_epsilon is not None:
    return gaussian.mu_of(task.target_epsilon, task.target_delta)
  assert task.noise_multiplier is not None
  return math.sqrt(task.limits.possible_participations) / task.noise_multiplier


def quickest_with_bands(limits: strategies.Participation) -> registry.Kind:
  """The kind with bands that is the fastest to optimize."""
  return min(
    (kind for kind in registry.KINDS.values() if kind.bands is not None),
    key=lambda kind: kind.seconds(limits),
  )


def _free_bands(
  task: Task, kind: registry.Kind, schema: sampling_lib.Schema
) -> dict[str, int]:
  """At most as many bands as groups, so that a client's rounds share no noise."""
  assert kind.bands is not None
  free = strategies.participation.free_bands(sampling_lib.limits_of(schema))
  return {kind.bands: min(task.options.get(kind.bands, free), free)}


def _accountant(task: Task, sampling: str, mechanism: mechanism_lib.Mechanism) -> str:
  if task.accountant is not None:
    return task.accountant
  event, relation, quick = mechanism.event, mechanism.relation, None
  if sampling not in samplings()[task.sampling]:
    quick = accountants.quick_bound(event, relation)
  return quick or accountants.tightest(event, relation)


def _row(
  task: Task,
  candidate: _Candidate,
  mechanism: mechanism_lib.Mechanism,
  epsilon: float,
) -> Row:
  accountant = _accountant(task, candidate.sampling, mechanism)
  equal_noise = calibration.noise_multiplier(
    mechanism.event_with,
    epsilon,
    task.target_delta,
    accountant=accountant,
    relation=mechanism.relation,
  )
  if task.noise_multiplier is None:
    mechanism = dataclasses.replace(mechanism, noise_multiplier=equal_noise)
  noise = mechanism.noise_multiplier
  errors = noise * np.sqrt(mechanism.strategy.per_query_error())
  rmse = math.sqrt(float(np.square(errors).mean()))
  costs = strategies.strategy.by_storage(mechanism.strategy, task.num_bytes)
  storage = strategies.strategy.cheapest(costs)
  values = ((each, each.read(mechanism.strategy)) for each in candidate.kind.options)
  words = (each.in_words(value) for each, value in values if value is not None)
  return Row(
    mechanism,
    candidate.sampling,
    accountant,
    mechanism.epsilon(task.target_delta, accountant=accountant),
    equal_noise,
    error_by_round=errors,
    rmse=rmse,
    max_error=float(errors.max()),
    equal_rmse=rmse * (equal_noise / noise),
    noise_per_coordinate=noise_to_signal_lib.summary(mechanism, model_size=1),
    costs=costs,
    storage=storage,
    cost=costs[storage],
    name=', '.join((mechanism.name, *words)),
    instead=accountants.instead(
      mechanism.event, task.target_delta, accountant, mechanism.relation
    ),
  )

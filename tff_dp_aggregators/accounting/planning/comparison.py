"""Every mechanism for the same task, next to each other: what each adds, and costs.

What is compared is the root mean square of the noise in prefix sums (RMSE) *at equal
epsilon*. Rows that rest on sampling are kept apart. Their epsilon is for another
neighbouring relation, and holds only if the server draws clients so, in secret.
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
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noise_to_signal as noise_to_signal_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.strategies import registry

CLOSE = 1.05  # Errors this near the least one count as equal in advice.
SLOW = 2.0  # So many times the time of a close one are not worth what is kept less.
MAX_SECONDS = 10.0  # Rows that take longer are computed only if asked for.
_BYTES = 4  # Of a float32.


@dataclasses.dataclass(frozen=True)
class Assumption:
  """What rows of a comparison assume about how clients are drawn."""

  name: str  # As the comparison's JSON has it.
  title: str  # The same after a mechanism's name; empty for none.
  line: Any  # Matplotlib's style of line: a name, or an offset with lengths of dashes.
  # The scheme for num_rounds, num_clients and clients_per_round, and num_groups with
  # groups; `None` for the limits of the task itself.
  make: Optional[Callable[..., Any]] = None
  any_noise: bool = False  # Whether noise need not be independent in each round.
  # With groups that take turns: about the noise multiplier, over the largest column
  # norm, with which a scheme is mu-Gaussian-DP, to choose the number of groups by.
  noise_for: Optional[Callable[[Any, float], float]] = None


_Poisson = sampling_lib.PoissonSampling
_Balls, _Allocation = sampling_lib.BallsInBins, sampling_lib.RandomAllocation
_FixedSize = sampling_lib.FixedSizeSampling
ASSUMPTIONS: dict[type[sampling_lib.Scheme], tuple[Assumption, ...]] = {
  sampling_lib.Limits: (Assumption('none', '', '-'),),
  _Poisson: (
    Assumption('poisson', 'Poisson sampling', ':', _Poisson.of_cohort),
    Assumption(
      'cyclic_poisson',
      'cyclic Poisson sampling',
      '--',
      _Poisson.of_cohort,
      noise_for=_Poisson.rough_noise_multiplier,
    ),
  ),
  _FixedSize: (Assumption('fixed_size', 'sampling of fixed size', '-.', _FixedSize),),
  _Balls: (
    Assumption(
      'balls_in_bins', 'balls in bins', (0, (3, 1, 1, 1)), _Balls.of_cohort, True
    ),
  ),
  _Allocation: (
    Assumption(
      'random_allocation', 'random allocation', (0, (5, 1)), _Allocation.of_cohort
    ),
  ),
}


def assumptions() -> dict[str, Assumption]:
  """What rows may assume about how clients are drawn, by name, in their order."""
  return {one.name: one for each in ASSUMPTIONS.values() for one in each}


def samplings() -> dict[str, tuple[str, ...]]:
  """How a server can draw clients, and the names of `assumptions` which that allows."""
  always = tuple(one.name for one in ASSUMPTIONS[sampling_lib.Limits])
  return {
    scheme.flag: tuple(dict.fromkeys((*always, *(one.name for one in assumed))))
    for scheme, assumed in ASSUMPTIONS.items()
  }


@dataclasses.dataclass(frozen=True)
class Task:
  """What is to be planned, either with a privacy target or with a noise multiplier."""

  limits: strategies.Participation  # Who may take part when, without sampling.
  model_size: int  # Number of float32 parameters.
  target_delta: float
  # With rho the epsilon, at delta, of the Gaussian mechanism that spends it.
  target_epsilon: Optional[float] = None
  noise_multiplier: Optional[float] = None  # Of all rows, over the clip norm.
  num_clients: Optional[int] = None  # Without them there are no sampled rows.
  clients_per_round: Optional[int] = None
  # How the server can draw clients, a key of `samplings()`. Rows that need no more may
  # be advised, with the tightest epsilon; others have a quick upper bound.
  sampling: str = 'none'
  num_groups: Optional[int] = None  # For cyclic Poisson sampling; by default the best.
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  mechanisms: Optional[tuple[str, ...]] = None  # `None`: all that do not take long.
  accountant: Optional[str] = None  # For all rows; `None`: the tightest.
  # Whether nobody stated the separation, and it is what the population allows
  # (`strategies.participation.allowed_separation`).
  separation_is_derived: bool = False
  target_rho: Optional[float] = None  # A target in zCDP instead.

  def __post_init__(self) -> None:
    checks.check_positive_int('model_size', self.model_size)
    if self.num_groups is not None:
      checks.check_positive_int('num_groups', self.num_groups)
    object.__setattr__(self, 'options', registry.check_numbers(self.options))
    gaussian.check_delta(self.target_delta, 'target_delta')
    if self.target_rho is not None:
      mechanism_lib.Target(self.target_epsilon, None, self.accountant, self.target_rho)
      epsilon = gaussian.epsilon_of(math.sqrt(2 * self.target_rho), self.target_delta)
      object.__setattr__(self, 'target_epsilon', epsilon)
    if (self.target_epsilon is None) == (self.noise_multiplier is None):
      raise ValueError('give either target_epsilon, or noise_multiplier for all rows.')
    if self.target_epsilon is not None:
      checks.check_positive('target_epsilon', self.target_epsilon)
    noise = self.noise_multiplier
    if noise is not None and events.check_noise_multiplier(noise) == 0:
      raise ValueError('noise_multiplier must be positive: without noise, no privacy.')
    if self.num_clients is not None and self.clients_per_round is not None:
      strategies.participation.check_population(
        self.num_clients, self.clients_per_round, self.limits
      )
    elif (
      not (self.num_clients is self.clients_per_round is None)
      or self.sampling != 'none'
      or self.num_groups
    ):
      raise ValueError(
        'num_clients and clients_per_round go together, and sampling and num_groups '
        f'need both; got num_clients={self.num_clients}, clients_per_round='
        f'{self.clients_per_round}, sampling={self.sampling} and '
        f'num_groups={self.num_groups}.'
      )
    if self.sampling not in samplings():
      raise ValueError(
        f'sampling must be one of {", ".join(samplings())}; got {self.sampling}.'
      )
    for name in self.mechanisms or ():
      registry.kind(name)
    names = self.mechanisms or tuple(registry.KINDS)
    for option, value in self.options.items():
      having = [
        name for name, kind in registry.options()[option].items() if kind.is_compared
      ]
      if not set(having) & set(names):  # No row would have it.
        raise ValueError(
          f'{option}={value} is for {", ".join(having)}, not for {", ".join(names)}; '
          'leave it out, or compare one of them.'
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


@dataclasses.dataclass(frozen=True)
class Row:
  """One mechanism, with its noise."""

  mechanism: mechanism_lib.Mechanism
  sampling: str  # What its guarantee assumes, a key of `assumptions()`.
  accountant: str
  epsilon: float  # At the task's delta.
  equal_noise_multiplier: float  # Noise with which epsilon is the same in all rows.
  # By where the noise of earlier rounds is kept.
  costs: dict[str, strategies.strategy.Cost]
  variant: int = 0  # Number among the rows of its mechanism.
  instead: Optional[accountants.Instead] = None  # Whose bound is stated instead.

  @property
  def name(self) -> str:
    """Mechanism and parameters."""
    words = [self.mechanism.name]
    for option in registry.kind(self.mechanism.name).options:
      value = option.read(self.mechanism.strategy)
      if value is not None:
        words.append(option.in_words(value))
    return ', '.join(words)

  @functools.cached_property
  def error_by_round(self) -> np.ndarray:
    """Standard deviation of the noise in each prefix sum, in clip norms; shape [n]."""
    errors = self.mechanism.strategy.per_query_error()
    return self.mechanism.noise_multiplier * np.sqrt(errors)

  @property
  def rmse(self) -> float:
    """Root mean square of `error_by_round`."""
    return math.sqrt(float(np.square(self.error_by_round).mean()))

  @property
  def max_error(self) -> float:
    """Largest of `error_by_round`."""
    return float(self.error_by_round.max())

  @property
  def equal_rmse(self) -> float:
    """`rmse` if the epsilon of all rows were the same."""
    return self.rmse * (self.equal_noise_multiplier / self.mechanism.noise_multiplier)

  @functools.cached_property
  def noise_per_coordinate(self) -> noise_to_signal_lib.Points:
    """Standard deviation of a round's noise in a coordinate, in clip norms."""
    return noise_to_signal_lib.summary(self.mechanism, model_size=1)

  @property
  def storage(self) -> str:
    """Where the noise of earlier rounds is kept, unless something else is asked for."""
    return strategies.strategy.cheapest(self.costs)

  @property
  def cost(self) -> strategies.strategy.Cost:
    """What keeping the noise of earlier rounds in `storage` costs."""
    return self.costs[self.storage]


class LeftOut(NamedTuple):
  """A row that is not there, and the reason, as a sentence."""

  mechanism: str
  sampling: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All mechanisms for a task."""

  task: Task
  # With which mechanisms are compared: the target; or, of a given noise, that of the
  # mechanism that is best without sampling.
  equal_epsilon: float
  # Those without sampling first; among their like, the least error at equal epsilon.
  rows: tuple[Row, ...]
  left_out: tuple[LeftOut, ...]

  @property
  def unsampled(self) -> tuple[Row, ...]:
    """Rows that assume nothing about sampling, the measure of all others."""
    return tuple(row for row in self.rows if row.sampling == 'none')

  def relative(self, row: Row, what: str) -> float:
    """A row's 'rmse', 'max_error' or 'equal_rmse' over the least without sampling."""
    smallest = min(getattr(each, what) for each in self.unsampled)
    return getattr(row, what) / smallest

  def noise_norm(self, row: Row) -> noise_to_signal_lib.Points:
    """How long a row's noise of all parameters together is, in clip norms."""
    return row.noise_per_coordinate.times(math.sqrt(self.task.model_size))

  def noise_to_signal(self, row: Row) -> Optional[noise_to_signal_lib.Points]:
    """`noise_norm` over the largest norm of the cohort's sum; `None` without cohort."""
    if self.task.clients_per_round is None:
      return None
    return self.noise_norm(row).times(1 / self.task.clients_per_round)

  def may_be_advised(self, row: Row) -> bool:
    """Whether the server can do what a row assumes, as far as is known."""
    return row.sampling in samplings()[self.task.sampling]

  @property
  def advised(self) -> Row:
    """The row with the best trade-off.

    Of those within 5% of the least RMSE at equal epsilon, and which take at most twice
    the time of the fastest of these, the one that keeps least from round to round; of
    equals, the one that takes least time, then the one with the least error.
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
  """Builds every mechanism for a task; `report` is told what is being computed.

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
    report(candidate.describe())
    try:
      mechanism = mechanism_lib.Mechanism(
        candidate.kind.name,
        candidate.schema,
        task.noise_multiplier or 1.0,
        options=candidate.options,
      )
    except (ValueError, RuntimeError) as e:  # Or it did not converge.
      leave_out(candidate, str(e))
      continue
    # More bands may come to the same as fewer.
    if not candidate.variant or mechanism.strategy not in [
      made.strategy
      for other, made in built
      if (other.kind, other.sampling) == (candidate.kind, candidate.sampling)
    ]:
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
        report(f'noise of {candidate.describe()}')
      try:
        rows.append(_row(task, candidate, mechanism, equal_epsilon))
      except (ValueError, dp_accounting.UnsupportedEventError) as e:
        leave_out(candidate, messages.without_cause(e))
  if not any(row.sampling == 'none' for row in rows):
    reasons = ' '.join(f'{each.mechanism}: {each.reason}' for each in left_out)
    raise ValueError(f'no mechanism can do it. {reasons}')
  order = list(assumptions())
  rows.sort(key=lambda row: (order.index(row.sampling), row.equal_rmse))
  return Comparison(task, equal_epsilon, tuple(rows), tuple(left_out))


class _Candidate(NamedTuple):
  """A row that may come to be; finding the number of groups takes time as well."""

  kind: registry.Kind
  sampling: str
  schema: sampling_lib.Schema
  options: dict[str, Any]
  variant: int = 0
  seconds_of_groups: float = 0.0

  @property
  def seconds(self) -> float:
    """About how long it takes to find the strategy."""
    own = self.kind.seconds(sampling_lib.limits_of(self.schema), **self.options)
    return own + self.seconds_of_groups

  def describe(self) -> str:
    about = f' (about {self.seconds:.0f} s)' if self.seconds >= 2 else ''
    options = ''.join(f', {key}={value}' for key, value in self.options.items())
    sampled = '' if self.sampling == 'none' else f', sampling: {self.sampling}'
    return f'{self.kind.name}{options}{sampled}{about}'

  def reason_against(self, task: Task) -> Optional[str]:
    """Why it is not to be built."""
    if task.target_rho is not None and self.sampling != 'none':
      return 'zCDP has no rho of sampled clients; give target_epsilon.'
    why_skip = self.kind.why_skip(sampling_lib.limits_of(self.schema), self.options)
    if why_skip is not None:
      return why_skip
    if self.seconds <= MAX_SECONDS or task.mechanisms is not None:
      return None
    quicker = [self.kind.quicker_with, '--num_groups' if self.seconds_of_groups else '']
    others = ' or '.join(filter(None, ['--mechanisms=all', *quicker]))
    return f'it would take about {self.seconds:,.0f} s; have it with {others}.'


def _candidates(task: Task) -> list[_Candidate]:
  names = task.mechanisms or registry.KINDS
  kinds = [kind for kind in registry.KINDS.values() if kind.name in names]
  candidates = [
    _Candidate(kind, 'none', task.limits, options, variant)
    for kind in kinds
    for variant, options in enumerate(kind.compared(task.limits, task.options))
  ]
  if task.num_clients is None or task.clients_per_round is None:
    return candidates
  cohort = {
    'num_rounds': task.limits.num_rounds,
    'num_clients': task.num_clients,
    'clients_per_round': task.clients_per_round,
  }
  for sampling, assumed in assumptions().items():
    if assumed.make is not None and assumed.noise_for is None:
      schema = assumed.make(**cohort)
      bands = 0
      if assumed.any_noise and sampling in samplings()[task.sampling]:
        bands = _best_bands(task, schema)
      for kind in kinds:
        if kind.is_independent or bands:
          options = {} if kind.bands is None else _bands(task, kind, bands)
          candidates.append(_Candidate(kind, sampling, schema, options))
  for sampling, assumed in assumptions().items():
    if assumed.noise_for is not None:
      schema, seconds = _in_groups(task, assumed, cohort)
      candidates.extend(
        _Candidate(kind, sampling, schema, _free_bands(task, kind, schema), 0, seconds)
        for kind in kinds
        if kind.bands is not None
      )
  return candidates


def least_error(numbers: Iterable[int], error: Callable[[int], float]) -> int:
  """The number with the least error, of those before it grows."""
  errors: dict[int, float] = {}
  for number in numbers:
    errors[number] = error(number)
    if errors[number] > CLOSE * min(errors.values()):
      break  # It gets no better.
  return min(errors, key=errors.__getitem__)


def _in_groups(
  task: Task, assumed: Assumption, cohort: dict[str, int]
) -> tuple[Any, float]:
  """A scheme with about the best number of groups; seconds, if that would take long.

  That with about the least RMSE, of the kind found in least time: more groups allow
  more bands, and leave less to sampling. The noise is a rough one.
  """
  assert assumed.make is not None and assumed.noise_for is not None
  make = functools.partial(assumed.make, **cohort)
  if task.num_groups is not None:
    return make(num_groups=task.num_groups), 0.0
  largest = min(
    cohort['num_clients'] // cohort['clients_per_round'], cohort['num_rounds']
  )
  powers = [2**i for i in range(largest.bit_length())]
  quickest, seconds = quickest_with_bands(task.limits), 0.0
  for schema in (make(num_groups=groups) for groups in powers):
    options = _free_bands(task, quickest, schema)
    seconds += quickest.seconds(sampling_lib.limits_of(schema), **options)
  if task.mechanisms is None and seconds > MAX_SECONDS:
    return make(num_groups=powers[-1]), seconds
  mu, noise_for = _mu(task), assumed.noise_for

  def error(groups: int) -> float:
    schema = make(num_groups=groups)
    strategy = mechanism_lib.strategy_for(
      quickest.name, schema, **_free_bands(task, quickest, schema)
    )
    return strategy.rmse() * noise_for(schema, mu)

  return make(num_groups=least_error(powers, error)), 0.0


def _best_bands(task: Task, schema: sampling_lib.Schema) -> int:
  """The number of bands, a power of 2, with about the least RMSE, as `_in_groups`.

  More bands have less error for the same noise, and leave less to sampling.
  """
  limits = sampling_lib.limits_of(schema)
  quickest = quickest_with_bands(limits)
  assert quickest.bands is not None
  if quickest.bands in task.options:
    return task.options[quickest.bands]
  epsilon = task.target_epsilon or gaussian.epsilon_of(_mu(task), task.target_delta)

  def error(bands: int) -> float:
    made = mechanism_lib.Mechanism.for_target(
      quickest.name,
      schema,
      epsilon,
      task.target_delta,
      accountant=task.accountant,
      options={quickest.bands: bands},
    )
    return made.strategy.rmse() * made.noise_multiplier

  most = strategies.participation.free_bands(limits)
  return least_error((2**i for i in range(most.bit_length())), error)


def _mu(task: Task) -> float:
  """That of the target, or of the Gaussian mechanism with the given level of noise."""
  if task.target_epsilon is not None:
    return gaussian.mu_of(task.target_epsilon, task.target_delta)
  assert task.noise_multiplier is not None
  return math.sqrt(task.limits.possible_participations) / task.noise_multiplier


def quickest_with_bands(limits: strategies.Participation) -> registry.Kind:
  """The kind with bands that is found in the least time."""
  return min(
    (kind for kind in registry.KINDS.values() if kind.bands is not None),
    key=lambda kind: kind.seconds(limits),
  )


def _bands(task: Task, kind: registry.Kind, bands: int) -> dict[str, int]:
  """So many bands, unless the task says how many."""
  assert kind.bands is not None
  return {kind.bands: task.options.get(kind.bands, bands)}


def _free_bands(
  task: Task, kind: registry.Kind, schema: sampling_lib.Schema
) -> dict[str, int]:
  """At most as many bands as there are groups: a client's rounds share no noise."""
  free = strategies.participation.free_bands(sampling_lib.limits_of(schema))
  return {name: min(each, free) for name, each in _bands(task, kind, free).items()}


def _accountant(task: Task, sampling: str, mechanism: mechanism_lib.Mechanism) -> str:
  if task.accountant is not None:
    return task.accountant
  if sampling not in samplings()[task.sampling]:
    quick = accountants.quick_bound(mechanism.event, mechanism.relation)
    if quick is not None:
      return quick
  return accountants.tightest(mechanism.event, mechanism.relation)


def _row(
  task: Task,
  candidate: _Candidate,
  mechanism: mechanism_lib.Mechanism,
  epsilon: float,
) -> Row:
  """A mechanism with its noise, calibrated to an epsilon unless the task has it."""
  accountant = _accountant(task, candidate.sampling, mechanism)
  enough = calibration.noise_multiplier(
    mechanism.event_with,
    epsilon,
    task.target_delta,
    accountant=accountant,
    relation=mechanism.relation,
  )
  if task.noise_multiplier is None:
    mechanism = dataclasses.replace(mechanism, noise_multiplier=enough)
  return Row(
    mechanism,
    candidate.sampling,
    accountant,
    mechanism.epsilon(task.target_delta, accountant=accountant),
    enough,
    strategies.strategy.by_storage(mechanism.strategy, task.num_bytes),
    candidate.variant,
    accountants.instead(
      mechanism.event, task.target_delta, accountant, mechanism.relation
    ),
  )

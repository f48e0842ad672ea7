"""Options of `train` besides model, clients and mechanism; imports no TensorFlow.

They raise TypeError or ValueError if a field is not of its type, or out of range;
functions check that they fit the mechanism.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.base import checks

if TYPE_CHECKING:
  import tensorflow_federated as tff

# Memory limits of canaries: dense matrices of rounds, and 2 GiB of directions.
_MAX_AUDITED_ROUNDS = 8192
_MAX_CANARY_NUMBERS = 2**29
# Value of `packed_simulation` that packs clients wherever that is possible.
AUTO = 'auto'
SUM, SECURE, MODULAR = 'sum', 'secure_sum', 'secure_modular_sum'
# Aggregators of a round's clipped values, with help texts; secure sums are simulated.
INNER = {
  SUM: 'a plain sum',
  SECURE: 'a secure sum, with bounds that nothing exceeds; of everything but integer '
  'noise',
  MODULAR: 'a secure sum modulo two to the --bits; of integer noise alone',
}


@dataclasses.dataclass(frozen=True)
class ClientTraining:
  """How the model is trained on each client of a round.

  Attributes:
    batch_size: Number of examples in a batch.
    epochs: Passes over a client's examples in a round; together they are cut into
      batches.
    optimizer: One of `tff.learning.optimizers`; `None` for SGD with learning rate 0.1.
      With `learning_rate_fn` it is a function of the learning rate.
    learning_rate_fn: Maps the number of a round, from 0, to the clients' learning rate
      in it, such as `lambda round_num: 0.1 * 0.99**round_num`. (A schedule within an
      optimizer counts a client's steps, and restarts in each round.) `optimizer` is
      then a function such as `tff.learning.optimizers.build_sgdm`, the default.
    proximal_strength: How strongly training is pulled towards the server's model
      (FedProx, arXiv:1812.06127); `None` for federated averaging.
  """

  batch_size: int = 16
  epochs: int = 1
  optimizer: Union[
    'tff.learning.optimizers.Optimizer',
    Callable[[Any], 'tff.learning.optimizers.Optimizer'],
    None,
  ] = None
  learning_rate_fn: Optional[Callable[[int], float]] = None
  proximal_strength: Optional[float] = None

  def __post_init__(self) -> None:
    checks.check_positive_int('batch_size', self.batch_size)
    checks.check_positive_int('epochs', self.epochs)
    if self.proximal_strength is not None:
      checks.check_not_negative('proximal_strength', self.proximal_strength)


@dataclasses.dataclass(frozen=True)
class Server:
  """How the server aggregates and applies updates, besides the mechanism.

  Attributes:
    optimizer: Applies the mean of updates. `None` for the default of
      `build_dp_fed_avg`: SGD with learning rate 0.2 and momentum 0.9. `ServerSchedule`
      has strategies for momentum, and the optimizer for them; `build_ftrl` is DP-FTRL,
      and with momentum DP-FTRLM, on the sum of the means so far.
    inner_aggregator: How clipped updates are summed: 'sum', 'secure_sum', or for
      integer noise 'secure_modular_sum'. Secure sums are simulated, to the same result.
    zeroing_norm: Updates of a larger L2 norm count as zeros; `None` for no limit. It
      must not be chosen by looking at the clients' updates.
    coordinate_bound: Upper bound of the magnitude of an update's coordinates, before it
      is clipped; `None` for no bound. It must not be chosen by looking at updates.
    clip_order: Without a mechanism, the p of the p-norm in which updates are clipped:
      at least 1, `math.inf` for each entry, `None` for 2. A mechanism clips in the norm
      of its noise.
    target_quantile: Adaptive clipping: the fraction of clients to leave unclipped;
      `None` for the default of `aggregators.adaptive`.
    clip_learning_rate: Adaptive clipping: its `learning_rate`; `None` for the default
      of `aggregators.adaptive`.
    not_private_signal_to_noise: Whether to measure in each round how large the exact
      sum is relative to the noise, in columns of `metrics.csv`. It is not private, and
      the report says that the guarantee does not cover it.
  """

  optimizer: Optional['tff.learning.optimizers.Optimizer'] = None
  inner_aggregator: str = SUM
  zeroing_norm: Optional[float] = None
  coordinate_bound: Optional[float] = None
  clip_order: Optional[float] = None
  target_quantile: Optional[float] = None
  clip_learning_rate: Optional[float] = None
  not_private_signal_to_noise: bool = False

  def __post_init__(self) -> None:
    if self.inner_aggregator not in tuple(INNER):
      raise ValueError(
        f'inner_aggregator must be one of {", ".join(INNER)}; got '
        f'{self.inner_aggregator!r}.'
      )
    for name in ('zeroing_norm', 'coordinate_bound'):
      if getattr(self, name) is not None:
        checks.check_positive(name, getattr(self, name))
    for name in ('target_quantile', 'clip_learning_rate'):
      if getattr(self, name) is not None:
        checks.check_number(name, getattr(self, name))
    order = self.clip_order
    if order is not None and not checks.check_number('clip_order', order) >= 1:
      raise ValueError(f'clip_order must be at least 1, or infinite; got {order}.')
    checks.check_bool('not_private_signal_to_noise', self.not_private_signal_to_noise)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Test data, and metrics to evaluate on it during training.

  Attributes:
    data: Inputs and labels, `(x, y)` or named `x` and `y`, of nobody whose privacy is
      to be protected. `None` for no evaluation.
    metrics: Metrics besides the loss, by name: functions of the labels of all test
      examples and the model's outputs, as in scikit-learn and Keras; a `MeanMetric`
      where outputs are large; Keras metrics, or their names. A metric named 'loss'
      replaces the model's loss. Or a list of metrics that have names; `None` for those
      that a Keras model was compiled with.
    every: Rounds between two evaluations; the last round is always evaluated. A run may
      be resumed with another number.
  """

  data: Any
  metrics: Any = None
  every: int = 1

  def __post_init__(self) -> None:
    checks.check_positive_int('every', self.every)
    if self.data is None and (self.metrics or self.every != 1):
      raise ValueError(f'metrics, and every={self.every}, need data to be measured on.')


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """How a run is carried out, and what is recorded with it.

  Attributes:
    noise_seed: Seed of the noise, for simulations that are to be repeated; `None` for
      secret noise, the only noise that clients add.
    packed_simulation: Whether to pack clients; 'auto' packs them where that is
      possible, and says why not where it is not.
    checkpoint_seconds: Minimum time between two checkpoints.
    timeout_seconds: Maximum duration of a round; `None` for no limit. A round that
      takes longer ends with an error; the same call resumes.
    trusted_network: Whether a scheduler on another machine may be reached by `tcp://`,
      because nobody else is on the network.
    settings: Further settings to record in `config.json`, under `flags`; JSON-ready.
    preprocessing: How the clients' inputs were made, for new data to be prepared in the
      same way: JSON-ready, kept as `preprocessing.json`. It is confidential if it was
      computed from clients' data, as means are.
    target_epsilon: The target that the mechanism was calibrated to, for the report;
      `None` for that of `Mechanism.for_target`, if it was at the same `delta`.
    not_covered: What else was computed from clients' data without noise, a sentence
      each, such as 'Features were scaled by the mean of all examples.', for the report.
    tuning: The number of runs on the same clients from which this one was chosen, and
      what all of them together spend, for the report; `None` if that is not known.
    data_facts: Facts about the data for the report, such as numbers of examples: they
      are exact, and marked as not private; JSON-ready.
    audit_canaries: Number of artificial clients that measure what an attacker achieves;
      the report has the resulting lower bounds of epsilon (`accounting.canaries`). They
      count as clients in everything, and need packed simulation, fixed clipping and
      Gaussian noise of the server. 0 for none.
    audit_confidence: Probability that these bounds are right; `None` means 0.95.
  """

  noise_seed: Optional[int] = None
  packed_simulation: Union[bool, str] = AUTO
  checkpoint_seconds: float = 30.0
  timeout_seconds: Optional[float] = 3600.0
  trusted_network: bool = False
  settings: Optional[Mapping[str, Any]] = None
  preprocessing: Optional[Mapping[str, Any]] = None
  target_epsilon: Optional[float] = None
  not_covered: Sequence[str] = ()
  tuning: Optional[model.Tuning] = None
  data_facts: Optional[Mapping[str, Any]] = None
  audit_canaries: int = 0
  audit_confidence: Optional[float] = None

  def __post_init__(self) -> None:
    checks.check_int('audit_canaries', self.audit_canaries, at_least=0)
    if self.audit_confidence is not None:
      canaries.check_confidence(self.audit_confidence, 'audit_confidence')
      if not self.audit_canaries:
        raise ValueError(
          f'audit_confidence={self.audit_confidence} is for audit_canaries, which is '
          '0; leave it out.'
        )
    if self.noise_seed is not None:
      checks.check_int('noise_seed', self.noise_seed)
    if self.packed_simulation not in (True, False, AUTO):
      raise ValueError(
        f"packed_simulation must be True, False or '{AUTO}'; got "
        f'{self.packed_simulation!r}.'
      )
    if not checks.check_number('checkpoint_seconds', self.checkpoint_seconds) >= 0:
      raise ValueError(
        f'checkpoint_seconds must be at least 0; got {self.checkpoint_seconds}.'
      )
    checks.check_timeout(self.timeout_seconds)
    checks.check_bool('trusted_network', self.trusted_network)
    for name in ('settings', 'preprocessing', 'data_facts'):
      if getattr(self, name) is not None:
        checks.check_json(name, getattr(self, name))
    if self.tuning is not None and not isinstance(self.tuning, model.Tuning):
      raise TypeError(
        f'tuning must be a Tuning(num_runs, epsilon); got {self.tuning!r}.'
      )
    if self.target_epsilon is not None:
      checks.check_number('target_epsilon', self.target_epsilon)
    object.__setattr__(self, 'not_covered', sources.check_not_covered(self.not_covered))


@dataclasses.dataclass(frozen=True)
class SimulatedCohort:
  """A mechanism that simulates a cohort and a population that are `scale` times larger.

  The noise is the mechanism's, divided by `scale`. Such a run predicts the result of
  training on so many clients. **It carries no guarantee**; all its output files say so
  and state both cohort sizes.

  Attributes:
    mechanism: The mechanism of the larger cohort, with noise of the server.
    scale: At least 1, and finite; with 1 the noise is the mechanism's own.
  """

  mechanism: Optional[mechanism_lib.Mechanism]
  scale: float

  def __post_init__(self) -> None:
    scale = checks.check_within('scale', self.scale, 1, math.inf)
    object.__setattr__(self, 'scale', scale)


class TooFewExamplesError(ValueError):
  """A client has fewer examples than the noise was planned for."""


def check_together(
  run: RunOptions,
  server: Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  *,
  clip_norm: Optional[float],
  scheduler: Any,
  cohort_scale: float,
  is_nbafl: bool,
  schedule: Optional[sampling.Schedule] = None,
  model_size: Any = None,
  are_flags: bool = False,
) -> None:
  """Refuses options that do not go with each other, or not with the mechanism.

  `schedule`, `model_size`: Where they are known.
  """
  of_run = '--' if are_flags else 'run.'
  if mechanism is not None:
    check_adjacency('mechanism.adjacency', mechanism.adjacency, mechanism.participation)
  scale_name = '--simulated_cohort_scale' if are_flags else 'scale'
  _check_scale(cohort_scale, mechanism, scale_name)
  _check_server(server, mechanism, clip_norm, '--' if are_flags else 'server.')
  one_by_one = why_one_by_one(run, server, mechanism, are_flags)
  if run.audit_canaries:
    _check_canaries(
      f'{of_run}audit_canaries={run.audit_canaries}',
      run.audit_canaries,
      mechanism,
      server,
      is_packed=one_by_one is None,
      is_other_noise=is_nbafl or cohort_scale != 1,
      model_size=model_size,
    )
  seed = 'no --secret_noise' if are_flags else f'run.noise_seed={run.noise_seed}'
  # With one seed, all clients would add the same noise.
  is_noise_seeded = mechanism is not None and (
    mechanism.adds_noise_on_clients and run.noise_seed is not None
  )
  for stated, is_stated in (
    (_stated(of_run, 'packed_simulation', True), run.packed_simulation is True),
    (f'{"--" if are_flags else ""}scheduler={scheduler}', scheduler is not None),
    (f'noise that each client draws, with {seed},', is_noise_seeded),
  ):
    if is_stated and one_by_one is not None:
      raise ValueError(
        f'{stated} is for packs of clients, and these clients are trained one by one: '
        f'{one_by_one}. Leave one of them out.'
      )
  if mechanism is not None and schedule is not None:
    _check_clients(mechanism, schedule, '--' if are_flags else '')


def _stated(prefix: str, name: str, value: Any) -> str:
  """Returns an option as it was given, in Python or as a flag."""
  if prefix == '--' and isinstance(value, bool):
    return f'--{name}' if value else f'--no{name}'
  return f'{prefix}{name}={value}'


def check_adjacency(
  name: str, adjacency: Optional[str], schema: sampling.Schema
) -> None:
  """Refuses a relation that the ledger of a run without sampling has no events for."""
  own = sampling.adjacency(sampling.check_relation(schema))
  if adjacency not in (None, own) and not sampling.is_sampled(schema):
    raise ValueError(
      f'{name}={adjacency} does not go with a run without sampling, whose ledger has '
      f'events for {own}. Leave it out; for a plan, tff-dp-report takes it.'
    )


def _check_scale(
  scale: float, mechanism: Optional[joint_mechanism.AnyMechanism], name: str
) -> None:
  """Refuses a larger cohort's noise unless one server adds it for all weights."""
  if mechanism is None:
    given = 'training without a mechanism'
  elif mechanism.parts:
    given = 'a joint mechanism'
  else:
    given = f'noise_site={mechanism.noise_site}'
  if scale != 1 and given != 'noise_site=server':
    raise ValueError(
      f'{name}={scale:g} does not go with {given}: it is for the noise of one server, '
      'under one mechanism for all weights. Leave one of them out.'
    )


def _check_clients(
  mechanism: joint_mechanism.AnyMechanism, schedule: sampling.Schedule, prefix: str
) -> None:
  """Refuses cohorts of other sizes than planned, and retries that no event counts."""
  numbers, cohort = dict(mechanism.options), schedule.clients_per_round
  min_clients, max_clients = numbers.get('min_clients', 0), numbers.get('max_clients')
  if max_clients is not None and max_clients < cohort:
    raise ValueError(
      f'{prefix}max_clients={max_clients}, and rounds ask for {cohort:g} clients, '
      f'whose sum might wrap around: plan with {prefix}max_clients='
      f'{math.ceil(cohort)} or more.'
    )
  dropouts = getattr(schedule, 'dropouts', None)
  goal, rounds = schedule.reporting_goal, range(schedule.num_rounds)
  placement = mechanism.placement
  if placement.is_on_clients and placement.is_of_client:
    if (dropouts and goal is not None) or (
      not dropouts and any(len(schedule.attempts(number)) > 1 for number in rounds)
    ):
      raise ValueError(
        f'rounds that are tried again ({prefix}reporting_goal={goal}) do not go with '
        f'{prefix}noise_site={placement.name}: clients have sent their updates by '
        'then, and send others when they are asked again, which no event counts. Leave '
        'the reporting goal out: with noise of its own a client is hidden in any round.'
      )
  if dropouts and min_clients > (goal or 0):
    raise ValueError(
      f'{prefix}min_clients is {min_clients}, and clients drop out with '
      f'{prefix}reporting_goal={goal}: a round in which fewer report cannot be '
      f'released. Give the schedule {prefix}reporting_goal={min_clients} or more, so '
      f'that such a round is tried again, or plan with a smaller {prefix}min_clients.'
    )
  if dropouts or not min_clients:
    return
  for number in rounds:
    size = len(schedule.cohort(number))
    if size < min_clients:
      raise ValueError(
        f'round {number} is of {size} clients, but {prefix}min_clients is '
        f'{min_clients}. Ask for more clients a round, or plan with a smaller '
        f'{prefix}min_clients.'
      )


def _check_canaries(
  stated: str,
  number: int,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  server: Server,
  *,
  is_packed: bool,
  is_other_noise: bool,
  model_size: Any,
) -> None:
  """Refuses canaries without a claimed epsilon, or that the run cannot carry."""
  gaussian_of_server = (
    isinstance(mechanism, mechanism_lib.Mechanism)
    and mechanism.has_noise
    and mechanism.noise_site == 'server'
    and mechanism.noise.is_gaussian
    and mechanism.clipped_count_stddev is None
  )
  rounds = 0 if mechanism is None else mechanism.limits.num_rounds
  size = model_size if isinstance(model_size, int) else 0
  for does_not_fit, why in (
    (
      not gaussian_of_server or is_other_noise,
      'their scores are for Gaussian noise of the server, without adaptive clipping, a '
      'joint mechanism, a larger cohort or NbAFL',
    ),
    (
      server.zeroing_norm is not None or server.coordinate_bound is not None,
      'zeroing_norm and coordinate_bound would change what they send; leave them out',
    ),
    (
      not is_packed,
      'clients are trained one by one, and they are added to sums of packs',
    ),
    (
      rounds > _MAX_AUDITED_ROUNDS,
      f'the noise covariance of at most {_MAX_AUDITED_ROUNDS} rounds fits in memory',
    ),
    (
      number * size > _MAX_CANARY_NUMBERS,
      f'their directions of {size} parameters do not fit in memory; at most '
      f'{_MAX_CANARY_NUMBERS // max(size, 1)} do',
    ),
  ):
    if does_not_fit:
      raise ValueError(f'{stated} does not go with this: {why}.')


def _check_server(
  server: Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
  prefix: str,
) -> None:
  """Refuses options of the server that do not go with the mechanism, or with none."""
  plain, secure, modular = INNER
  inner = server.inner_aggregator
  is_adaptive = is_of_server = False
  fits = secure
  if mechanism is not None:
    is_adaptive = mechanism.clipped_count_stddev is not None
    is_of_server = mechanism.noise_site == 'server'
    fits = modular if mechanism.has_integer_noise else secure
  is_clipped_alone = mechanism is None and clip_norm is not None
  for name, purpose, is_so in (
    ('clip_order', 'a clip_norm without a mechanism', is_clipped_alone),
    ('not_private_signal_to_noise', 'noise of the server', is_of_server),
    ('target_quantile', 'adaptive clipping', is_adaptive),
    ('clip_learning_rate', 'adaptive clipping', is_adaptive),
  ):
    value = getattr(server, name)
    if value is not None and value is not False and not is_so:
      stated = _stated(prefix, name, value)
      raise ValueError(f'{stated} is for {purpose}; leave it out.')
  if inner != plain and (inner != fits or (mechanism or clip_norm) is None):
    raise ValueError(
      f'{prefix}inner_aggregator={inner} does not go with this: clipped updates with '
      f'integer noise (skellam, discrete_gaussian) take {modular} or {plain}, other '
      f'clipped updates {secure} or {plain}, and updates without clip norm {plain}.'
    )


def why_one_by_one(
  run: RunOptions,
  server: Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  are_flags: bool = False,
) -> Optional[str]:
  """Why clients cannot be packed; `None` if they can."""
  of_run, of_server = ('--', '--') if are_flags else ('run.', 'server.')
  if mechanism is not None and mechanism.has_integer_noise:
    return f'each client draws its share of {mechanism.name} noise with its own key'
  if server.inner_aggregator != SUM:
    name = f'{of_server}inner_aggregator={server.inner_aggregator}'
    return f'{name} sums what each client sends'
  return None if run.packed_simulation else _stated(of_run, 'packed_simulation', False)

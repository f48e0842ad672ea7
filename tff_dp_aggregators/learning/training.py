"""Trains a federated model with differential privacy, and reports the guarantee."""

import contextlib
import dataclasses
import gc
import math
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional, Union, cast

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.execution_contexts import compiler_pipeline
from tensorflow_federated.python.learning.models import functional

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import cluster as cluster_lib
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import optimizers
from tff_dp_aggregators.learning import options
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.runs import evaluation
from tff_dp_aggregators.learning.runs import plan as plan_lib
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import records
from tff_dp_aggregators.learning.runs import run as run_lib
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model

if TYPE_CHECKING:  # It takes long to load, and few need it.
  import distributed

# The delta of ledger lines without privacy, where epsilon is infinite at any delta.
_DELTA_WITHOUT_PRIVACY = 1e-5
_WHAT_TO_GIVE = {
  'delta': 'epsilon is reported at it. Give one well below one over the number of '
  'clients',
  'clip_norm': 'a mechanism needs it',
  **dict.fromkeys(('clients_per_round', 'num_rounds'), 'give it, or a schedule'),
}


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a run.

  Attributes:
    run_dir: The run's directory.
    rounds: Number of rounds released, according to the ledger.
    num_rounds: Number of rounds planned.
    epsilon: The report's epsilon at `delta`, that of the whole plan even if not all
      rounds were run; infinite without privacy, and with a simulated cohort's noise.
    delta: The delta at which epsilon was computed.
    metrics: The row of the last round in `metrics.csv`.
    weights: The model's weights, as NumPy arrays.
    statement: The statement from which the report is rendered.
    simulated_epsilon: What a run with the simulated cohort would have spent; if it is
      not `None`, there is no guarantee.
  """

  run_dir: str
  rounds: int
  num_rounds: int
  epsilon: float
  delta: float
  metrics: dict[str, Any]
  # Left out of the repr, because they would fill the screen.
  weights: tff.learning.models.ModelWeights = dataclasses.field(repr=False)
  statement: dict[str, Any] = dataclasses.field(repr=False)
  simulated_epsilon: Optional[float] = None
  # The user's function that makes the model, if one was given.
  _make: Optional[Callable[[], Any]] = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @property
  def model(self) -> Any:
    """A new model with these weights; see `learning.load`, also for its errors."""
    return saved_model.load(self.run_dir, model=self._make)

  @property
  def is_finished(self) -> bool:
    """Whether all rounds were run; if not, the same call of `train` resumes the run."""
    # A resumed run has the ledger's lines before it has recomputed the results.
    return self.rounds == self.num_rounds == self.metrics['round'] + 1


# One training at a time: TensorFlow's and TFF's contexts belong to the whole process.
_TRAIN_LOCK = threading.RLock()


@contextlib.contextmanager
def _serialized() -> Iterator[None]:
  """Lets one thread train at a time, and frees its graphs, some 40 MB, afterwards."""
  with _TRAIN_LOCK:
    try:
      yield
    finally:
      compiler_pipeline.CompilerPipeline.compile.cache_clear()
      for function in (
        functional.empty_metrics_state,
        functional.noop_update_metrics,
        functional.noop_finalize_metrics,
      ):
        function._function_cache.clear()
    gc.collect()  # Graphs and models refer to each other.


@_serialized()
def train(
  model: Any,
  clients: Any,
  mechanism: Union[
    joint_mechanism.AnyMechanism, options.SimulatedCohort, accounting.nbafl.Nbafl, None
  ],
  run_dir: str,
  *,
  delta: Optional[float] = None,
  clip_norm: Optional[float] = None,
  clients_per_round: Optional[int] = None,
  num_rounds: Optional[int] = None,
  schedule: Optional[sampling.Schedule] = None,
  loss: Optional[models.Loss] = None,
  seed: Optional[int] = None,
  scheduler: Union[str, 'distributed.Client', None] = None,
  local: options.ClientTraining = options.ClientTraining(),
  server: options.Server = options.Server(),
  test: Any = None,
  run: options.RunOptions = options.RunOptions(),
) -> Result:
  """Trains a federated model with differential privacy and writes a privacy report.

  The same call with the same `run_dir` resumes a run that was stopped, for whatever
  reason: a round that is run again gives the same bits as before, which the ledger
  proves, or the run stops with an error. A finished run is not repeated; its result is
  returned. A line on standard error says which of these happens. Ctrl-C ends the run
  after the current round, with a checkpoint and a report of what was spent by then.
  Trainings in several threads of a process run one after the other.

  Clients are simulated, packed if that is possible: see `learning.packed`. Where their
  noise is drawn without `noise_seed`, no round is run, or released, twice.

  Args:
    model: A `tff.learning.models.FunctionalModel`; or a Keras model, or a function that
      makes one, with a `loss`. It may draw random numbers only from seeds that are
      derived from weights and batch.
    clients: Inputs and labels of each client, `(x, y)` or named `x` and `y`: anything
      that `Clients.of` takes, such as a mapping from ids; or `packed.PackedData`.
    mechanism: Strategy, participation and noise; `None` for training without privacy.
      An `accounting.JointMechanism` has them for each part of the weights, by their
      names in `weight_names`. A `learning.SimulatedCohort` has less noise, and no
      guarantee. An `accounting.nbafl.Nbafl` has the noise of that plan
      (arXiv:1911.00222), which the other arguments have to be those of; the report has
      what its formulas claim next to what holds.
    run_dir: The directory of the run's files, which `docs/threat_model.md` lists. It
      does not exist, is empty, or is that of the same run.
    delta: The delta at which epsilon is reported; well below one over the number of
      clients. It may be left out without a mechanism, where epsilon is infinite.
    clip_norm: Bound of one client's update in one round, the initial one if the
      mechanism adapts it: of its L2 norm, and with Laplace noise of its L1 norm. `None`
      for parts of a joint mechanism, which have their own, or for no clipping without a
      mechanism.
    clients_per_round: Clients requested for a round, which is the mean's denominator;
      with Poisson sampling the expected number. `None` for that of `schedule`.
    num_rounds: Rounds to train. `None` for those of mechanism or schedule.
    schedule: Which clients take part in which round; `None` for one that satisfies the
      assumptions of the mechanism's guarantee, see `sampling.for_mechanism`.
    loss: Loss of a Keras model, or its name; `None` for the one it was compiled with.
    seed: Seed of cohorts and of the order of examples. `None` draws one of 128 bits,
      which is kept in `private.json`. Where privacy rests on secret draws, a seed that
      can be guessed voids amplification by sampling, and the report says so.
    scheduler: Where packs of clients are trained, with the same result: 'local:4' for
      four processes of this machine, the address of a Dask scheduler, such as
      'tcp://10.0.0.1:8786' or 'tls://...', or a `distributed.Client`; `None` for this
      process. State, noise and its keys stay in this process.
    local: How the model is trained on a client: batches, epochs and optimizer.
    server: How the server sums updates, and its optimizer.
    test: An `Evaluation`, or only its data: inputs and labels of nobody whose privacy
      is to be protected; `None` for no evaluation.
    run: The seed of the noise, how the run is carried out, and facts for its report.

  Raises:
    BlockingIOError: If another process is running the same run.
    ClusterError: If a cluster cannot be used (any more); the same call resumes the run.
    FileExistsError: If `run_dir` has files that do not belong to a run.
    ComputationError: If a round fails; with the round, its clients, and why.
    PopulationTooSmallError: If clients are too few; the message says what would fit.
    RoundTimeoutError: If a round takes longer than `run.timeout_seconds`.
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range or does not fit the others, or the run in
      `run_dir` has other settings, lost files, or another result of a repeated round.

  Example:
    >>> import tempfile
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> ones = np.ones([6, 1], np.float32)
    >>> clients = {f'client {i}': (i * ones, i * ones) for i in range(40)}
    >>> participation = strategies.Participation(num_rounds=4, min_separation=4)
    >>> mechanism = accounting.Mechanism.for_target('banded', participation, 8.0, 1e-3)
    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])])
    >>> result = train(
    ...   model,
    ...   clients,
    ...   mechanism,
    ...   tempfile.mkdtemp(),
    ...   loss='mse',
    ...   delta=1e-3,
    ...   clip_norm=1.0,
    ...   clients_per_round=10,
    ...   local=options.ClientTraining(batch_size=3),
    ... )
    >>> result.is_finished, round(result.epsilon, 6)
    (True, 8.0)
  """
  if getattr(multiprocessing.current_process(), '_inheriting', False):
    sys.exit(1)  # A worker process loads a script that lacks a check of __name__.
  for name, given, kind in (
    ('local', local, options.ClientTraining),
    ('server', server, options.Server),
    ('run', run, options.RunOptions),
  ):
    if not isinstance(given, kind):
      raise TypeError(f'{name} must be a learning.{kind.__name__}; got {given!r}.')
  if not isinstance(test, options.Evaluation):
    test = options.Evaluation(test)
  mechanism, scale, nbafl = _mechanism(mechanism)
  for name, given, is_needed in (
    ('delta', delta, mechanism is not None),
    ('clip_norm', clip_norm, mechanism is not None and not mechanism.parts),
    ('clients_per_round', clients_per_round, schedule is None),
    ('num_rounds', num_rounds, schedule is None and mechanism is None),
  ):
    if is_needed and given is None:
      raise ValueError(f'{name} is missing: {_WHAT_TO_GIVE[name]}.')
  delta = gaussian.check_delta(
    _DELTA_WITHOUT_PRIVACY if delta is None else delta, 'delta'
  )
  for name in ('noise_seed', 'target_epsilon'):
    if mechanism is None and getattr(run, name) is not None:
      value = getattr(run, name)
      raise ValueError(f'run.{name}={value} is for a mechanism; leave it out.')
  address = scheduler if isinstance(scheduler, str) else None
  cluster_lib.check(address, run.trusted_network)
  run_directory.check_usable(run_dir)
  if mechanism is not None and mechanism.parts and clip_norm is not None:
    raise ValueError(
      f'clip_norm={clip_norm:g} does not go with a joint mechanism: each of its parts '
      'has its own. Leave it out.'
    )
  if seed is None:
    seed = run_directory.secret_seed(run_dir)
  seed = checks.check_int('seed', seed, at_least=0)
  canaries = None
  if run.audit_canaries:
    canaries = packed.Canaries(
      run.audit_canaries, seed, run.audit_confidence or accounting.canaries.CONFIDENCE
    )
  population = plan_lib.Population(clients, canaries)
  if schedule is None:
    numbers: Any = (len(population), clients_per_round, seed)
    if mechanism is None:
      limits = strategies.Participation(cast(int, num_rounds))
      schedule = sampling.for_scheme(limits, *numbers)
    else:
      schedule = sampling.for_mechanism(mechanism, *numbers)
  _check_schedule(schedule, len(population), clients_per_round, num_rounds)
  schedule = schedule.for_clients(population.draw_ids)
  doubt = gaussian.doubt_of_delta(delta, scale * len(population))
  if mechanism is not None and doubt is not None:
    warnings.warn(doubt, stacklevel=3)  # The caller of the decorated function.
  if population.is_laid_out:
    functional_model = models.functional(model, loss, None)
  else:
    by_number = population.clients
    functional_model = models.functional(
      model,
      loss,
      by_number.element_spec,
      by_number.owner(0),
      seed,
      by_number.are_batched,
    )
    if isinstance(functional_model, models.KerasFunctionalModel):
      population.given = by_number.checked_by(functional_model.check_examples)
  compiled = getattr(getattr(functional_model, 'keras_model', None), 'optimizer', None)
  if compiled is not None and local.optimizer is None:
    raise ValueError(
      f'the model is compiled with the optimizer {compiled.name} of Keras, and clients '
      'are trained by one of TFF: give local.optimizer, such as '
      'tff.learning.optimizers.build_sgdm(0.1).'
    )
  local_training = _local_training(functional_model, local, schedule.num_rounds)
  server_optimizer = optimizers.check_optimizer(
    'server.optimizer', server.optimizer, fed_avg.default_server_optimizer()
  )
  if isinstance(server_optimizer, optimizers.FTRL):
    server_optimizer = server_optimizer.on_means()
  plan = plan_lib.Plan(
    training=local_training,
    server=dataclasses.replace(server, optimizer=server_optimizer),
    clients=population,
    mechanism=mechanism,
    schedule=schedule,
    clip_norm=clip_norm,
    delta=delta,
    target=_target(run.target_epsilon, mechanism, delta),
    seed=seed,
    evaluate_every=test.every,
    options=run,
    simulated_cohort_scale=scale,
    nbafl=nbafl,
    canaries=canaries,
  )
  plan.check(scheduler)
  training_lib.refuse_random_models(local_training)
  evaluator = _evaluator(local_training.model, test, run_dir)
  with run_directory.RunDirectory(run_dir) as directory:
    training = run_lib.Run(plan, directory, evaluator)
    if records.find(directory, schedule.num_rounds).is_finished:
      progress.say(f'{run_dir}: finished before; nothing was trained.', sys.stderr)
    else:
      directory.keep_preprocessing(run.preprocessing)
      saved_model.save(directory, local_training.model)
      cluster = None
      with contextlib.ExitStack() as stack:
        if plan.packed:
          leaving = stack.enter_context(interrupts.ending())
          if scheduler is not None:
            client = stack.enter_context(
              cluster_lib.connect(scheduler, trusted_network=run.trusted_network)
            )
            cluster = cluster_lib.Cluster(client, run.timeout_seconds)
          stack.callback(leaving.set)
        else:
          stack.enter_context(
            runtime.local_runtime(
              timeout_seconds=run.timeout_seconds,
              simulated_secure_sums=server.inner_aggregator != options.SUM,
            )
          )
        stop = stack.enter_context(
          interrupts.graceful_interrupts(
            'Ending after this round; press Ctrl-C again to end at once.'
          )
        )
        training.go(stop, cluster)
    is_model = isinstance(model, (tf.keras.Model, tff.learning.models.FunctionalModel))
    return _result(training, None if is_model else model)


def _mechanism(
  given: Any,
) -> tuple[
  Optional[joint_mechanism.AnyMechanism], float, Optional[accounting.nbafl.Nbafl]
]:
  scale, nbafl = 1.0, None
  if isinstance(given, options.SimulatedCohort):
    given, scale = given.mechanism, given.scale
  elif isinstance(given, accounting.nbafl.Nbafl):
    nbafl = given
    given = accounting.Mechanism(**nbafl.mechanism_arguments())
  mechanism_types = (accounting.Mechanism, accounting.JointMechanism)
  if given is not None and not isinstance(given, mechanism_types):
    raise TypeError(
      'mechanism must be an accounting.Mechanism, JointMechanism or nbafl.Nbafl, a '
      f'learning.SimulatedCohort of a mechanism, or None; got {given!r}.'
    )
  return given, scale, nbafl


def _evaluator(
  model: tff.learning.models.FunctionalModel, test: options.Evaluation, run_dir: str
) -> Optional[evaluation.Evaluator]:
  if test.data is None:
    return None
  evaluator = evaluation.Evaluator(model, test.data, test.metrics)
  clients_lib.check_finite(
    evaluator.examples, 'test data', 'No loss can be measured on it.'
  )
  if not run_directory.looks_finished(run_dir):
    if isinstance(model, models.KerasFunctionalModel) and evaluator.takes_loss:
      model.check_examples(evaluator.examples, 'test data')  # Names the row and value.
    evaluator.check(model.initial_weights)
  return evaluator


def _target(
  given: Optional[float],
  mechanism: Optional[joint_mechanism.AnyMechanism],
  delta: float,
) -> Optional[mechanism_lib.Target]:
  if mechanism is None or mechanism.placement.is_simulation:
    return None  # Without a guarantee, there is no target to record.
  known = mechanism.target
  if known is not None and known.rho is not None and given is None:
    return dataclasses.replace(known, delta=delta)
  if known is not None and known.delta == delta and given in (None, known.epsilon):
    return known
  if given is None:
    return None
  # Otherwise only the report would refuse it, after the training.
  gaussian.check_epsilon(given, 'run.target_epsilon')
  spent = mechanism.epsilon(delta)
  if spent > given:
    raise ValueError(
      f'run.target_epsilon={given:g} is less than the mechanism spends, epsilon = '
      f'{rounding.up(spent)} at delta = {delta:g}: leave it out, or take the mechanism '
      'that Mechanism.for_target makes for it.'
    )
  return mechanism_lib.Target(given, delta)


def _local_training(
  model: tff.learning.models.FunctionalModel,
  local: options.ClientTraining,
  num_rounds: int,
) -> packed.LocalTraining:

  def checked(optimizer: Any) -> tff.learning.optimizers.Optimizer:
    inner = optimizers.check_client_optimizer(optimizer, 'local.optimizer')
    if local.proximal_strength is None:
      return inner
    return fed_avg.Proximal(inner, local.proximal_strength)

  if local.learning_rate_fn is None:
    optimizer, rates = checked(local.optimizer), None
  else:
    make = optimizers.check_optimizer_fn(local.optimizer)
    rates = optimizers.ClientSchedule(
      local.learning_rate_fn, lambda rate: checked(make(rate)), num_rounds
    )
    optimizer = rates.make(float(rates.learning_rates[0]))
  return packed.LocalTraining(
    model, optimizer, int(local.batch_size), int(local.epochs), rates
  )


def _check_schedule(
  schedule: sampling.Schedule,
  num_clients: int,
  clients_per_round: Optional[float],
  num_rounds: Optional[int],
) -> None:
  for name, given, planned in (
    ('clients', num_clients, schedule.num_clients),
    ('clients_per_round', clients_per_round, schedule.clients_per_round),
    ('num_rounds', num_rounds, schedule.num_rounds),
  ):
    if given is not None and given != planned:
      raise ValueError(f'{name} is {given}, but the schedule is for {planned}.')


def _result(run: run_lib.Run, make: Optional[Callable[[], Any]]) -> Result:
  directory, plan = run.directory, run.plan
  num_rounds = plan.schedule.num_rounds
  if not directory.has(run_directory.METRICS):
    raise KeyboardInterrupt  # It came before the first round; nothing can be reported.
  rows = learning_curves.read(directory.file(run_directory.METRICS))
  recorded = records.find(directory, num_rounds)
  if recorded.is_finished:
    statement = directory.read(run_directory.REPORT)
  else:
    statement = records.write_report(directory)
    if len(rows) == num_rounds:
      run.finish()
    else:
      progress.say(
        f'{directory.path}: ended after round {len(rows)} of {num_rounds}; the '
        f'same call with run_dir={directory.path!r} goes on.',
        sys.stderr,
      )
  epsilon = statement['guarantee']['epsilon']
  simulated = None
  if plan.larger_cohort is not None:
    simulated = statement['simulated_cohort']['simulated_epsilon']
    simulated = math.inf if simulated is None else simulated
  return Result(
    run_dir=directory.path,
    rounds=recorded.rounds,
    num_rounds=num_rounds,
    # The statement is JSON, which has no infinity.
    epsilon=math.inf if epsilon is None else epsilon,
    delta=plan.delta,
    metrics={name: _value(text) for name, text in rows[-1].items()},
    weights=saved_model.read_weights(directory.file(run_directory.MODEL)),
    statement=statement,
    simulated_epsilon=simulated,
    _make=make,
  )


def _value(text: str) -> Any:
  try:
    return float(text) if text else None
  except ValueError:
    return text

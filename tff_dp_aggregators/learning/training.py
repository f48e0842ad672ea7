"""Private federated training, from clients to a report that can be checked.

`train` is all of it. What it is made of can be used alone: a schedule (`sampling`),
clients' data (`clients`, `sources`), processes (`fed_avg`, `packed`), the runtime
(`runtime`), and the files of a run (`run_directory` and those it names).
"""

import contextlib
import dataclasses
import functools
import gc
import json
import math
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

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
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import cluster as cluster_lib
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import fed_prox
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import keras_models
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import population as population_lib
from tff_dp_aggregators.learning import process_parts
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.optimizers import client_schedule
from tff_dp_aggregators.learning.optimizers import ftrl
from tff_dp_aggregators.learning.optimizers import ftrl_on_means
from tff_dp_aggregators.learning.packed import trial
from tff_dp_aggregators.learning.runs import evaluation as evaluation_lib
from tff_dp_aggregators.learning.runs import larger_cohort
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import reporting
from tff_dp_aggregators.learning.runs import run as run_lib
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model
from tff_dp_aggregators.learning.runs.plans import aggregation as aggregation_lib
from tff_dp_aggregators.learning.runs.plans import fitting
from tff_dp_aggregators.learning.runs.plans import plan as plan_lib

if TYPE_CHECKING:  # It takes long to load, and few need it.
  import distributed

# Seconds between two checkpoints, so that not much is lost.
_CHECKPOINT_SECONDS = 30.0
# As many as nobody tries.
_SEED_BITS = 128
# A round that takes longer hangs, most likely.
_TIMEOUT_SECONDS = 3600.0
# What lines of a ledger name where epsilon is infinite at any.
_WITHOUT_PRIVACY = 1e-5


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run came to.

  Attributes:
    run_dir: Its directory.
    rounds: Rounds released, which the ledger has.
    num_rounds: Rounds planned.
    epsilon: Spent by then at `delta`; infinite without privacy, and with the noise of a
      simulated cohort.
    delta: At which epsilon was read.
    metrics: The row of the last round in `metrics.csv`.
    weights: The model's, as NumPy arrays.
    statement: What the report is made of.
    simulated_epsilon: What a run with the simulated cohort would have spent; `None`
      unless one was simulated, and then there is no guarantee.
    is_finished: Whether all rounds were run; if not, the same call goes on.
  """

  run_dir: str
  rounds: int
  num_rounds: int
  epsilon: float
  delta: float
  metrics: dict[str, Any]
  # Which would fill screens.
  weights: tff.learning.models.ModelWeights = dataclasses.field(repr=False)
  statement: dict[str, Any] = dataclasses.field(repr=False)
  simulated_epsilon: Optional[float] = None
  # Makes the model, if a function was given.
  _make: Optional[Callable[[], Any]] = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @property
  def model(self) -> Any:
    """A model with these weights, made anew: see `learning.load`.

    Raises:
      NotKeptError: If it cannot be made of what the run has kept.
    """
    return saved_model.load(self.run_dir, model=self._make)

  @property
  def is_finished(self) -> bool:
    """Whether all rounds were run; if not, the same call goes on."""
    # A run that goes on has the rounds' lines before it has their results again.
    return self.rounds == self.num_rounds == self.metrics['round'] + 1


# One at a time: what traces functions and computes is that of the whole process.
_TURN = threading.RLock()


def _in_turn(function: Callable[..., Result]) -> Callable[..., Result]:
  """A function that trains, which waits until no other thread does."""

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Result:
    if not _TURN.acquire(blocking=False):
      progress.say(
        'This training begins when that of another thread has ended: TensorFlow cannot '
        'make the graphs of two in one process. Processes train side by side.',
        sys.stderr,
      )
      _TURN.acquire()
    try:
      return function(*args, **kwargs)
    finally:
      _forget_graphs()
      _TURN.release()

  return call


def _forget_graphs() -> None:
  """Lets go of graphs that TFF keeps, some 40 MB a training.

  Its functions for what a model without metrics measures, nothing, keep every graph in
  which they were called; and computations that were compiled, which are made of graphs,
  outlive the runtime that they were compiled for.
  """
  compiler_pipeline.CompilerPipeline.compile.cache_clear()
  for function in (
    functional.empty_metrics_state,
    functional.noop_update_metrics,
    functional.noop_finalize_metrics,
  ):
    function._function_cache.clear()
  gc.collect()  # Graphs and models refer to each other.


@_in_turn
def train(
  model: Any,
  clients: Any,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  run_dir: str,
  *,
  delta: Optional[float] = None,
  clip_norm: Optional[float] = None,
  clip_order: Optional[float] = None,
  clients_per_round: Optional[int] = None,
  num_rounds: Optional[int] = None,
  schedule: Optional[sampling.Schedule] = None,
  loss: Optional[models.Loss] = None,
  batch_size: int = 16,
  local_epochs: int = 1,
  client_optimizer: Union[
    tff.learning.optimizers.Optimizer,
    Callable[[Any], tff.learning.optimizers.Optimizer],
    None,
  ] = None,
  client_learning_rate_fn: Optional[Callable[[int], float]] = None,
  proximal_strength: Optional[float] = None,
  server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
  test_data: Any = None,
  test_metrics: Optional[evaluation_lib.Metrics] = None,
  evaluate_every: int = 1,
  seed: Optional[int] = None,
  noise_seed: Optional[int] = None,
  target_epsilon: Optional[float] = None,
  packed_simulation: Union[bool, str] = plan_lib.AUTO,
  checkpoint_seconds: float = _CHECKPOINT_SECONDS,
  timeout_seconds: Optional[float] = _TIMEOUT_SECONDS,
  settings: Optional[Mapping[str, Any]] = None,
  simulated_cohort_scale: float = 1.0,
  not_covered: Sequence[str] = (),
  tuning: Optional[inputs_lib.Tuning] = None,
  data_facts: Optional[Mapping[str, Any]] = None,
  inner_aggregator: str = aggregation_lib.SUM,
  zeroing_norm: Optional[float] = None,
  coordinate_bound: Optional[float] = None,
  target_quantile: Optional[float] = None,
  clip_learning_rate: Optional[float] = None,
  not_private_signal_to_noise: bool = False,
  nbafl: Optional[accounting.nbafl.Nbafl] = None,
  preprocessing: Optional[Mapping[str, Any]] = None,
  scheduler: Union[str, 'distributed.Client', None] = None,
  trusted_network: bool = False,
) -> Result:
  """Trains a federated model with differential privacy and leaves a report of it.

  The same call with the same `run_dir` goes on where a run was stopped, however that
  came: a round that is run again comes to the same bits as before, which the ledger
  proves, or the run stops with an error. A run that is finished is not run again; its
  result is returned. Which of these it is, a line on standard error says. Ctrl-C ends
  it after the round, with a checkpoint and a report of what was spent by then.
  A second training of the process, in another thread, waits for the first one to end.

  Clients are simulated, packed if that is possible: see `learning.packed`. Noise that
  clients make is made by each of them: where it is drawn without `noise_seed`, what a
  round came to is kept until there is a checkpoint, for it cannot be had again, and so
  no round is released twice.

  Args:
    model: A `tff.learning.models.FunctionalModel`; or a Keras model, or a function that
      makes one, with a `loss`. It draws no random numbers but from seeds made of
      weights and batch.
    clients: Inputs and labels of each, `(x, y)` or named `x` and `y`: a mapping of ids
      to them, a `tff.simulation.datasets.ClientData`, or what else `Clients.of` takes;
      or `packed.PackedData`, laid out before.
    mechanism: Strategy, participation and noise; `None` for training without privacy.
      An `accounting.JointMechanism` has them for each part of the model's trainable
      weights, by the names that `weight_names` has for them.
    run_dir: Where everything is left: see `run_directory`. A directory that does not
      exist, is empty, or is that of the same run.
    delta: At which delta epsilon is told; well below one over the number of clients.
      Without mechanism epsilon is infinite at each, and `None` will do.
    clip_norm: Bound of one client's update in one round, the first one if the
      mechanism adapts it: of its L2 norm, and with Laplace noise of its L1 norm.
      Without mechanism, updates are clipped to it and no noise is added; `None` for
      updates as they are. Parts of a joint mechanism have their own: `None`.
    clip_order: Of clipping without mechanism: in which p-norm, at least 1, `math.inf`
      for each entry; `None` for 2.
    clients_per_round: Clients asked for a round, the mean's denominator; with Poisson
      sampling the expected number. A `schedule` says it as well, and no other.
    num_rounds: Rounds to train. Mechanism and schedule say it as well, and no other.
    schedule: Who takes part when; `None` for the one that keeps what the mechanism's
      privacy rests on, see `sampling.for_mechanism`.
    loss: Of a Keras model, or its name; `None` for the one it was compiled with.
    batch_size: Examples of a batch of local training.
    local_epochs: Passes over a client's examples in a round.
    client_optimizer: Trains on a client; `None` for SGD with learning rate 0.1.
    client_learning_rate_fn: From the number of a round, from 0, to the learning rate of
      clients in it, such as `lambda round_num: 0.1 * 0.99**round_num`. With it
      `client_optimizer` is a function of the learning rate, such as
      `tff.learning.optimizers.build_sgdm`, the default. A schedule within an optimizer
      counts the steps of a client, and begins anew in each round. `None` for the
      optimizer's own learning rate.
    proximal_strength: How strongly local training is pulled towards the server's
      model (FedProx, arXiv:1812.06127); `None` for federated averaging.
    server_optimizer: Applies the mean of updates; `None` for that of
      `build_dp_fed_avg`, SGD with learning rate 0.2 and momentum 0.9, although the
      strategies of `Mechanism` are the best for plain sums: `ServerSchedule` has the
      strategy for momentum, and its optimizer. With `build_ftrl` it is DP-FTRL, and
      with momentum DP-FTRLM, on the sum of the means so far.
    test_data: Inputs and labels, `(x, y)` or named `x` and `y`, of nobody whose privacy
      is to be kept; `None` for no evaluation.
    test_metrics: Measures besides the loss, by name: functions of the labels of all
      test examples and the model's outputs, as in scikit-learn and Keras; a
      `MeanMetric` where outputs are large; metrics of Keras, or their names. One named
      'loss' is in place of the model's. Or a list of some with names of their own.
      `None` for those that a Keras model was compiled with.
    evaluate_every: Rounds between two evaluations; the last round is evaluated.
    seed: Of cohorts and of the order of examples: same seed, same run. `None` draws
      one of 128 bits, which `private.json` has. Where privacy rests on secret draws, a
      seed that can be guessed leaves nothing of what sampling saves, and the report
      says so of a seed of 64 bits or less.
    noise_seed: Of the noise, in simulations that are to be repeated; `None` for secret
      noise. Clients who are trained one by one, and make noise, draw their own keys:
      they take none.
    target_epsilon: The target that the mechanism was calibrated to, for the report;
      `None` for that of `Mechanism.for_target`, if it was at the same `delta`.
    packed_simulation: Whether to pack clients; 'auto' packs them where that is
      possible, and says why not where it is not.
    checkpoint_seconds: Least time between two checkpoints.
    timeout_seconds: How long a round may take; an hour, unless told otherwise, and
      `None` for any time. One that takes longer, because it hangs, say, ends with an
      error, and the same call goes on.
    settings: What else is to be told in `config.json`, under `flags`; JSON-ready.
    simulated_cohort_scale: At least 1. Above 1 the noise is as if cohort and population
      were so many times larger: the mechanism's, divided by it. Such a run shows what
      training on so many clients would come to. It carries no guarantee, and all that
      it leaves says so and names both cohorts.
    not_covered: What else was computed from clients' data without noise, a sentence
      each, such as 'Features were scaled by the mean of all examples.' The report tells
      it among what the guarantee does not cover.
    tuning: Among how many runs on the same clients this one was chosen, and what all of
      them together spend, for the report; `None` if that is not known.
    data_facts: What is to be told there of the data, such as numbers of examples:
      exact, and marked as not private; JSON-ready.
    inner_aggregator: What sums the clipped updates: 'sum', 'secure_sum', or for integer
      noise 'secure_modular_sum'. Secure sums are simulated, with the same result.
    zeroing_norm: Updates of a larger L2 norm count as zeros; `None` for all. It must
      not be chosen by looking at the clients' updates.
    coordinate_bound: Largest magnitude of a coordinate of an update, before it is
      clipped, chosen likewise; `None` for any.
    target_quantile: Of adaptive clipping: which fraction of clients is to be left
      unclipped; `None` for that of `aggregators.adaptive`.
    clip_learning_rate: Of adaptive clipping: its `learning_rate`; `None` likewise.
    not_private_signal_to_noise: Whether to measure in each round how loud the exact sum
      is beside the noise, in columns of `metrics.csv`. It is not private, and the
      report says that it is not covered.
    nbafl: The plan of NbAFL (arXiv:1911.00222) that the noise is from, whose
      `mechanism_arguments()` are those of the mechanism: the report says what its
      formulas claim beside what holds. Cohorts have to be the plan's, and each client
      has at least its `min_examples`. `None` if the noise is from none.
    preprocessing: What made the clients' inputs of their data, which new data need as
      well: JSON-ready, kept as `preprocessing.json`. It may be computed from clients'
      data, as means are, so it is for nobody else to see.
    scheduler: Who trains packs of clients, to the same result: 'local:4' for four
      processes of this machine, the address of a Dask scheduler, such as
      'tcp://10.0.0.1:8786' or 'tls://...', or a `distributed.Client`; `None` for this
      process. State, noise and its keys stay here.
    trusted_network: Whether a scheduler of another machine may be reached by `tcp://`,
      as nobody else is on the network.

  Returns:
    What the run came to.

  Raises:
    BlockingIOError: If another process runs it.
    ClusterError: If a cluster cannot be used, or not any more; the same call goes on.
    FileExistsError: If there is something in `run_dir` that is not of a run.
    ComputationError: If a round fails; with the round, its clients, and why.
    PopulationTooSmallError: If the clients are too few; the message says what would
      fit.
    RoundTimeoutError: If a round takes longer than `timeout_seconds`.
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range or does not fit the others, or the run in
      `run_dir` was begun with other settings, or has lost files, or a round that is run
      again does not come to the same result.

  Example:
    >>> import os
    >>> import tempfile
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> rng = np.random.default_rng(1)
    >>> clients = {}
    >>> for i in range(40):
    ...   x = rng.normal(size=[6, 2]).astype(np.float32)
    ...   clients[f'client {i}'] = (x, (x @ [[1.0], [-2.0]]).astype(np.float32))
    >>> participation = strategies.Participation(num_rounds=4, min_separation=4)
    >>> mechanism = accounting.Mechanism.for_target('banded', participation, 8.0, 1e-3)
    >>> result = train(
    ...   lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
    ...   clients,
    ...   mechanism,
    ...   os.path.join(tempfile.mkdtemp(), 'run'),
    ...   loss=tf.keras.losses.MeanSquaredError(),
    ...   delta=1e-3,
    ...   clip_norm=1.0,
    ...   clients_per_round=10,
    ...   batch_size=3,
    ... )
    >>> result.is_finished, round(result.epsilon, 6)
    (True, 8.0)
    >>> result.statement['target']
    {'epsilon': 8.0, 'found': 'noise_multiplier'}
  """
  if getattr(multiprocessing.current_process(), '_inheriting', False):
    # A process of a local cluster loads a script that does not ask for its __name__;
    # the program that started it says so.
    sys.exit(1)
  if not tf.executing_eagerly():
    raise ValueError(
      'train is called in a graph; call it outside of tf.Graph and tf.function.'
    )
  delta = _delta(delta, mechanism)
  if isinstance(scheduler, str):
    cluster_lib.check(scheduler, trusted_network)
  elif trusted_network:
    raise ValueError(
      "trusted_network is for a scheduler='tcp://HOST:PORT' of another machine, and "
      f'here it is {scheduler!r}; leave it out.'
    )
  run_directory.check_usable(run_dir)
  runtime.check_timeout(timeout_seconds)
  checks.check_positive_int('evaluate_every', evaluate_every)
  fitting.check_clip_norm(mechanism, clip_norm)
  aggregation = aggregation_lib.Aggregation(
    inner_aggregator=inner_aggregator,
    zeroing_norm=zeroing_norm,
    coordinate_bound=coordinate_bound,
    clip_order=clip_order,
    target_quantile=target_quantile,
    clip_learning_rate=clip_learning_rate,
    not_private_signal_to_noise=not_private_signal_to_noise,
  )
  scale = larger_cohort.check_scale(simulated_cohort_scale, mechanism)
  not_covered = inputs_lib.check_not_covered(not_covered)
  tuning = inputs_lib.check_tuning(tuning)
  population = population_lib.Population(clients)
  if seed is None:
    seed = run_directory.secret_seed(run_dir)
  seed = checks.check_int('seed', seed, at_least=0)
  if schedule is None:
    schedule = _schedule(
      mechanism, len(population), clients_per_round, num_rounds, seed
    )
  _check_schedule(schedule, mechanism, population, clients_per_round, num_rounds)
  schedule = schedule.for_clients(population.draw_ids)
  _warn_of_large_delta(delta, mechanism, scale * len(population))
  functional_model = models.functional(
    model, loss, population.element_spec, population.first, seed
  )
  _check_compiled_optimizer(functional_model, client_optimizer)
  if isinstance(functional_model, keras_models.KerasFunctionalModel):
    population.check_with(functional_model.check_examples)
  client_rates = _client_schedule(
    client_learning_rate_fn, client_optimizer, proximal_strength, schedule.num_rounds
  )
  if client_rates is not None:
    client_optimizer = client_rates.make(float(client_rates.learning_rates[0]))
  else:
    client_optimizer = _client_optimizer(client_optimizer, proximal_strength)
  local_training = packed.LocalTraining(
    functional_model,
    client_optimizer,
    checks.check_positive_int('batch_size', batch_size),
    checks.check_positive_int('local_epochs', local_epochs),
    client_rates,
  )
  trial.refuse_random_models(local_training)
  plan = plan_lib.Plan(
    training=local_training,
    server_optimizer=_server_optimizer(server_optimizer, schedule.num_rounds),
    clients=population,
    mechanism=mechanism,
    schedule=schedule,
    clip_norm=clip_norm,
    delta=delta,
    target=_target(target_epsilon, mechanism, delta),
    seed=seed,
    noise_seed=noise_seed,
    evaluate_every=evaluate_every,
    packed_simulation=packed_simulation,
    flags=dict(settings or {}),
    simulated_cohort_scale=scale,
    not_covered=(*not_covered, *aggregation.not_covered()),
    tuning=tuning,
    data_facts=None if data_facts is None else dict(data_facts),
    aggregation=aggregation,
    nbafl=nbafl,
  )
  plan.check()
  plan.check_cluster(scheduler)
  evaluation = None
  if test_data is not None:
    clients_lib.check_finite(
      tuple(test_data) if isinstance(test_data, list) else test_data,
      'test_data',
      'No loss can be measured on it.',
    )
    evaluation = evaluation_lib.Evaluation(
      local_training.model, test_data, test_metrics
    )
    if not run_directory.looks_finished(run_dir):
      evaluation.check(local_training.model.initial_weights)
  elif test_metrics:
    raise ValueError('test_metrics need test_data to be measured on.')
  with run_directory.RunDirectory(run_dir) as directory:
    run = run_lib.Run(
      plan,
      directory,
      evaluation,
      checkpoint_seconds=checkpoint_seconds,
      timeout_seconds=timeout_seconds,
    )
    if run.found().is_finished:
      rounds = f'{run.plan.num_rounds} of {run.plan.num_rounds} rounds'
      progress.say(
        f'{run_dir}: finished before, with {rounds}; nothing was trained.', sys.stderr
      )
    else:
      _keep(directory, local_training.model, preprocessing)
      cluster = None
      with contextlib.ExitStack() as stack:
        if plan.packed:  # In this process, or on a cluster.
          signals = stack.enter_context(interrupts.Signals())
          if scheduler is not None:
            client = stack.enter_context(
              cluster_lib.connect(scheduler, trusted_network=trusted_network)
            )
            cluster = stack.enter_context(
              contextlib.closing(
                cluster_lib.Cluster(client, round_seconds=timeout_seconds)
              )
            )
          stack.callback(signals.ignore)
        else:
          stack.enter_context(
            runtime.local_runtime(
              timeout_seconds=timeout_seconds, simulated_secure_sums=plan.sums_securely
            )
          )
        stop = stack.enter_context(
          interrupts.graceful_interrupts(
            'Ending after this round; press Ctrl-C again to end at once.'
          )
        )
        run.go(stop, cluster)
    is_function = not isinstance(
      model, (tf.keras.Model, tff.learning.models.FunctionalModel)
    )
    return _result(run, functools.partial(_made, model, seed) if is_function else None)


def _made(make: Callable[[], Any], seed: int) -> Any:
  """The model that a run began with, whose constants may be drawn by its seed."""
  with keras_models.as_in_a_new_process(seed):
    return make()


def _keep(
  directory: run_directory.RunDirectory,
  model: tff.learning.models.FunctionalModel,
  preprocessing: Optional[Mapping[str, Any]],
) -> None:
  """Keeps what the trained weights are used with."""
  if preprocessing is not None:
    text = json.dumps(preprocessing, indent=2, allow_nan=False) + '\n'
    path = directory.file(run_directory.PREPROCESSING)
    if directory.has(run_directory.PREPROCESSING):
      with open(path, encoding='utf-8') as file:
        if file.read() != text:
          raise ValueError(
            f'preprocessing is not that which the run was begun with, in {path}: it '
            'would go on with other inputs. Give the same, or another run_dir.'
          )
    directory.write(run_directory.PREPROCESSING, text, is_private=True)
  saved_model.save(directory, model)


def _delta(
  given: Optional[float], mechanism: Optional[joint_mechanism.AnyMechanism]
) -> float:
  """The one that was given; any, where there is no privacy to tell."""
  if given is None:
    if mechanism is not None:
      raise ValueError(
        'delta is missing: at which delta epsilon is told. Give one well below one '
        'over the number of clients.'
      )
    return _WITHOUT_PRIVACY
  return gaussian.check_delta(given, 'delta')


def _target(
  given: Optional[float],
  mechanism: Optional[joint_mechanism.AnyMechanism],
  delta: float,
) -> Optional[mechanism_lib.Target]:
  """The one that was given, or that the mechanism knows of."""
  if mechanism is None or mechanism.placement.is_simulation:
    return None  # No target is kept.
  known = mechanism.target
  if known is not None and known.delta == delta and given in (None, known.epsilon):
    return known
  if given is None:
    return None
  # The report would refuse it, after the training.
  gaussian.check_epsilon(given, 'target_epsilon')
  spent = mechanism.epsilon(delta)
  if spent > given:
    raise ValueError(
      f'target_epsilon={given:g} is less than the mechanism spends, epsilon = '
      f'{rounding.up(spent)} at delta = {delta:g}: leave it out, or take the mechanism '
      'that Mechanism.for_target makes for it.'
    )
  return mechanism_lib.Target(given, delta)


def _client_schedule(
  learning_rate_fn: Optional[Callable[[int], float]],
  optimizer_fn: Any,
  proximal_strength: Optional[float],
  num_rounds: int,
) -> Optional[client_schedule.ClientSchedule]:
  """The learning rates of clients by round, if they are not the optimizer's own."""
  if learning_rate_fn is None:
    return None
  make = client_schedule.check_optimizer_fn('client_optimizer', optimizer_fn)
  return client_schedule.ClientSchedule(
    learning_rate_fn,
    lambda learning_rate: _client_optimizer(make(learning_rate), proximal_strength),
    num_rounds,
  )


def _client_optimizer(
  optimizer: Any,
  proximal_strength: Optional[float],
) -> tff.learning.optimizers.Optimizer:
  checked = process_parts.check_client_optimizer(optimizer, 'client_optimizer')
  if proximal_strength is None:
    return checked
  return fed_prox.proximal(checked, proximal_strength)


def _check_compiled_optimizer(
  model: tff.learning.models.FunctionalModel, client_optimizer: Any
) -> None:
  """Says that an optimizer which a Keras model was compiled with is not used."""
  if not isinstance(model, keras_models.KerasFunctionalModel):
    return
  compiled = getattr(model.keras_model, 'optimizer', None)
  if compiled is None:
    return
  why = (
    f'the model is compiled with the optimizer {compiled.name} of Keras, and clients '
    'are trained by one of TFF'
  )
  if client_optimizer is None:
    raise ValueError(
      f'{why}: give client_optimizer, such as tff.learning.optimizers.build_sgdm(0.1). '
      '(Keras compiles with RMSprop if no optimizer is named.)'
    )
  progress.say(f'Note: {why}, client_optimizer; the other is not used.', sys.stderr)


def _server_optimizer(
  optimizer: Optional[tff.learning.optimizers.Optimizer], num_rounds: int
) -> tff.learning.optimizers.Optimizer:
  """What is applied to the mean of each round; FTRL with the sum of them."""
  checked = process_parts.check_optimizer(
    'server_optimizer', optimizer, fed_avg.default_server_optimizer()
  )
  if not isinstance(checked, ftrl.FTRL):
    return checked
  on_means = ftrl_on_means.FTRLOnMeans(checked)
  on_means.check_num_rounds(num_rounds)
  return on_means


def _warn_of_large_delta(
  delta: float, mechanism: Optional[joint_mechanism.AnyMechanism], num_clients: float
) -> None:
  doubt = gaussian.doubt_of_delta(delta, num_clients)
  if mechanism is not None and doubt is not None:
    warnings.warn(doubt, stacklevel=4)  # To who called what `_in_turn` made.


def _schedule(
  mechanism: Optional[joint_mechanism.AnyMechanism],
  num_clients: int,
  clients_per_round: Optional[float],
  num_rounds: Optional[int],
  seed: int,
) -> sampling.Schedule:
  """The schedule that keeps what privacy rests on; without it, anybody in any round."""
  if clients_per_round is None:
    raise ValueError(
      'clients_per_round is missing: how many clients a round asks. Give it, or a '
      'schedule.'
    )
  if mechanism is not None:
    return sampling.for_mechanism(mechanism, num_clients, clients_per_round, seed)
  if num_rounds is None:
    raise ValueError(
      'num_rounds is missing: without mechanism and schedule nothing says how many '
      'rounds there are.'
    )
  anybody = strategies.Participation(num_rounds)
  return sampling.for_scheme(anybody, num_clients, clients_per_round, seed)


def _check_schedule(
  schedule: sampling.Schedule,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  population: population_lib.Population,
  clients_per_round: Optional[float],
  num_rounds: Optional[int],
) -> None:
  """Refuses a schedule that is not what the other arguments say."""
  _check_adjacency(mechanism)
  if mechanism is not None and schedule.schema != mechanism.participation:
    raise ValueError(
      f'the schedule keeps {schedule.schema}, but the mechanism is for '
      f'{mechanism.participation}: epsilon would be that of other rounds than those '
      'that are run. Use sampling.for_mechanism.'
    )
  for name, given, said in (
    ('clients', len(population), schedule.num_clients),
    ('clients_per_round', clients_per_round, schedule.clients_per_round),
    ('num_rounds', num_rounds, schedule.num_rounds),
  ):
    if given is not None and given != said:
      raise ValueError(f'{name} is {given}, but the schedule is for {said}.')


def _check_adjacency(mechanism: Optional[joint_mechanism.AnyMechanism]) -> None:
  """Refuses neighbours that states, and so the ledger, have no events for."""
  if mechanism is None or mechanism.is_sampled:
    return
  own = sampling.check_relation(mechanism.participation)
  if mechanism.relation is not own:
    raise ValueError(
      f'the mechanism is for adjacency {mechanism.adjacency}, and the events of rounds '
      f'without sampling are for {sampling.adjacency(own)}: what was spent '
      'would be told too low. Leave adjacency out; a plan can be reported for any.'
    )


def _result(run: run_lib.Run, make: Optional[Callable[[], Any]]) -> Result:
  """What the run came to by now, with its report written."""
  directory, plan = run.directory, run.plan
  directory.check_in_place()
  rows = metrics_file.read(directory.file(run_directory.METRICS))
  if not rows:
    raise KeyboardInterrupt  # Before the first round: there is nothing to report.
  found = run.found()
  if found.is_finished:
    statement = reporting.read(directory)
  else:
    statement = reporting.write(
      directory, plan.schedule, has_mechanism=plan.mechanism is not None
    )
    if len(rows) == plan.num_rounds:
      run.finish()
    else:
      progress.say(
        f'{directory.path}: ended after round {len(rows)} of {plan.num_rounds}; the '
        f'same call with run_dir={directory.path!r} goes on.',
        sys.stderr,
      )
  epsilon = statement['guarantee']['epsilon']
  simulated = None
  if plan.larger_cohort is not None:
    simulated = _infinite_if_none(statement['simulated_cohort']['simulated_epsilon'])
    progress.say(
      f'{directory.path}: {len(rows)} of {plan.num_rounds} rounds; '
      f'{plan.larger_cohort.in_words()}. A run of that size would have spent epsilon = '
      f'{rounding.up(simulated)} at delta = {plan.delta:g}.',
      sys.stderr,
    )
  return Result(
    run_dir=directory.path,
    rounds=found.rounds,
    num_rounds=plan.num_rounds,
    epsilon=_infinite_if_none(epsilon),
    delta=plan.delta,
    metrics={name: _value(text) for name, text in rows[-1].items()},
    weights=run_lib.read_weights(directory.file(run_directory.MODEL)),
    statement=statement,
    simulated_epsilon=simulated,
    _make=make,
  )


def _infinite_if_none(number: Optional[float]) -> float:
  """A number of a statement, which has no infinity."""
  return math.inf if number is None else float(number)


def _value(text: str) -> Any:
  """A cell of the metrics."""
  try:
    return float(text) if text else None
  except ValueError:
    return text

"""The plan of a run: all settings that its result depends on."""

import dataclasses
import functools
import hashlib
import json
import math
import numbers
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union, cast

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noise_to_signal
from tff_dp_aggregators.accounting import spent_by_round
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import sources as report_sources
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import options as options_lib
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import sources
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import simulation as simulation_lib
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.sampling import draws

if TYPE_CHECKING:
  from tff_dp_aggregators.learning import cluster as cluster_lib

NO_GUARANTEE = 'no privacy guarantee'
# Settings that reveal data or draws to somebody who knows all other clients' data.
_PRIVATE = (
  'data_facts',
  'flags.seed',
  'flags.split_seed',
  'training.clients',
  'training.seed',
  # Initial weights, and constants in a graph, may be derived from the data or a seed.
  'training.model.initial_weights',
  'training.model.graph',
  'training.schedule.seed',
  'training.schedule.dropouts.seed',
  # A schedule's file names the clients that take part.
  'training.schedule.path',
  'training.schedule.sha256',
  'flags.schedule_file',
  'privacy.noise_seed',
  'simulated_cohort.as_planned.noise_seed',
)
# An entry of `not_covered`: computed from clients' data without noise, on request.
_EXACT_SUMS = (
  "The norm of the clients' exact sum was measured in every round, beside the noise: "
  'columns of metrics.csv, which are not private.'
)
# Further ones where one client more or less, or a secret draw, is to stay hidden.
_PRIVATE_IF_SAMPLED = (
  'flags.num_clients',
  'training.schedule.num_clients',
  'training.schedule.stated.num_clients',
)


# Names and numbers that differ from process to process, and compute nothing.
_IGNORED = ('config_proto', 'container', 'seed', 'seed2', 'shared_name')
# Attributes of TFF's optimizers that have other names than their arguments.
_ARGUMENT_NAMES = {'lr': 'learning_rate'}


class Population:
  """A run's clients, by number or laid out, and then canaries without examples."""

  def __init__(self, clients: Any, canaries: Optional[packed.Canaries] = None):
    self._canaries = canaries
    self.is_laid_out = isinstance(clients, packed.PackedData)
    self.given = clients if self.is_laid_out else clients_lib.Clients.of(clients)

  def __len__(self) -> int:
    return len(self.given) + (0 if self._canaries is None else self._canaries.number)

  @property
  def clients(self) -> clients_lib.Clients:
    """The clients by number."""
    if self.is_laid_out:
      raise ValueError(
        'packed.PackedData are for packed simulation alone; give the clients '
        'themselves, or leave run.packed_simulation on.'
      )
    return self.given

  @property
  def ids(self) -> Optional[Sequence[Any]]:
    """The clients' ids by number; `None` if there are only numbers."""
    return None if self.is_laid_out else self._with_canaries(self.given.ids)

  @property
  def draw_ids(self) -> Sequence[Any]:
    """The ids by which clients are drawn, by number."""
    return self._with_canaries(self.given.draw_ids)

  def _with_canaries(self, ids: Sequence[Any]) -> Sequence[Any]:
    return ids if self._canaries is None else self._canaries.ids_after(ids)

  def fewest_examples(self) -> tuple[str, int]:
    """A client with the fewest examples, for messages, and how many; reads them all."""
    if self.is_laid_out:
      number = int(np.argmin(self.given.all_sizes))
      return f'client number {number}', int(self.given.all_sizes[number])
    read = map(self.given.examples, range(len(self.given)))
    sizes = [len(tf.nest.flatten(examples)[0]) for examples in read]
    return self.given.owner(int(np.argmin(sizes))), min(sizes)

  @functools.cached_property
  def checksum(self) -> str:
    """A checksum of all examples, of who has them, and of ids that are not numbers."""
    return self.given.checksum if self.is_laid_out else data_lib.checksum(self.given)

  def lay_out(self, directory: str) -> None:
    """Lays the clients out for packed simulation, and caches their checksum."""
    self.checksum = packed.lay_out(self.clients, directory).checksum

  def laid_out(self, directory: str) -> packed.PackedData:
    """Returns the examples for packed simulation, laid out if they are not yet."""
    if self.is_laid_out:
      return self.given
    if os.path.isdir(directory):
      packed_data = packed.PackedData(directory)
    else:
      packed_data = packed.lay_out(self.given, directory)
    if packed_data.checksum != self.checksum:
      raise ValueError(
        f'the examples in {directory} are not those of the clients: they have the '
        f'checksum {packed_data.checksum}, the clients {self.checksum}. If the clients '
        f'are the same whenever they are read, remove {directory}; it is made again.'
      )
    return packed_data


class Engine(NamedTuple):
  """Computes the rounds; its states are those of a TFF learning process."""

  initialize: Callable[[], Any]
  # Takes a state, a round's number and its clients; returns next state and metrics.
  next: Callable[[Any, int, np.ndarray], tuple[Any, Any]]
  # From a state, with the key of the noise, to NumPy arrays; and back.
  release: Callable[[Any], Any] = lambda state: state
  hold: Callable[[Any], Any] = lambda state: state


@dataclasses.dataclass(frozen=True)
class Plan:
  """All settings that a run's result depends on."""

  training: packed.LocalTraining
  server: options_lib.Server
  clients: Population
  mechanism: Optional[joint_mechanism.AnyMechanism]
  schedule: sampling_lib.Schedule
  clip_norm: Optional[float]
  delta: float
  target: Optional[mechanism_lib.Target]
  seed: int  # For the order of each client's examples.
  evaluate_every: int = 1
  options: options_lib.RunOptions = options_lib.RunOptions()
  # If not 1, `mechanism` is that of a larger cohort, and the run adds less noise.
  simulated_cohort_scale: float = 1.0
  nbafl: Optional[accounting.nbafl.Nbafl] = None
  canaries: Optional[packed.Canaries] = None

  @functools.cached_property
  def larger_cohort(self) -> Optional[report_sources.SimulatedCohort]:
    """The simulated cohort that the noise is planned for, if it is not the run's."""
    if self.mechanism is None or self.simulated_cohort_scale == 1:
      return None
    return report_sources.SimulatedCohort(
      self.simulated_cohort_scale,
      self.schedule.clients_per_round,
      self.schedule.num_clients,
    )

  @property
  def both_cohorts(self) -> str:
    """A text that names both cohorts and says that there is no guarantee."""
    facts = self.larger_cohort
    assert facts is not None
    return (
      f'{NO_GUARANTEE}, as the noise is that of a simulated cohort of '
      f'{facts.simulated_clients_per_round:.12g} of '
      f'{facts.simulated_num_clients:.12g} clients, and rounds have '
      f'{facts.clients_per_round:.12g} of {facts.num_clients} '
      f'(simulated_cohort_scale={facts.scale:g})'
    )

  @functools.cached_property
  def added_noise(self) -> Optional[joint_mechanism.AnyMechanism]:
    """The mechanism that is run, which is `mechanism` unless a cohort is simulated."""
    if self.larger_cohort is None:
      return self.mechanism
    # `options_lib.check_together` refuses joint mechanisms.
    mechanism = cast(accounting.Mechanism, self.mechanism)
    return mechanism_of_run(mechanism, self.simulated_cohort_scale)

  @property
  def guaranteed(self) -> Optional[joint_mechanism.AnyMechanism]:
    """The mechanism whose guarantee holds; `None` if there is none."""
    mechanism = self.mechanism
    if mechanism is None or mechanism.placement.is_simulation:
      return None
    return mechanism if self.larger_cohort is None else None

  @functools.cached_property
  def simulated_spending(self) -> Optional[Callable[[int], float]]:
    """Epsilon that a simulated cohort would have spent, as a function of the rounds."""
    if self.larger_cohort is None:
      return None
    mechanism, delta = cast(accounting.Mechanism, self.mechanism), self.delta
    if not mechanism.noise_multiplier:
      return lambda rounds: math.inf
    if not mechanism.is_one_gaussian:
      return spent_by_round.SpentByRound(mechanism, delta).after
    multipliers = mechanism.noise_multipliers_so_far
    return lambda rounds: gaussian.epsilon_of(1 / float(multipliers[rounds - 1]), delta)

  @functools.cached_property
  def sampled_events(self) -> Optional[tuple[dp_accounting.DpEvent, ...]]:
    """Events by round if privacy rests on sampling, as states do not hold these."""
    if self.guaranteed is None or not self.guaranteed.is_sampled:
      return None
    return self.guaranteed.round_events

  @functools.cached_property
  def noise_to_signal(self) -> Optional[np.ndarray]:
    """Noise-to-signal ratio by round, from public numbers; `None` without mechanism."""
    if self.added_noise is None:
      return None
    return noise_to_signal.by_round(
      self.added_noise, self.noised_size, self.schedule.clients_per_round
    )

  @property
  def noised_size(self) -> Union[int, dict[str, int]]:
    """Number of trainable parameters, all of which get noise; by part, with parts."""
    if self.weights_of_parts is not None:
      return {
        part: sum(map(math.prod, shapes.values()))
        for part, shapes in self.weights_of_parts.items()
      }
    trainable, _ = self.training.model.initial_weights
    return sum(int(np.size(weight)) for weight in tf.nest.flatten(trainable))

  @functools.cached_property
  def part_of(self) -> tuple[str, ...]:
    """The part of each trainable weight; empty if the mechanism has no parts."""
    if self.mechanism is None:
      return ()
    return models.part_of(self.mechanism, self.training.model)

  @functools.cached_property
  def composed_spending(self) -> Optional[spent_by_round.SpentByRound]:
    """Epsilon spent by round if rounds compose: the ledger has no epsilon then."""
    if self.guaranteed is None or self.guaranteed.is_one_gaussian:
      return None
    accountant = None if self.target is None else self.target.accountant
    return spent_by_round.SpentByRound(self.guaranteed, self.delta, accountant)

  @property
  def packed(self) -> bool:
    """Whether clients are trained in packs, and not one by one."""
    return self.why_one_by_one is None

  @property
  def why_one_by_one(self) -> Optional[str]:
    """Why clients are not packed; `None` if they are."""
    return options_lib.why_one_by_one(self.options, self.server, self.mechanism)

  @property
  def draws_anew(self) -> bool:
    """Whether clients draw other noise if a round is run again: no state has keys."""
    is_secret = self.options.noise_seed is None
    return self.mechanism is not None and (
      self.mechanism.adds_noise_on_clients and is_secret
    )

  @functools.cached_property
  def noise_generator(self) -> str:
    """The random generator of the noise, by its name in the ledger."""
    return cast(aggregators.DPMeanFactory, self.mean()).generator

  def check(self, scheduler: Any) -> None:
    """Checks that the settings go together, before anything is written."""
    if self.nbafl is not None:
      self._check_nbafl(self.nbafl)
    options_lib.check_together(
      self.options,
      self.server,
      self.mechanism,
      clip_norm=self.clip_norm,
      scheduler=scheduler,
      cohort_scale=self.simulated_cohort_scale,
      is_nbafl=self.nbafl is not None,
      schedule=self.schedule,
      model_size=self.noised_size,
    )
    mean = self.mean()
    if mean is not None:  # Noise may have been planned for another number of weights.
      trainable, _ = self.training.model.initial_weights
      mean.query_for(functions.specs_of(trainable))

  def _check_nbafl(self, planned: accounting.nbafl.Nbafl) -> None:
    assert self.mechanism is not None
    report_sources.check_nbafl_cohorts(planned, self.schedule.to_json())
    report_sources.check_nbafl(
      planned, self.mechanism, delta=self.delta, clip_norm=self.clip_norm
    )
    client, fewest = self.clients.fewest_examples()
    if fewest < planned.min_examples:
      raise options_lib.TooFewExamplesError(
        f'{client} has {fewest} examples, and NbAFL counts on min_examples='
        f'{planned.min_examples} or more of each: its noise is too little for fewer. '
        f'Leave such clients out, or plan with min_examples={fewest}.'
      )

  def mean(self) -> Optional[aggregators.DPMeanFactory]:
    """Factory of the private or the clipped mean; `None` if updates are not clipped."""
    factory: Optional[aggregators.DPMeanFactory] = None
    inner: Optional[tff.aggregators.UnweightedAggregationFactory] = None
    if self.server.inner_aggregator == options_lib.SECURE:
      inner = aggregators.secure_sum()
    elif self.server.inner_aggregator == options_lib.MODULAR:
      assert self.added_noise is not None
      inner = aggregators.secure_modular_sum(
        bits=dict(self.added_noise.options)['bits']
      )
    options: dict[str, Any] = {
      'clients_per_round': self.schedule.clients_per_round,
      'record_aggregation_factory': inner,
    }
    mechanism, seed = self.added_noise, self.options.noise_seed
    if mechanism is not None:
      options.update(
        # An explicit stream: earlier runs in this process do not change the noise.
        seed=None if seed is None else noise.Seed(seed),
        generator='chacha20' if seed is None else 'philox',
        # The state of a packed simulation never leaves this process.
        storage='in_process' if self.packed else 'auto',
        schedule=self.schedule,
      )
    if isinstance(mechanism, accounting.JointMechanism):
      factory = aggregators.from_joint_mechanism(mechanism, self.part_of, **options)
    elif mechanism is not None:
      assert self.clip_norm is not None
      factory = aggregators.from_mechanism(
        mechanism,
        clip_norm=self.clip_norm,
        target_quantile=self.server.target_quantile,
        clip_learning_rate=self.server.clip_learning_rate,
        **options,
      )
    elif self.clip_norm is not None:
      order = 2.0 if self.server.clip_order is None else self.server.clip_order
      factory = aggregators.norm_clip(clip_norm=self.clip_norm, order=order, **options)
    if factory is not None and self.server.not_private_signal_to_noise:
      factory = factory.with_not_private_signal_to_noise()
    return factory

  def aggregator(self) -> tff.aggregators.UnweightedAggregationFactory:
    """Factory of the aggregation of all clients' updates."""
    factory: tff.aggregators.UnweightedAggregationFactory
    factory = self.mean() or tff.aggregators.UnweightedMeanFactory()
    if self.server.coordinate_bound is not None:
      factory = aggregators.CoordinateBoundsFactory(
        factory, bounds=self.server.coordinate_bound
      )
    # The outer factory is applied to updates first.
    if self.server.zeroing_norm is not None:
      factory = aggregators.ZeroLargeFactory(factory, norm=self.server.zeroing_norm)
    return factory

  def engine(
    self, data_directory: str, cluster: 'Optional[cluster_lib.Cluster]' = None
  ) -> Engine:
    """Makes the engine; `cluster` trains packs, and with `None` this process does."""
    aggregator = self.aggregator()
    if self.packed:
      simulation = packed.PackedFedAvg(
        self.training,
        aggregator,
        self.clients.laid_out(data_directory),
        server_optimizer=self.server.optimizer,
        cluster=cluster,
        timeout_seconds=self.options.timeout_seconds,
        canaries=self.canaries,
        clip_norm=self.clip_norm,
      )
      client_keys = draws.keys_of_ids(self.clients.draw_ids, self.seed)

      def next_packed(state: Any, number: int, clients: np.ndarray) -> tuple[Any, Any]:
        keys = local_order.keys(self.seed, number, client_keys[clients])
        return simulation.next(state, clients, keys)

      return Engine(
        simulation.initialize, next_packed, simulation_lib.to_numpy, simulation.hold
      )
    model, rates = self.training.model, self.training.schedule
    if rates is None:
      process = fed_avg.build_dp_fed_avg(
        model,
        aggregator,
        client_optimizer_fn=self.training.optimizer,
        server_optimizer_fn=self.server.optimizer,
      )
    else:
      process = fed_avg.build_scheduled_dp_fed_avg(
        model, aggregator, rates, self.server.optimizer
      )
    source = sources.ClientSource(
      self.clients.clients,
      self.schedule,
      batch_size=self.training.batch_size,
      local_epochs=self.training.local_epochs,
      seed=self.seed,
      input_spec=self.training.model.input_spec,
    )

    def next_single(state: Any, number: int, clients: np.ndarray) -> tuple[Any, Any]:
      output = process.next(state, source.cohort_data(number, clients))
      return output.state, output.metrics

    return Engine(process.initialize, next_single)  # Its states are arrays already.

  @property
  def is_sampled(self) -> bool:
    """Whether privacy rests on sampling, and so on keeping secret who was drawn."""
    return self.mechanism is not None and self.mechanism.is_sampled

  @functools.cached_property
  def noise_seed_tag(self) -> Optional[str]:
    """Tag that runs with the same seed of the noise share; `None` for secret noise."""
    if self.options.noise_seed is None:
      return None
    return ledger.tag_of_seed('noise', self.options.noise_seed)

  @functools.cached_property
  def sources(self) -> dict[str, Optional[str]]:
    """Where noise and secret draws come from: fields of each line of the ledger."""
    noise = sampling = tag = None
    if self.added_noise is not None:
      noise = ledger.SECRET if self.options.noise_seed is None else ledger.SEED
    if self.is_sampled:
      seed = getattr(self.schedule, 'seed', None)
      if seed is None:
        sampling = ledger.FILE
      else:
        sampling = ledger.SEED if seed < ledger.GUESSABLE else ledger.SECRET
        tag = ledger.tag_of_seed('sampling', seed)
    return {'noise_source': noise, 'sampling_source': sampling, 'sampling_tag': tag}

  @property
  def private_settings(self) -> tuple[str, ...]:
    """Names of the settings in `config` that are not shared: see `run_directory`."""
    return (*_PRIVATE, *(_PRIVATE_IF_SAMPLED if self.is_sampled else ()))

  def config(self) -> dict[str, Any]:
    """The whole plan as JSON values."""
    model, tuning = self.training.model, self.options.tuning
    facts, canaries = self.options.data_facts, self.canaries
    aggregation = dataclasses.asdict(dataclasses.replace(self.server, optimizer=None))
    del aggregation['optimizer']
    if aggregation['clip_order'] == math.inf:
      aggregation['clip_order'] = 'infinity'  # JSON has no infinite numbers.
    rates, rates_json = self.training.schedule, None
    if rates is not None:
      graph = steps_fingerprint(rates.make, model, tf.TensorSpec([]))
      rates_json = {**rates.to_json(), 'graph': graph}
    return {
      'program': 'tff_dp_aggregators.learning.train',
      'flags': dict(self.options.settings or {}),
      'data_facts': None if facts is None else run_directory.recorded_data_facts(facts),
      'training': {
        'model': model_fingerprint(model),
        'clients': self.clients.checksum,
        'schedule': self.schedule.to_json(),
        'batch_size': self.training.batch_size,
        'local_epochs': self.training.local_epochs,
        'client_optimizer': optimizer_fingerprint(self.training.optimizer, model),
        'client_learning_rates': rates_json,
        'server_optimizer': optimizer_fingerprint(self.server.optimizer, model),
        'evaluate_every': self.evaluate_every,
        'seed': self.seed,
        'simulation': 'packed' if self.packed else 'one TFF client for each client',
        'simulated_cohort_scale': self.simulated_cohort_scale,
        # With a mechanism, 'privacy' below has it.
        'clip_norm_without_mechanism': (
          self.clip_norm if self.mechanism is None else None
        ),
        'aggregation': aggregation,
      },
      'privacy': self._privacy() if self.larger_cohort is None else None,
      'simulated_cohort': self._simulated_cohort(),
      'nbafl': None if self.nbafl is None else dataclasses.asdict(self.nbafl),
      'not_covered': [
        *self.options.not_covered,
        *([_EXACT_SUMS] if self.server.not_private_signal_to_noise else []),
      ],
      'tuning': None if tuning is None else tuning.to_json(),
      **({} if canaries is None else {'canaries': canaries.to_json()}),
      'software': {
        **version.current().to_json(),
        'tensorflow': tf.__version__,
        'tensorflow-federated': tff.__version__,
        'python': platform.python_version(),
      },
      'machine': {
        **machine.current(),
        'threads_of_an_operation': functions.intra_op_threads(),
      },
    }

  def _privacy(self) -> Optional[dict[str, Any]]:
    if self.mechanism is None:
      return None
    noise_source = "a secret key from the kernel's entropy"
    if self.draws_anew:
      noise_source = "each client's own entropy, of the kernel"
    elif self.options.noise_seed is not None:
      noise_source = report_sources.SEEDED_NOISE
    return {
      'mechanism': self.mechanism.to_json(),
      'target_epsilon': None if self.target is None else self.target.epsilon,
      **({'target_rho': self.target.rho} if self.target and self.target.rho else {}),
      'accountant': None if self.target is None else self.target.accountant,
      'delta': self.delta,
      'epsilon_by_round': (
        terms.of_accountant(accountants.EXACT, self.mechanism.sensitivity_kind).what
        if self.mechanism.is_one_gaussian
        else spent_by_round.MEANING
      ),
      'clip_norm': self.clip_norm,
      'weights_of_parts': self.weights_of_parts,
      'clients_per_round': self.schedule.clients_per_round,
      'enforced_by': terms.enforced_by(self.schedule),
      'cap_enforced_by': terms.enforced_by(self.schedule),
      'noise_source': noise_source,
      'noise_generator': self.noise_generator,
      'noise_seed': self.options.noise_seed,
    }

  @property
  def weights_of_parts(self) -> Optional[dict[str, dict[str, list[int]]]]:
    """Shapes by part and name of a weight; `None` if there are no parts."""
    if not self.part_of:
      return None
    by_part: dict[str, dict[str, list[int]]] = {part: {} for part in self.part_of}
    shapes = models.weight_shapes(self.training.model)
    for part, (name, shape) in zip(self.part_of, shapes.items()):
      by_part[part][name] = shape
    return by_part

  def _simulated_cohort(self) -> Optional[dict[str, Any]]:
    facts = self.larger_cohort
    if facts is None:
      return None
    mechanism = cast(accounting.Mechanism, self.added_noise)
    planned = facts.simulated_clients_per_round
    return {
      'guarantee': f'none: {self.both_cohorts}',
      'scale': facts.scale,
      'clients_per_round': facts.clients_per_round,
      'simulated_clients_per_round': planned,
      'num_clients': facts.num_clients,
      'simulated_num_clients': facts.simulated_num_clients,
      'noise_multiplier': mechanism.noise_multiplier,
      'clipped_count_stddev': mechanism.clipped_count_stddev,
      'as_planned': {**(self._privacy() or {}), 'clients_per_round': planned},
    }


def mechanism_of_run(
  mechanism: accounting.Mechanism, scale: float
) -> accounting.Mechanism:
  """Divides a mechanism's noise, also that of its clipped count, by `scale`."""
  stddev = mechanism.clipped_count_stddev
  return dataclasses.replace(
    mechanism,
    noise_multiplier=mechanism.noise_multiplier / scale,
    clipped_count_stddev=None if stddev is None else stddev / scale,
  )


# Numbers with a name are recorded under it; all else that decides what is computed is
# in a fingerprint of the graph. Names in TensorFlow's serialised graphs have counters,
# which depend on what was made before, and so names are replaced by positions here.


def model_fingerprint(
  functional: tff.learning.models.FunctionalModel,
) -> dict[str, Any]:
  """Fingerprint of the weights, and of the graph of a training step with the loss."""
  weights = functional.initial_weights
  flat = [np.asarray(each) for each in tf.nest.flatten(weights)]
  # With the simplest optimizer, the step is the model's own.
  plain = packed.LocalTraining(
    functional, tff.learning.optimizers.build_sgdm(1.0), batch_size=1
  )

  def step(trainable: Any, rest: Any, batch: Any) -> Any:
    server_weights = training_lib.Weights(trainable, rest)
    state = training_lib.initial_state(plain, server_weights)
    return training_lib.train_step(plain, server_weights, state, batch)

  return {
    'weights': [f'{each.dtype.name}{list(each.shape)}' for each in flat],
    'initial_weights': ledger.checksum_of(flat),
    'graph': fingerprint(step, *map(_specs, weights), functional.input_spec),
  }


def optimizer_fingerprint(
  which: tff.learning.optimizers.Optimizer,
  functional: tff.learning.models.FunctionalModel,
) -> dict[str, Any]:
  """Kind and numbers of an optimizer, and fingerprint of its steps on a model."""
  graph = steps_fingerprint(lambda: which, functional)
  return {**_kind_and_numbers(which), 'graph': graph}


def steps_fingerprint(
  make: Callable[..., tff.learning.optimizers.Optimizer],
  functional: tff.learning.models.FunctionalModel,
  *inputs: tf.TensorSpec,
) -> str:
  """Fingerprint of the steps of an optimizer that is made from some inputs."""
  trainable = _specs(functional.initial_weights[0])

  def step(*arguments: Any) -> Any:
    *made_from, weights, gradients = arguments
    which = make(*made_from)
    state = which.initialize(trainable)
    return state, which.next(state, weights, gradients)

  return fingerprint(step, *inputs, trainable, trainable)


def _kind_and_numbers(which: tff.learning.optimizers.Optimizer) -> dict[str, Any]:
  fields: dict[str, Any] = {'kind': type(which).__name__.lstrip('_')}
  for name, value in getattr(which, '__dict__', {}).items():
    argument = _ARGUMENT_NAMES.get(name.lstrip('_'), name.lstrip('_'))
    if isinstance(value, tff.learning.optimizers.Optimizer):
      fields[argument] = _kind_and_numbers(value)
    elif isinstance(value, bool):
      fields[argument] = value
    elif isinstance(value, numbers.Real):
      number = float(value)
      fields[argument] = number if math.isfinite(number) else str(number)
  return fields


def _specs(weights: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec(np.shape(each), np.asarray(each).dtype), tuple(weights)
  )


def fingerprint(function: Callable[..., Any], *specs: Any) -> str:
  """SHA-256 of the operations, constants and types of a function's graph."""
  definition, _, results = functions.graph_of(
    lambda *inputs: tf.nest.map_structure(tf.convert_to_tensor, function(*inputs)),
    *specs,
  )
  called_functions = {each.signature.name: each for each in definition.library.function}

  def body(
    nodes: Sequence[Any], outputs: Sequence[str], arguments: Sequence[str] = ()
  ) -> list[Any]:
    positions = {name: f'argument {index}' for index, name in enumerate(arguments)}
    positions.update((node.name, str(index)) for index, node in enumerate(nodes))

    def tensor(name: str) -> list[str]:  # Position of its node, and which output it is.
      node, *output = name.removeprefix('^').split(':')
      return [positions[node], *(output if output != ['0'] else [])]

    described: list[Any] = [[tensor(name) for name in outputs]]
    for node in nodes:
      control = sorted(tensor(name) for name in node.input if name.startswith('^'))
      data = [tensor(name) for name in node.input if not name.startswith('^')]
      attributes = [
        [name, attribute(node.attr[name])]
        for name in sorted(node.attr)
        if not name.startswith('_') and name not in _IGNORED
      ]
      described.append([node.op, data, control, attributes])
    return described

  def attribute(value: Any) -> Any:
    called = [value.func] if value.HasField('func') else value.list.func
    if called:
      return [of_function(each.name) for each in called]
    return value.SerializeToString(deterministic=True).hex()

  @functools.cache
  def of_function(name: str) -> str:
    if name not in called_functions:
      return name  # A function of TensorFlow's own.
    called = called_functions[name]
    signature = called.signature
    results = [called.ret[each.name] for each in signature.output_arg]
    names = [each.name for each in signature.input_arg]
    types = [each.type for each in signature.input_arg]
    return _sha256([types, body(called.node_def, results, names)])

  outputs = [tensor.name for tensor in tf.nest.flatten(results)]
  return _sha256(body(definition.node, outputs))


def _sha256(description: Any) -> str:
  return f'sha256:{hashlib.sha256(json.dumps(description).encode()).hexdigest()}'

"""`extract_dp_event` returns all that was spent, or refuses the state."""

import collections
import dataclasses

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants

_optimizers = tff.learning.optimizers
_VECTOR = tff.TensorType(np.float32, [2])
_runtime = running.local_runtime


def _gaussian(seed=1, **kwargs):
  return aggregators.gaussian(
    **{
      'clip_norm': 1.0,
      'noise_multiplier': 2.0,
      'clients_per_round': 2,
      'seed': noise.Seed(seed),
      **kwargs,
    }
  )


def _clients():
  x, y = np.float32([[1, 2], [3, 4]]), np.float32([[1], [2]])
  return [tf.data.Dataset.from_tensor_slices((x, y)).batch(2)] * 2


def _state_after_one_round(process):
  return process.next(process.initialize(), _clients()).state


@pytest.mark.slow
def test_extract_dp_event_refuses_mime_lite_without_exactly_one_mechanism():
  process = tff.learning.algorithms.build_unweighted_mime_lite(
    _keras_model,
    _optimizers.build_sgdm(0.1, 0.9),
    model_aggregator=_gaussian(seed=2, noise_multiplier=3.0),
    full_gradient_aggregator=_gaussian(),
  )
  state = _state_after_one_round(process)
  with pytest.raises(TypeError, match='with 2. They are client_work.1 and aggregator'):
    aggregators.extract_dp_event(state)
  events = [
    aggregators.extract_dp_event(part).all_rounds_so_far
    for part in (state.client_work[1], state.aggregator)
  ]
  assert events == [dp_accounting.GaussianDpEvent(sigma) for sigma in (2.0, 3.0)]
  # A mean without noise has no state.
  with pytest.raises(TypeError, match='private mean in client_work.1 alone'):
    aggregators.extract_dp_event(_learning_state(state, aggregator=()))
  other_state = _learning_state(state, client_work=(state.client_work[0], ()))
  with pytest.raises(ValueError, match='remembers client_work.0.learning_rate'):
    aggregators.extract_dp_event(other_state)


def _keras_model():
  keras_model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, kernel_initializer='zeros', input_shape=[2])]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])),
  )


_OPTIMIZERS = {
  'adafactor': lambda: _optimizers.build_adafactor(0.1),
  'adagrad': lambda: _optimizers.build_adagrad(0.1),
  'adam': lambda: _optimizers.build_adam(0.1),
  'adamw': lambda: _optimizers.build_adamw(0.1),
  'rmsprop': lambda: _optimizers.build_rmsprop(0.1),
  'sgd': lambda: _optimizers.build_sgdm(0.1),
  'sgdm': lambda: _optimizers.build_sgdm(0.1, 0.9),
  'yogi': lambda: _optimizers.build_yogi(0.1),
}


def test_all_tff_optimizers_are_tested():
  public = {name for name in dir(_optimizers) if name.startswith('build_')}
  assert public == {f'build_{name}' for name in _OPTIMIZERS} - {'build_sgd'}


def _learning_state(state, **parts):
  """Returns the state of a learning process with some parts replaced."""
  return tff.learning.templates.LearningAlgorithmState(**{**state._asdict(), **parts})


@pytest.fixture(scope='module')
def fed_avg_state():
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    _keras_model,
    _optimizers.build_sgdm(0.1, 0.9),
    _optimizers.build_adam(0.1),
    model_aggregator=_gaussian(),
  )
  return _state_after_one_round(process)


def test_extract_dp_event_reads_fed_avg_state_with_server_optimizer(fed_avg_state):
  assert fed_avg_state.client_work['momentum'] == pytest.approx(0.9)
  assert np.any(fed_avg_state.finalizer['preconditioner'][0])
  spent = aggregators.extract_dp_event(fed_avg_state)
  assert spent == aggregators.extract_dp_event(fed_avg_state.aggregator)
  assert spent.last_round_only == dp_accounting.GaussianDpEvent(2.0)


@pytest.mark.parametrize('name', _OPTIMIZERS)
def test_client_hyperparameters_are_accepted_but_optimizer_state_is_refused(
  name, fed_avg_state
):
  # TFF's client work keeps `get_hparams` of the optimizer of a scalar.
  optimizer = _OPTIMIZERS[name]()
  state = optimizer.initialize(tf.TensorSpec([]))
  accepted = _learning_state(fed_avg_state, client_work=optimizer.get_hparams(state))
  assert aggregators.extract_dp_event(accepted).last_round_only
  if name != 'sgd':  # SGD has no other state.
    refused = _learning_state(fed_avg_state, client_work=state)
    with pytest.raises(ValueError, match='remembers client_work'):
      aggregators.extract_dp_event(refused)


def test_client_work_may_be_the_number_of_rounds(fed_avg_state):
  counted = _learning_state(fed_avg_state, client_work=np.int32(1))
  assert aggregators.extract_dp_event(counted).last_round_only


@pytest.mark.parametrize(
  'client_work',
  [
    np.int32(2),
    np.float32(1),
    np.array([1]),
    collections.OrderedDict(learning_rate=np.float32(0.1), loss=np.float32(0.5)),
    collections.OrderedDict(learning_rate=np.float32([0.1, 0.2])),
    collections.OrderedDict(learning_rate=collections.OrderedDict(a=np.float32(1))),
    (np.float32(0.1),),
    object(),
  ],
)
def test_extract_dp_event_refuses_other_client_work_state(client_work, fed_avg_state):
  state = _learning_state(fed_avg_state, client_work=client_work)
  with pytest.raises(ValueError, match='remembers client_work'):
    aggregators.extract_dp_event(state)


def test_extract_dp_event_refuses_other_state_beside_mechanism(fed_avg_state):
  state = _learning_state(fed_avg_state, distributor=(np.float32([1, 2]),))
  with pytest.raises(ValueError, match='remembers distributor.0'):
    aggregators.extract_dp_event(state)
  state = collections.OrderedDict(inner=fed_avg_state.aggregator, count_sum=())
  with pytest.raises(ValueError, match='another aggregation, count_sum'):
    aggregators.extract_dp_event(state)


def test_extract_dp_event_refuses_mechanism_outside_aggregator(fed_avg_state):
  for part in ('distributor', 'finalizer', 'global_model_weights'):
    moved = {part: (fed_avg_state.aggregator,), 'aggregator': ()}
    with pytest.raises(TypeError, match=f'private mean in {part}.0 alone'):
      aggregators.extract_dp_event(_learning_state(fed_avg_state, **moved))
    both = _learning_state(fed_avg_state, **{part: (fed_avg_state.aggregator,)})
    with pytest.raises(TypeError, match='with 2'):
      aggregators.extract_dp_event(both)


def test_extract_dp_event_refuses_output_of_next():
  process = _gaussian().create(_VECTOR)
  output = process.next(process.initialize(), [np.float32([1, 0])] * 2)
  learning_output = tff.learning.templates.LearningProcessOutput(output.state, ())
  for each in (output, learning_output):
    with pytest.raises(TypeError, match=r'give its \.state'):
      aggregators.extract_dp_event(each)


def test_extract_dp_event_refuses_mean_with_exact_weight_sum():
  # The result for two values of 1 and some zeros reveals the number of zeros.
  factory = tff.aggregators.MeanFactory(_gaussian(noise_multiplier=0.0))
  process = factory.create(_VECTOR, tff.TensorType(np.float32))
  results = []
  for zeros in (1, 2):
    values = [np.float32([1, 0])] * 2 + [np.float32([0, 0])] * zeros
    output = process.next(process.initialize(), values, [1.0] * len(values))
    results.append(output.result[0])
    with pytest.raises(ValueError, match='weight_sum_process'):
      aggregators.extract_dp_event(output.state)
  assert results[0] != results[1]


class _StatefulSum(tff.aggregators.UnweightedAggregationFactory):
  """A sum whose state is the last sum."""

  def create(self, value_type):
    @tff.tensorflow.computation
    def zeros():
      return tff.types.structure_from_tensor_type_tree(
        lambda each: tf.zeros(each.shape, each.dtype), value_type
      )

    @tff.federated_computation
    def initialize():
      return tff.federated_eval(zeros, tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(unused_state, value):
      total = tff.federated_sum(value)
      return tff.templates.MeasuredProcessOutput(
        total, total, tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def test_extract_dp_event_refuses_stateful_sum_inside_mechanism():
  stateful_sum = aggregators.ExactSum(_StatefulSum())
  process = _gaussian(record_aggregation_factory=stateful_sum).create(_VECTOR)
  output = process.next(process.initialize(), [np.float32([1, 0])] * 2)
  # The exact sum is in the state.
  assert np.count_nonzero(tf.nest.flatten(output.state.record_sum)[0]) == 1
  with pytest.raises(ValueError, match='remembers record_sum.*secure_sum'):
    aggregators.extract_dp_event(output.state)
  counted = output.state._replace(record_sum=(), count_sum=(np.int32(2),))
  with pytest.raises(ValueError, match='remembers count_sum.0'):
    aggregators.extract_dp_event(counted)


_LIMITS = strategies.Participation(8, min_separation=2)
_MECHANISMS = {
  'tree': accounting.Mechanism('tree', _LIMITS, 9.0),
  'toeplitz': accounting.Mechanism('toeplitz', _LIMITS, 5.0, num_bands=2),
  'laplace': accounting.Mechanism('laplace', _LIMITS, 5.0),
  'adaptive': accounting.Mechanism('tree', _LIMITS, 9.0, clipped_count_stddev=6.0),
  'sampled': accounting.Mechanism('gaussian', sampling.PoissonSampling(8, 0.3), 2.0),
}


@pytest.mark.few(3)
@pytest.mark.parametrize('name', _MECHANISMS)
def test_would_exceed_stops_custom_loop_within_privacy_target(name):
  mechanism = _MECHANISMS[name]
  target = accounting.Target(mechanism.epsilon(1e-5) * 0.8, 1e-5)
  if mechanism.is_one_gaussian:
    target = accounting.Target(rho=accountants.zcdp_rho(mechanism.event) * 0.6)
  schedule, cohort = None, 4.8 if name == 'sampled' else 4
  if name in ('adaptive', 'sampled'):
    schedule = sampling.for_mechanism(mechanism, 16, cohort, seed=1)
  process = aggregators.from_mechanism(
    mechanism,
    clip_norm=1.0,
    clients_per_round=cohort,
    schedule=schedule,
    seed=noise.Seed(3),
  ).create(_VECTOR)
  state, rounds = process.initialize(), 0
  while rounds < 8:
    exceeds = mechanism.would_exceed(target, rounds)
    if rounds:
      spent = aggregators.extract_dp_event(state)
      assert spent.rounds == rounds
      assert spent.would_exceed(target, mechanism) == exceeds
    if exceeds:
      break
    state = process.next(state, [np.float32([1, 0])] * 2).state
    rounds += 1
  assert 0 < rounds < 8
  assert rounds == mechanism.rounds_within(
    target.epsilon, target.delta, target_rho=target.rho, accountant=target.accountant
  )
  if not mechanism.is_sampled:  # States do not record the sampling.
    spent = aggregators.extract_dp_event(state)
    assert target.is_kept(spent.all_rounds_so_far, mechanism.relation)


def test_would_exceed_refuses_another_mechanism():
  mechanism = _MECHANISMS['tree']
  process = aggregators.from_mechanism(
    mechanism, clip_norm=1.0, clients_per_round=4, seed=noise.Seed(3)
  ).create(_VECTOR)
  state = process.next(process.initialize(), [np.float32([1, 0])] * 2).state
  spent = aggregators.extract_dp_event(state)
  target = accounting.Target(2.0, 1e-5)
  for other_mechanism in (
    dataclasses.replace(mechanism, noise_multiplier=9.1),
    _MECHANISMS['toeplitz'],
  ):
    with pytest.raises(ValueError, match='it is of another one'):
      spent.would_exceed(target, other_mechanism)
  replaced = dataclasses.replace(mechanism, adjacency='replace_one')
  assert spent.would_exceed(target, replaced) == replaced.would_exceed(target, 1)
  uncounted = spent._replace(rounds=None)
  with pytest.raises(ValueError, match='ask mechanism.would_exceed'):
    uncounted.would_exceed(target, mechanism)

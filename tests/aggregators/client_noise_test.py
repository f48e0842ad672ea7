"""TFF processes whose clients add noise, and rounds with a minimum of clients."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.queries import grid

_SIZE = 4000
_VECTOR = tff.TensorType(np.float32, [_SIZE])
_NUMBERS = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 8}
_ZEROS = np.zeros(_SIZE, np.float32)


def _make(name, *args, **kwargs):
  return getattr(aggregators, name)(*args, **{**_NUMBERS, **kwargs})


_runtime, secure_backend = running.local_runtime, running.secure_backend


def _reports(factory):
  """Returns the computation of what each client sends in the process of a factory."""
  mean = factory.mean_of(_VECTOR)

  @tff.tensorflow.computation
  @tracing.as_written
  def for_clients():
    return mean.client_params(mean.initial_state().query)

  @tff.tensorflow.computation(for_clients.type_signature.result, _VECTOR)
  @tracing.as_written
  def encode(params, value):
    return mean.encode(params, value)[0]

  @tff.federated_computation(tff.FederatedType(_VECTOR, tff.CLIENTS))
  def send(values):
    params = tff.federated_broadcast(tff.federated_eval(for_clients, tff.SERVER))
    return tff.federated_map(encode, (params, values))

  return send


@pytest.mark.few(1)
@pytest.mark.optimized_graphs
@pytest.mark.parametrize('name', ['local_laplace', 'gaussian_shares'])
def test_each_client_sends_its_own_noise(name):
  # Equal updates of six clients in two rounds, of two in an equal process, and of two
  # after TFF's runtime has been started again.
  first, other = (_reports(_make(name)) for _ in range(2))
  rows = [*first([_ZEROS] * 6), *first([_ZEROS] * 6), *other([_ZEROS] * 2)]
  with runtime.local_runtime():
    rows += first([_ZEROS] * 2)
  rows = np.array(rows, np.int64)
  assert len({row.tobytes() for row in rows}) == 16
  # Numbers are equal only by chance: 64,000 of some 2^36 values.
  assert len(np.unique(rows)) > rows.size - 10
  correlations = np.corrcoef(rows.astype(np.float64))[np.triu_indices(16, 1)]
  assert np.abs(correlations).max() < 7 / math.sqrt(_SIZE)  # 3e-10 for 120 pairs.


@pytest.mark.slow
def test_secure_sum_contains_noise_of_clients(secure_backend):
  factory = _make(
    'local_laplace',
    clip_norm=0.7,
    noise_multiplier=20.0,
    record_aggregation_factory=aggregators.secure_sum(),
  )
  sent = np.abs(np.array(_reports(factory)([_ZEROS] * 4)))
  assert sent.max() < grid.LARGEST_ENTRY
  # Of the four bits that are left for the largest noise, less than three are unused.
  assert sent.max() > grid.LARGEST_ENTRY / 2**7
  process = factory.create(_VECTOR)
  result = process.next(process.initialize(), [_ZEROS] * 8).result
  stddev = 14 * math.sqrt(2) / math.sqrt(8)
  assert np.std(result) == pytest.approx(stddev, rel=7 * math.sqrt(0.6 / _SIZE))


def _gaussian_sum(specs):
  return queries.GaussianSumQuery(
    clip_norm=1.0, noise_multiplier=0.0, record_specs=specs
  )


def _next_after_abort(process, state, too_few, enough):
  """Returns the output for enough clients, after an aborted round with too few."""
  with pytest.raises(failures.ComputationError, match='fewer clients .* is aborted'):
    process.next(state, [np.float32(1.0)] * too_few)
  return process.next(state, [np.float32(0.5)] * enough)


def test_round_below_min_clients_is_aborted_and_discarded():
  factory = aggregators.DPMeanFactory(_gaussian_sum, clients_per_round=4, min_clients=3)
  assert factory.min_clients == 3
  process = factory.create(tff.TensorType(np.float32))
  state = process.initialize()
  output = _next_after_abort(process, state, 2, 3)
  assert output.result == pytest.approx(1.5 / 4, rel=1e-6)
  output = _next_after_abort(process, output.state, 0, 4)
  assert output.measurements['dp_query_metrics']['rounds'] == 2


def test_with_min_clients_aborts_rounds_with_fewer_clients():
  gaussian = _make('gaussian', clients_per_round=4, noise_multiplier=0.0)
  strict = gaussian.with_min_clients(4)
  assert (gaussian.min_clients, strict.min_clients) == (0, 4)
  assert strict.with_min_clients(2).min_clients == 4
  for frozen, name in ((strict, 'min_clients'), (strict.query, 'clip_norm')):
    with pytest.raises(AttributeError, match=name):
      setattr(frozen, name, 1)  # Noise and events depend on it.
  process = strict.create(tff.TensorType(np.float32))
  output = _next_after_abort(process, process.initialize(), 3, 4)
  assert output.result == pytest.approx(0.5, rel=1e-6)


def test_joint_min_clients_is_the_largest_of_its_parts():
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'clients_per_round': 4}
  parts = {
    'body': aggregators.gaussian_shares(min_clients=2, **numbers),
    'head': aggregators.gaussian(**numbers).with_min_clients(3),
  }
  joint = aggregators.joint(parts, part_of=['body', 'head'])
  assert joint.min_clients == 3
  process = joint.create(tff.to_type([np.float32, np.float32]))
  value = [np.float32(0.0)] * 2
  with pytest.raises(failures.ComputationError, match='fewer clients reported'):
    process.next(process.initialize(), [value] * 2)
  state = process.next(process.initialize(), [value] * 3).state
  spent = aggregators.extract_dp_event(state).all_rounds_so_far
  assert spent == dp_accounting.GaussianDpEvent(pytest.approx(1 / math.sqrt(2)))


def test_min_clients_out_of_range_is_refused():
  with pytest.raises(ValueError, match='min_clients is 9, but clients_per_round is 8'):
    _make('gaussian_shares', min_clients=9)
  with pytest.raises(ValueError, match='min_clients is 5, but clients_per_round is 4'):
    aggregators.DPMeanFactory(_gaussian_sum, clients_per_round=4, min_clients=5)
  with pytest.raises(ValueError, match='min_clients is 9, but clients_per_round is 8'):
    _make('gaussian').with_min_clients(9)
  with pytest.raises(ValueError, match='min_clients must be at least 1'):
    _make('gaussian').with_min_clients(0)
  with pytest.raises(TypeError, match='min_clients must be'):
    _make('gaussian').with_min_clients(None)


@pytest.mark.parametrize('name', ['gaussian_shares', 'two_sided_gaussian'])
def test_create_refuses_seed_if_clients_add_the_noise(name):
  options = {'server_noise_multiplier': 5.0} if name == 'two_sided_gaussian' else {}
  factory = _make(name, seed=noise.Seed(3), **options)
  with pytest.raises(ValueError, match=r'has a seed \(seed 3, stream 0\)'):
    factory.create(_VECTOR)
  factory.mean_of(_VECTOR)  # Packed simulations call this.

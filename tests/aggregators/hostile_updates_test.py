"""A client changes the mean without noise by at most clip norm over denominator."""

import fractions
import functools
import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import hostile_updates
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.queries import grid

_ROUNDS, _CLIP_NORM, _CLIENTS = 4, 0.7, 10.0
_LIMITS = strategies.Participation(_ROUNDS, min_separation=2)


def _numbers(noise_multiplier):
  return {
    'clip_norm': _CLIP_NORM,
    'noise_multiplier': noise_multiplier,
    'clients_per_round': _CLIENTS,
  }


# Factories and the orders of the norms they bound. Grids depend on the noise.
_FACTORIES = {
  'adaptive': (
    lambda **kw: aggregators.adaptive(
      noise_multiplier=0.3,
      clients_per_round=_CLIENTS,
      initial_clip_norm=_CLIP_NORM,
      **kw,
    ),
    2,
  ),
  'banded': (lambda **kw: aggregators.banded(_LIMITS, **_numbers(1.0), **kw), 2),
  'gaussian': (lambda **kw: aggregators.gaussian(**_numbers(5000.0), **kw), 2),
  # Without noise, so that the clipped updates are visible.
  'gaussian_shares': (
    lambda **kw: aggregators.gaussian_shares(min_clients=1, **_numbers(0.0), **kw),
    2,
  ),
  'local_gaussian': (lambda **kw: aggregators.local_gaussian(**_numbers(0.0), **kw), 2),
  'local_laplace': (lambda **kw: aggregators.local_laplace(**_numbers(0.0), **kw), 1),
  'two_sided_gaussian': (
    lambda **kw: aggregators.two_sided_gaussian(
      server_noise_multiplier=0.0, **_numbers(0.0), **kw
    ),
    2,
  ),
  'laplace': (lambda **kw: aggregators.laplace(**_numbers(2.0), **kw), 1),
  'tree': (lambda **kw: aggregators.tree(_LIMITS, **_numbers(0.0), **kw), 2),
}
for _order in (1, 3, math.inf):
  _FACTORIES[f'norm_clip:{_order}'] = (
    functools.partial(
      aggregators.norm_clip,
      clip_norm=_CLIP_NORM,
      clients_per_round=_CLIENTS,
      order=_order,
    ),
    _order,
  )
_WRAPPERS = {
  'CoordinateBoundsFactory': lambda inner: aggregators.CoordinateBoundsFactory(
    inner, bounds=0.6
  ),
  'ZeroLargeFactory': lambda inner: aggregators.ZeroLargeFactory(inner, norm=50.0),
  'ZeroNonfiniteFactory': aggregators.ZeroNonfiniteFactory,
  'clipping_factory': lambda inner: tff.aggregators.clipping_factory(0.9, inner),
  'zeroing_factory': lambda inner: tff.aggregators.zeroing_factory(50.0, inner),
}
_NOT_ATTACKED = {
  # Their means are those of the builders above.
  'DPMeanFactory',
  'from_mechanism',
  'from_strategy',
  'DPMeanState',
  'ExactSum',
  'SignalToNoise',
  'SpentEvents',
  'extract_dp_event',
  'quantile',  # For single numbers: quantile_test.
  'range_sums',  # Clips trees: range_sums_test.
  'from_joint_mechanism',  # Makes a joint factory.
  'joint',  # Its parts are those above: joint_test.
  'secure_sum',
  # Clients send the same as for local_gaussian and local_laplace.
  'approximate_local_gaussian',
  'approximate_local_laplace',
  # These have their own grid: distributed_test.
  'distributed_discrete_gaussian',
  'distributed_skellam',
  'secure_modular_sum',
}
_FLOAT32 = tff.to_type([(np.float32, [4]), (np.float32, [2])])
_MIXED = tff.to_type([(np.float32, [4]), (np.float64, [2])])
_TYPES = {'float32': _FLOAT32, 'mixed': _MIXED}

factories = pytest.mark.parametrize('name', _FACTORIES)
dtypes = pytest.mark.parametrize('dtypes', _TYPES)


def test_all_public_builders_of_means_are_tested():
  tested = {name.split(':')[0] for name in (*_FACTORIES, *_WRAPPERS)}
  public = set(aggregators.__all__) - _NOT_ATTACKED
  assert public <= tested
  assert tested - public == {'clipping_factory', 'zeroing_factory'}


def _value(row, value_type):
  """Returns a row of six numbers as a client's value."""
  parts = (row[:4], row[4:])
  return [tf.cast(part, spec.dtype) for part, spec in zip(parts, value_type)]


@functools.cache
def _sender(name, dtypes):
  """Returns the function from clip norm and updates to what clients send."""
  build, _ = _FACTORIES[name]
  factory, value_type = build(), _TYPES[dtypes]
  mean = factory.mean_of(value_type)
  params = mean.client_params(mean.initial_state().query)

  @tf.function(
    input_signature=[
      tf.TensorSpec([]),
      tf.TensorSpec([None, hostile_updates.DIMENSION], tf.float64),
    ],
    autograph=False,
  )
  def send(clip_norm, rows):
    # The clip norm and, if it adapts, the estimate that norms are compared with.
    client_params = tf.nest.map_structure(lambda unused: clip_norm, params)

    def send_one(row):
      sample, counts = mean.encode(client_params, _value(row, value_type))
      flat = tf.concat([tf.reshape(t, [-1]) for t in tf.nest.flatten(sample)], axis=0)
      return flat, counts.nonfinite

    length = hostile_updates.DIMENSION + (name == 'adaptive')
    signature = (tf.TensorSpec([length], tf.int64), tf.TensorSpec([], tf.int32))
    return tf.map_fn(send_one, rows, fn_output_signature=signature)

  return send, factory.query


@pytest.fixture(scope='module', autouse=True)
def _clear_cached_functions():
  with runtime.local_runtime():
    yield
  _sender.cache_clear()


def _steps(query, clip_norm):
  """Returns the number of grid steps in 1, a power of two."""
  multiplier = getattr(query, 'value_noise_multiplier', None)
  if multiplier is None:
    multiplier = getattr(query, 'noise_multiplier', 0.0)
  return fractions.Fraction(float(grid.steps_per_unit(clip_norm, multiplier)))


def _in_client_dtypes(rows, dtypes):
  """Returns updates as clients have them: float32 alone, or with two of float64."""
  with np.errstate(over='ignore'):
    sent = rows.astype(np.float32).astype(np.float64)
  if dtypes == 'mixed':
    sent[:, 4:] = rows[:, 4:]
  return sent


def _check_sent(query, order, clip_norm, integers, sent):
  """Checks what clients send for some updates, by exact arithmetic."""
  if isinstance(query, queries.AdaptiveClippingQuery):
    below, integers = integers[:, -1], integers[:, :-1]
    assert np.all(np.abs(below) == np.abs(below[0]))
    assert 0 < np.abs(below[0]) <= grid.LARGEST_ENTRY
  bound = fractions.Fraction(float(clip_norm)) * _steps(query, clip_norm)
  within = hostile_updates.norm_is_within(integers, order, bound)
  assert np.all(within), (sent[~within][0], integers[~within][0])
  finite = np.isfinite(sent).all(axis=1)
  assert not np.any(integers[~finite])
  with np.errstate(all='ignore'):
    steps = np.abs(sent) * float(_steps(query, clip_norm))
  # Signs are kept, no entry grows, and entries below a step are zero.
  assert np.all(np.abs(integers[finite]) <= steps[finite])
  assert np.all(integers[finite] * np.sign(sent[finite]) >= 0)
  return finite


def _check_updates(name, dtypes, clip_norm, base):
  """Checks hundreds of updates, and returns their number."""
  send, query = _sender(name, dtypes)
  rows = hostile_updates.batch(base, clip_norm)
  integers, nonfinite = send(np.float32(clip_norm), rows)
  finite = _check_sent(
    query,
    _FACTORIES[name][1],
    np.float32(clip_norm),
    integers.numpy(),
    _in_client_dtypes(rows, dtypes),
  )
  np.testing.assert_array_equal(nonfinite.numpy() == 0, finite)
  return len(rows)


@pytest.mark.few(6)
@dtypes
@factories
def test_no_encoded_update_exceeds_the_clip_norm(name, dtypes):
  checked = []

  @hypothesis.settings(max_examples=3, deadline=None, database=None, derandomize=True)
  @hypothesis.given(hostile_updates.clip_norms, hostile_updates.bases)
  def check(clip_norm, base):
    checked.append(_check_updates(name, dtypes, clip_norm, base))

  check()
  assert sum(checked) >= 1_000


# In TFF processes.


class _SumWithInputs(tff.aggregators.UnweightedAggregationFactory):
  """A sum whose measurements contain what every client sent, in no order."""

  def create(self, value_type):
    plain = tff.aggregators.SumFactory().create(value_type)
    reservoir = tff.aggregators.UnweightedReservoirSamplingFactory(2_000).create(
      value_type
    )

    @tff.federated_computation(
      plain.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, value):
      inputs = reservoir.next(reservoir.initialize(), value)
      return tff.templates.MeasuredProcessOutput(
        state, plain.next(state, value).result, inputs.result
      )

    return tff.templates.AggregationProcess(plain.initialize, next_fn)


def _inputs_in(measurements):
  """Returns rows of what clients sent, from inside the measurements of wrappers."""
  while 'dp' not in measurements:
    (measurements,) = [
      value for key, value in measurements.items() if key in ('clipping', 'zeroing')
    ]
  flat = tf.nest.flatten(measurements['dp'])
  return np.concatenate([np.reshape(t, [len(t), -1]) for t in flat], axis=1)


def _check_process(name, wrappers=()):
  build, order = _FACTORIES[name]
  factory = build(record_aggregation_factory=aggregators.ExactSum(_SumWithInputs()))
  outermost = factory
  for wrap in wrappers:
    outermost = wrap(outermost)
  process = outermost.create(_MIXED)
  rows = hostile_updates.batch([0.5, -0.25, 1.0, 0.0, 3.0, -0.125], _CLIP_NORM)[::5]
  with np.errstate(over='ignore'):
    values = [[row[:4].astype(np.float32), row[4:]] for row in rows]
  output = process.next(process.initialize(), values)
  integers = _inputs_in(output.measurements)
  assert len(integers) == len(rows)
  if name == 'adaptive':
    integers = integers[:, :-1]
  bound = fractions.Fraction(float(np.float32(_CLIP_NORM)))
  steps = _steps(factory.query, np.float32(_CLIP_NORM))
  assert np.all(hostile_updates.norm_is_within(integers, order, bound * steps))
  # Some updates are at the bound, so it is the clip norm and not a smaller one.
  within_99 = hostile_updates.norm_is_within(integers, order, bound * steps * 99 / 100)
  assert wrappers or not np.all(within_99)
  return integers, steps, output.result


def test_no_client_of_a_tff_process_exceeds_the_clip_norm():
  _check_process('adaptive', _WRAPPERS.values())


def test_mean_is_exact_sum_over_denominator():
  # Without noise, a client changes the sum by its integers, and the mean by these over
  # steps and denominator, except for one rounding of the mean to its dtype.
  integers, steps, mean = _check_process('tree')
  total = integers.astype(object).sum(axis=0)
  for part, entries, spec in zip(mean, (total[:4], total[4:]), _MIXED):
    exact = [fractions.Fraction(int(n)) / steps / int(_CLIENTS) for n in entries]
    spacing = np.finfo(spec.dtype).eps
    for released, number in zip(part, exact):
      assert abs(fractions.Fraction(float(released)) - number) <= 2 * spacing * abs(
        number
      )

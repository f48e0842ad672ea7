"""Builds adaptive queries for tests, and runs their rounds."""

import tensorflow as tf

from tests.queries import records as records_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import adaptive_clipping
from tff_dp_aggregators.queries import grid

ROUNDS = 8
PARTICIPATION = strategies.Participation(ROUNDS, min_separation=3)
STRATEGIES = {
  'gaussian': strategies.Identity(ROUNDS),
  'tree': strategies.BinaryTree(ROUNDS),
  'tree_with_restarts': strategies.BinaryTree(ROUNDS, restart_every=4),
  'banded': strategies.BandedToeplitz.square_root(ROUNDS, 3),
  'blt': strategies.BLT(ROUNDS, (0.3, 0.1), (0.9, 0.5)),
}


def arguments(**kwargs):
  """Returns default arguments of a query, updated by `kwargs`."""
  defaults = {
    'initial_clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'clients_per_round': 100,
    'record_specs': tf.TensorSpec([3]),
  }
  return {**defaults, **kwargs}


def build(kind='gaussian', **kwargs):
  """Returns a query of ROUNDS rounds, with one of the STRATEGIES."""
  return queries.AdaptiveClippingQuery(
    STRATEGIES[kind], PARTICIPATION, **arguments(**kwargs)
  )


def unlimited(**kwargs):
  """Returns a query of any number of rounds, with independent noise."""
  return queries.AdaptiveGaussianSumQuery(**arguments(**kwargs))


def one_round(query, state, records):
  """Returns result, next state and, if there is noise, its multiplier."""
  result, state, event = records_lib.one_round(query, state, records)
  return result, state, getattr(event, 'noise_multiplier', None)


def run(query, records, num_rounds):
  """Returns results and states of rounds, each with the rows of `records`."""
  records = tf.convert_to_tensor(records)

  @tf.function(autograph=False)
  def step(state):
    return query.get_noised_result(sum_of(query, state, records), state)[:2]

  state, results, states = query.initial_global_state(), [], []
  for _ in range(num_rounds):
    result, state = step(state)
    results.append(result)
    states.append(state)
  return results, states


def sum_of(query, state, records):
  """Returns the sample state of records that are the rows of a tensor."""
  params = query.derive_sample_params(state)
  each = tf.vectorized_map(lambda x: query.preprocess_record(params, x), records)
  return tf.nest.map_structure(lambda x: tf.reduce_sum(x, axis=0), each)


def entries(query, params, sample):
  """Returns the clipped record of a sample state, decoded from the grid."""
  steps = grid.steps_per_unit(params.clip_norm, query.value_noise_multiplier)
  return records_lib.flat(sample.record) / float(steps)


def below(sample):
  """Returns a sample's part of the count: 1/2, or -1/2 if above the estimate."""
  return float(sample.below) / adaptive_clipping.UNIT

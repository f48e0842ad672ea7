"""Tests that options of `learning.train` are checked when made, not during training."""

import math

import pytest

from tff_dp_aggregators.learning import options


@pytest.mark.parametrize(
  ('option_class', 'arguments', 'error', 'message'),
  [
    (options.Evaluation, {'data': [1], 'every': 'x'}, TypeError, "number, got 'x'"),
    (options.ClientTraining, {'batch_size': '16'}, TypeError, "number, got '16'"),
    (options.ClientTraining, {'proximal_strength': -1.0}, ValueError, 'got -1.0'),
    (options.Server, {'inner_aggregator': ['sum']}, ValueError, r"got \['sum'\]"),
    (options.Server, {'zeroing_norm': math.inf}, ValueError, 'finite; got inf'),
    (options.Server, {'coordinate_bound': '2'}, TypeError, "number, got '2'"),
    (options.Server, {'target_quantile': 'a'}, TypeError, "number, got 'a'"),
    (options.Server, {'clip_order': 0.5}, ValueError, 'or infinite; got 0.5'),
    (options.Server, {'not_private_signal_to_noise': 'no'}, TypeError, "got 'no'"),
    (
      options.SimulatedCohort,
      {'mechanism': None, 'scale': 0.5},
      ValueError,
      'at least 1; got 0.5',
    ),
    (options.SimulatedCohort, {'mechanism': None, 'scale': '1'}, TypeError, "got '1'"),
    (options.RunOptions, {'noise_seed': '1'}, TypeError, "got '1'"),
    (options.RunOptions, {'packed_simulation': 'no'}, ValueError, "'auto'; got 'no'"),
    (options.RunOptions, {'checkpoint_seconds': -1}, ValueError, 'got -1'),
    (options.RunOptions, {'timeout_seconds': 'a'}, TypeError, "number, got 'a'"),
    (options.RunOptions, {'trusted_network': 'no'}, TypeError, "got 'no'"),
    (options.RunOptions, {'settings': {'a': {1}}}, TypeError, 'JSON-ready: .* set'),
    (options.RunOptions, {'data_facts': [1]}, TypeError, r'a mapping, got \[1\]'),
    (options.RunOptions, {'target_epsilon': '8'}, TypeError, "number, got '8'"),
  ],
)
def test_options_refuse_wrong_field_by_name(option_class, arguments, error, message):
  with pytest.raises(error, match=f'{list(arguments)[-1]} must be .*{message}'):
    option_class(**arguments)


def test_options_accept_valid_values():
  options.Server(clip_order=math.inf, zeroing_norm=1, inner_aggregator='secure_sum')
  options.RunOptions(
    noise_seed=-1, checkpoint_seconds=math.inf, timeout_seconds=None, settings={'a': 1}
  )

"""Our replacement for TF Privacy's tree aggregation accountant."""

import functools
import importlib.util
import itertools
import json
import math
import pathlib

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import tree_aggregation_accountant as ours

GBOARD = json.loads(pathlib.Path(__file__).with_name('gboard_tree.json').read_text())
ORDERS = list(accountants.RDP_ORDERS)


@functools.cache
def tf_privacy():
  """TF Privacy's module alone: from its file, without loading TensorFlow."""
  package = importlib.util.find_spec('tensorflow_privacy')
  if package is None:
    pytest.skip('TensorFlow Privacy is not installed')
  (folder,) = package.submodule_search_locations
  path = pathlib.Path(folder) / 'privacy/analysis/tree_aggregation_accountant.py'
  spec = importlib.util.spec_from_file_location('tf_privacy_tree_accountant', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def assert_same(call):
  """Asserts that `call` of both modules gives the same value of the same type."""
  expected, actual = call(tf_privacy()), call(ours)
  assert isinstance(actual, np.ndarray) == isinstance(expected, np.ndarray)
  np.testing.assert_array_equal(actual, expected)
  assert np.shape(actual) == np.shape(expected)


@pytest.mark.parametrize('total_steps', [1, 3, 8, 21, 33])
def test_single_tree_matches_tf_privacy(total_steps):
  for max_participation, min_separation, noise in itertools.product(
    (1, 2, 5, 40), (0, 1, 3, 50), (0.3, 7.0)
  ):
    arguments = (noise, total_steps, max_participation, min_separation)
    assert_same(lambda module, a=arguments: module.compute_zcdp_single_tree(*a))
    assert_same(lambda module, a=arguments: module.compute_rdp_single_tree(*a, ORDERS))


def test_restarts_match_tf_privacy():
  for steps, noise in itertools.product(
    [*range(1, 40), [0], [0, 0, 7], [10, 400, 399], (8, 9)], (0.1, 3)
  ):
    assert_same(lambda m, a=(noise, steps): m.compute_rdp_tree_restart(*a, ORDERS))


@pytest.mark.parametrize(
  ('name', 'arguments', 'message'),
  [
    ('compute_rdp_tree_restart', (-1, 3, 1), 'noise_multiplier'),
    ('compute_rdp_tree_restart', (1, [], 1), 'steps_list'),
    ('compute_rdp_tree_restart', (1, [3, -3], 1), 'steps_list'),
    ('compute_rdp_single_tree', (0.1, 3, 1, -1, 1), 'min_separation'),
    ('compute_rdp_single_tree', (0.1, 0, 1, 1, 1), 'total_steps'),
    ('compute_zcdp_single_tree', (-1, 3, 1, 1), 'noise_multiplier'),
    ('compute_zcdp_single_tree', (0.1, 3, 0, 1), 'max_participation'),
  ],
)
def test_arguments_that_tf_privacy_refuses_raise_value_error(name, arguments, message):
  with pytest.raises(ValueError):
    getattr(tf_privacy(), name)(*arguments)
  with pytest.raises(ValueError, match=message):
    getattr(ours, name)(*arguments)


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    ('compute_rdp_tree_restart', (1, [2.5], 1)),
    ('compute_zcdp_single_tree', (math.nan, 3, 1, 1)),
    ('compute_zcdp_single_tree', (1, 3, 1, 0.5)),
  ],
)
def test_nan_and_fractional_numbers_are_refused(name, arguments):
  with pytest.raises(ValueError, match='must be (non-negative|whole)'):
    getattr(ours, name)(*arguments)


def test_gboard_run_has_published_zcdp_and_epsilon():
  run = {
    'noise_multiplier': GBOARD['noise_multiplier'],
    'total_steps': GBOARD['num_rounds'],
    'max_participation': GBOARD['max_participations'],
    'min_separation': GBOARD['rounds_between'],
  }
  zcdp = ours.compute_zcdp_single_tree(**run)
  rdp = ours.compute_rdp_single_tree(**run, orders=ORDERS)
  epsilon, order = dp_accounting.rdp.compute_epsilon(ORDERS, rdp, GBOARD['delta'])
  assert zcdp == pytest.approx(GBOARD['zcdp'], rel=1e-14)
  assert epsilon == pytest.approx(GBOARD['epsilon_rdp'], rel=1e-12)
  assert order == GBOARD['rdp_order']
  for orders, expected in (({*ORDERS[:1]}, rdp[:1]), (np.array(ORDERS[0]), rdp[0])):
    actual = ours.compute_rdp_single_tree(**run, orders=orders)
    assert np.array_equal(actual, expected)
  assert (f'{zcdp:.2f}', f'{epsilon:.2f}') == ('0.81', '8.90')  # As published.

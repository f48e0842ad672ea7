"""Extracts the privacy event of a state, or refuses states that have no valid event.

The event of a private mean does not cover other aggregations in the same process. So
the whole state is searched, and parts that are not known to be harmless are refused.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow_federated as tff

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.aggregators import clientwise

# Hyperparameters of `tff.learning.optimizers`. TFF's client work keeps them in its
# state, so that users can change them between rounds; clients' data do not change them.
_HYPERPARAMETERS = frozenset(
  'beta_1 beta_2 beta_2_decay clip_threshold decay epsilon epsilon_1 epsilon_2 '
  'learning_rate momentum relative_step weight_decay'.split()
)

# Aggregations beside the mechanism whose results are measurements only: those of
# `tff.aggregators.zeroing_factory` and `clipping_factory`, with a norm without state.
_ONLY_MEASURED = frozenset(
  ('clipped_count_agg', 'clipping_norm', 'zeroed_count_agg', 'zeroing_norm')
)

# Relative tolerance for sensitivities that are computed in different orders.
_TOLERANCE = 1e-9
# What `next` of learning and aggregation processes returns.
_OUTPUTS = (
  tff.learning.templates.LearningProcessOutput,
  tff.templates.MeasuredProcessOutput,
)


class SpentEvents(NamedTuple):
  """Events of the rounds that led to a state; returned by `extract_dp_event`.

  Attributes:
    all_rounds_so_far: The event of all rounds up to the state together, that is, the
      privacy spent. It includes those of earlier states: do not compose it with them.
    last_round_only: The event of the last round alone. It only has a meaning when it is
      composed with those of *all* earlier rounds, to `all_rounds_so_far`.
    rounds: Number of rounds up to the state; `None` if the state does not count them.
  """

  all_rounds_so_far: dp_accounting.DpEvent
  last_round_only: dp_accounting.DpEvent
  rounds: Optional[int] = None

  def would_exceed(
    self, target: mechanism_lib.Target, mechanism: joint_mechanism.AnyMechanism
  ) -> bool:
    """Whether one more round of a mechanism would spend more than a target.

    Args:
      target: `accounting.Target(epsilon, delta)`, or `accounting.Target(rho=...)`.
      mechanism: The mechanism of the aggregator. Its strategy and participation
        determine what the next round adds to the worst case.

    Raises:
      ValueError: If the state's rounds were not of this mechanism, all rounds of the
        mechanism have run, or the target is not suitable for such a mechanism.
    """
    if self.rounds is None:
      raise ValueError(
        'nothing in this state counts its rounds; count them in the loop, and ask '
        'mechanism.would_exceed(target, rounds).'
      )
    exceeds = mechanism.would_exceed(target, self.rounds)
    if mechanism.is_private and mechanism.is_one_gaussian:
      # Under the zero-out relation, as in states.
      planned = float(mechanism.noise_multipliers_so_far[self.rounds - 1])
      if mechanism.adjacency == 'replace_one':
        planned *= 2
      spent = 1 / accountants.gdp_mu(self.all_rounds_so_far)
      if not math.isclose(spent, planned, rel_tol=_TOLERANCE):
        raise ValueError(
          f'after {self.rounds} rounds the state has the effective noise multiplier '
          f'{spent}, and with this mechanism it is {planned}: it is of another one. '
          'Give the mechanism that the aggregator was made of.'
        )
    return exceeds


def extract_dp_event(state: Any) -> SpentEvents:
  """Returns the events of all rounds up to a state together, and of the last one.

  They cover everything that the process releases, except measurements of clients. Every
  part of a learning process is checked. The state of the clients' computation may only
  contain hyperparameters of their optimizer, under TFF's names, or the number of
  rounds; it is not detected if somebody sets these after looking at clients' metrics.

  Args:
    state: State of a `DPMeanFactory` process, of an aggregation composed around one
      (`tff.aggregators.zeroing_factory` and the like), or of a learning process with
      such an aggregator, as its `next` returned it, in a run resumed or not.

  Raises:
    TypeError: If there is not exactly one such aggregator state in `state`, or if that
      of a learning process is not in its aggregator. Two cost more than either of them.
      Also if `state` is what `next` returned, of which it is the attribute `state`.
    ValueError: If the state comes from `initialize`, or from an earlier version of this
      package; or if a part of it may depend on clients' values without noise: an
      aggregation with a state around the mechanism, such as an adaptive zeroing norm;
      an exact denominator beside it; the state of a sum inside it, of a distributor, or
      of the clients' computation, such as full gradients in Mime Lite.

  Example:
    >>> from tff_dp_aggregators import aggregators
    >>> aggregator = aggregators.gaussian(
    ...   clip_norm=1.0, noise_multiplier=2.0, clients_per_round=10
    ... )
    >>> process = aggregator.create(tff.TensorType(np.float32))
    >>> output = process.next(process.initialize(), [np.float32(0.5)] * 10)
    >>> extract_dp_event(output.state).last_round_only
    GaussianDpEvent(noise_multiplier=2.0)
  """
  if isinstance(state, _OUTPUTS):
    raise TypeError(
      f'state must be a state, got the {type(state).__name__} of next: give its .state.'
    )
  mechanism = _single_mechanism(state)
  if isinstance(state, tff.learning.templates.LearningAlgorithmState):
    # No builder of TFF or this package has a distributor with a state.
    _check_no_state(_leaves(state.distributor, 'distributor'), _IF_INDEPENDENT)
    _check_no_state(
      _client_work_state(state.client_work, mechanism),
      "The full gradients in Mime Lite do. Use a process whose only look at clients' "
      f'data is its aggregator, such as `learning.build_dp_fed_avg`. {_IF_INDEPENDENT}',
    )
    state = state.aggregator
  others = [(path, leaf) for path, leaf in _leaves(state) if not _is_mechanism(leaf)]
  _check_no_state(
    others, f'Use a norm that is fixed, or `aggregators.adaptive`. {_IF_INDEPENDENT}'
  )
  _check_no_other_sum(state, '')
  # Sums inside the mechanism are exact, so a state of them would not be private.
  for name in ('record_sum', 'count_sum'):
    _check_no_state(
      _leaves(getattr(mechanism, name), name),
      'It sees what clients send before noise is added: sum without state, by '
      'tff.aggregators.SumFactory() or aggregators.secure_sum().',
    )
  all_rounds = mechanism.spent.to_event()
  # Every mechanism's first round adds to the worst case.
  if isinstance(all_rounds, dp_accounting.NoOpDpEvent):
    raise ValueError(
      'this state is from initialize: nothing was released, so there is no event yet.'
    )
  rounds = _rounds_of(mechanism)
  return SpentEvents(
    all_rounds_so_far=all_rounds,
    last_round_only=mechanism.spent.last_to_event(),
    rounds=None if rounds is None else int(rounds),
  )


def _single_mechanism(state: Any) -> Any:
  """Returns the state of the only private mean, which must be in the aggregator."""
  matches = {path: leaf for path, leaf in _leaves(state) if _is_mechanism(leaf)}
  if len(matches) != 1:
    details = (
      f' They are {" and ".join(matches)}. If their noise is independent (secret, or '
      'of different seeds) and nothing else in the state depends on clients, compose '
      'the events of the state of each with dp_accounting.ComposedDpEvent.'
    )
    raise TypeError(
      'expected a state with that of one DPMeanFactory process in it, got '
      f'{type(state).__name__} with {len(matches)}.{details if matches else ""}'
    )
  ((path, mechanism),) = matches.items()
  if not hasattr(mechanism, 'spent'):
    raise ValueError(
      'this state is of an earlier version of this package, or of a factory of '
      'tff.aggregators: it does not say what all its rounds spent. Finish the run with '
      'the version that began it, or begin anew.'
    )
  is_learning = isinstance(state, tff.learning.templates.LearningAlgorithmState)
  if is_learning and path.split('.')[0] != 'aggregator':
    raise TypeError(
      'expected a learning process whose aggregator is a DPMeanFactory process, got '
      f'one with a private mean in {path} alone: no noise is in the updates of the '
      'model. Pass the factory as (model) aggregator.'
    )
  return mechanism


_IF_INDEPENDENT = (
  'If it depends on no data, take the event of the state of the mechanism within, '
  'which is `state.aggregator` of a learning process.'
)


def _check_no_state(leaves: Iterable[tuple[str, Any]], remedy: str) -> None:
  """Raises ValueError for the first leaf, which may depend on clients' data."""
  for path, _ in leaves:
    raise ValueError(
      f"this state remembers {path}: if that follows clients' data, more is released "
      f'than any event here covers. {remedy}'
    )


def _client_work_state(state: Any, mechanism: Any) -> list[tuple[str, Any]]:
  """Returns leaves that are neither hyperparameters of the optimizer nor the round."""
  if isinstance(state, Mapping) and all(
    key in _HYPERPARAMETERS and _is_scalar(value, 'bif') for key, value in state.items()
  ):
    return []
  # TFF's schedules of clients' learning rates count rounds.
  if _is_scalar(state, 'i') and state == _rounds_of(mechanism):
    return []
  return list(_leaves(state, 'client_work'))


def _check_no_other_sum(state: Any, path: str) -> None:
  """Raises ValueError for other aggregations that may contribute to the result."""
  if _is_mechanism(state):
    return
  only_measured = _ONLY_MEASURED
  if isinstance(state, clientwise.ZeroNonfiniteState):
    only_measured = frozenset({'count_sum'})
  for key, value in _parts(state) or []:
    if any(_is_mechanism(leaf) for _, leaf in _leaves(value)):
      _check_no_other_sum(value, _join(path, key))
    elif key not in only_measured:
      raise ValueError(
        f'beside the mechanism there is another aggregation, {_join(path, key)}, such '
        'as the exact denominator of tff.aggregators.MeanFactory: it has a part in the '
        'result that no event here covers. A DPMeanFactory is a mean already; use it '
        f'alone. {_IF_INDEPENDENT}'
      )


# The structure of states.


def _is_mechanism(state: Any) -> bool:
  """Whether the state is of a `DPMeanFactory` (of any version), or TFF's own one."""
  names = ('spent', 'dp_event', 'all_rounds_noise_multiplier')
  return any(hasattr(state, name) for name in names)


def _rounds_of(mechanism: Any) -> Any:
  """Returns the number of rounds of a mechanism; `None` if its query has no counter."""
  rounds = [
    leaf
    for path, leaf in _leaves(mechanism.query)
    if path.split('.')[-1] == 'round' and 'released' not in path.split('.')
  ]
  return rounds[0] if rounds and all(each == rounds[0] for each in rounds) else None


def _is_scalar(value: Any, kinds: str) -> bool:
  if _parts(value) is not None:
    return False
  return np.ndim(value) == 0 and np.asarray(value).dtype.kind in kinds


def _parts(state: Any) -> Optional[list[tuple[str, Any]]]:
  """Returns names and values of the parts of a state; `None` if it is a leaf."""
  if isinstance(state, Mapping):
    return [(str(key), value) for key, value in state.items()]
  if isinstance(state, (list, tuple)):
    names = getattr(state, '_fields', range(len(state)))
    return [(str(key), value) for key, value in zip(names, state)]
  return None


def _leaves(state: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the path and value of each leaf; the state of a mechanism is one leaf."""
  parts = None if _is_mechanism(state) else _parts(state)
  if parts is None:
    yield path, state
    return
  for key, value in parts:
    yield from _leaves(value, _join(path, key))


def _join(path: str, key: str) -> str:
  return f'{path}.{key}' if path else key

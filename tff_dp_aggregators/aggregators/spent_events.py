"""What a state says was spent, and the states that can't say it.

Another aggregation beside a private mean would be released unseen. So the whole state
is looked through, and what is not known to be harmless is refused.
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

# What `tff.learning.optimizers` calls its hyperparameters. TFF's client work keeps them
# in its state, so that they can be changed between rounds; clients' data does not.
_HYPERPARAMETERS = frozenset(
  'beta_1 beta_2 beta_2_decay clip_threshold decay epsilon epsilon_1 epsilon_2 '
  'learning_rate momentum relative_step weight_decay'.split()
)

# Aggregations beside the mechanism whose results are measured, and used for nothing:
# those of `tff.aggregators.zeroing_factory` and `clipping_factory`, with a norm that
# remembers nothing.
_ONLY_MEASURED = frozenset(
  ('clipped_count_agg', 'clipping_norm', 'zeroed_count_agg', 'zeroing_norm')
)

# Relative, of sensitivities that are found in other orders.
_ROUND_OFF = 1e-9
# What `next` of learning and aggregation processes returns.
_OUTPUTS = (
  tff.learning.templates.LearningProcessOutput,
  tff.templates.MeasuredProcessOutput,
)


class SpentEvents(NamedTuple):
  """What a state's rounds cost; from `extract_dp_event`.

  Attributes:
    all_rounds_so_far: The event of all rounds up to the state, together: what has been
      spent. Do not compose it with those of earlier states, which it contains.
    last_round_only: The event of the last round alone. Only composed over *all* rounds
      from the first they mean anything: `all_rounds_so_far`.
    rounds: How many rounds led to the state; `None` if nothing in it counts them.
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
      mechanism: The one that the aggregator was made of: what the next round adds to
        the worst case depends on its strategy and on who may take part in it.

    Raises:
      ValueError: If the state has spent something else than the mechanism's rounds, all
        of these ran, or the target is none for such a mechanism.
    """
    if self.rounds is None:
      raise ValueError(
        'nothing in this state counts its rounds; count them in the loop, and ask '
        'mechanism.would_exceed(target, rounds).'
      )
    exceeds = mechanism.would_exceed(target, self.rounds)
    if mechanism.is_private and mechanism.is_one_gaussian:
      # Under zero-out, as states have it.
      planned = float(mechanism.noise_multipliers_so_far[self.rounds - 1])
      if mechanism.adjacency == 'replace_one':
        planned *= 2
      spent = 1 / accountants.gdp_mu(self.all_rounds_so_far)
      if not math.isclose(spent, planned, rel_tol=_ROUND_OFF):
        raise ValueError(
          f'after {self.rounds} rounds the state has the effective noise multiplier '
          f'{spent}, and with this mechanism it is {planned}: it is of another one. '
          'Give the mechanism that the aggregator was made of.'
        )
    return exceeds


def extract_dp_event(state: Any) -> SpentEvents:
  """What the rounds that led to a state cost: all of them together, and the last.

  It is the cost of all that the process releases, but for what it measures of clients.
  Of a learning process every part is looked at. What the clients' computation remembers
  must be hyperparameters of their optimizer, by TFF's names for them, or the number of
  rounds; whoever sets these by looking at clients' metrics does so unseen.

  Args:
    state: State of a `DPMeanFactory` process, of an aggregation composed around one
      (`tff.aggregators.zeroing_factory` and the like), or of a learning process with
      such an aggregator, as its `next` returned it, in a run resumed or not.

  Raises:
    TypeError: If there is not exactly one such aggregator state in `state`, in its
      aggregator if it is that of a learning process. Two of them cost more than either.
    ValueError: If the state comes from `initialize`, or from an earlier version of this
      package; or if something in it may follow clients' values without noise: what is
      composed around the mechanism and remembers, such as a zeroing norm; an exact
      denominator beside it; a sum inside it, a distributor or a clients' computation
      that remembers, such as full gradients in Mime Lite.

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
  found = _the_one_mechanism(state)
  if isinstance(state, tff.learning.templates.LearningAlgorithmState):
    # No builder of TFF or this package has a distributor with a memory.
    _check_forgets(_leaves(state.distributor, 'distributor'), _OF_NO_DATA)
    _check_forgets(
      _remembered_by_clients(state.client_work, found),
      "The full gradients in Mime Lite do. Use a process whose only look at clients' "
      f'data is its aggregator, such as `learning.build_dp_fed_avg`. {_OF_NO_DATA}',
    )
    state = state.aggregator
  beside = [(path, leaf) for path, leaf in _leaves(state) if not _is_mechanism(leaf)]
  _check_forgets(
    beside, f'Use a norm that is fixed, or `aggregators.adaptive`. {_OF_NO_DATA}'
  )
  _check_summed_beside(state, '')
  # What sums inside the mechanism see is exact, and the state goes on.
  for name in ('record_sum', 'count_sum'):
    _check_forgets(
      _leaves(getattr(found, name), name),
      'It sees what clients send before noise is added: sum without state, by '
      'tff.aggregators.SumFactory() or aggregators.secure_sum().',
    )
  all_rounds = found.spent.to_event()
  # Every mechanism's first round adds to the worst case.
  if isinstance(all_rounds, dp_accounting.NoOpDpEvent):
    raise ValueError(
      'this state is from initialize: nothing was released, so there is no event yet.'
    )
  rounds = _rounds_of(found)
  return SpentEvents(
    all_rounds_so_far=all_rounds,
    last_round_only=found.spent.last_to_event(),
    rounds=None if rounds is None else int(rounds),
  )


def _the_one_mechanism(state: Any) -> Any:
  """The state of the only private mean, which is where it belongs."""
  found = {path: leaf for path, leaf in _leaves(state) if _is_mechanism(leaf)}
  if len(found) != 1:
    several = (
      f' They are {" and ".join(found)}. If their noise is independent (secret, or of '
      'different seeds) and nothing else in the state depends on clients, compose the '
      'events of the state of each with dp_accounting.ComposedDpEvent.'
    )
    raise TypeError(
      'expected a state with that of one DPMeanFactory process in it, got '
      f'{type(state).__name__} with {len(found)}.{several if found else ""}'
    )
  ((path, mechanism),) = found.items()
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


_OF_NO_DATA = (
  'If it depends on no data, take the event of the state of the mechanism within, '
  'which is `state.aggregator` of a learning process.'
)


def _check_forgets(leaves: Iterable[tuple[str, Any]], remedy: str) -> None:
  """Refuses parts of a state that may remember what clients' data have a part in."""
  for path, _ in leaves:
    raise ValueError(
      f"this state remembers {path}: if that follows clients' data, more is released "
      f'than any event here covers. {remedy}'
    )


def _remembered_by_clients(state: Any, mechanism: Any) -> list[tuple[str, Any]]:
  """Client work's state, but for hyperparameters of its optimizer, or the round."""
  if isinstance(state, Mapping) and all(
    key in _HYPERPARAMETERS and _is_scalar(value, 'bif') for key, value in state.items()
  ):
    return []
  # With the round TFF's schedules of clients' learning rates count.
  if _is_scalar(state, 'i') and state == _rounds_of(mechanism):
    return []
  return list(_leaves(state, 'client_work'))


def _check_summed_beside(state: Any, path: str) -> None:
  """Refuses aggregations beside the mechanism that leave their result in its result."""
  if _is_mechanism(state):
    return
  only_measured = _ONLY_MEASURED
  if isinstance(state, clientwise.ZeroNonfiniteState):
    only_measured = frozenset({'count_sum'})
  for key, value in _parts(state) or []:
    if any(_is_mechanism(leaf) for _, leaf in _leaves(value)):
      _check_summed_beside(value, _join(path, key))
    elif key not in only_measured:
      raise ValueError(
        f'beside the mechanism there is another aggregation, {_join(path, key)}, such '
        'as the exact denominator of tff.aggregators.MeanFactory: it has a part in the '
        'result that no event here covers. A DPMeanFactory is a mean already; use it '
        f'alone. {_OF_NO_DATA}'
      )


# The structure of states.


def _is_mechanism(state: Any) -> bool:
  """Whether it is of a `DPMeanFactory`, or of an earlier one, or TFF's own."""
  names = ('spent', 'dp_event', 'all_rounds_noise_multiplier')
  return any(hasattr(state, name) for name in names)


def _rounds_of(mechanism: Any) -> Any:
  """Rounds that a mechanism has served, where its query counts them; else `None`."""
  found = [
    leaf
    for path, leaf in _leaves(mechanism.query)
    if path.split('.')[-1] == 'round' and 'released' not in path.split('.')
  ]
  return found[0] if found and all(each == found[0] for each in found) else None


def _is_scalar(value: Any, kinds: str) -> bool:
  if _parts(value) is not None:
    return False
  return np.ndim(value) == 0 and np.asarray(value).dtype.kind in kinds


def _parts(state: Any) -> Optional[list[tuple[str, Any]]]:
  """Names and values of the parts of a state; `None` if it has none."""
  if isinstance(state, Mapping):
    return [(str(key), value) for key, value in state.items()]
  if isinstance(state, (list, tuple)):
    names = getattr(state, '_fields', range(len(state)))
    return [(str(key), value) for key, value in zip(names, state)]
  return None


def _leaves(state: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Everything in a state with its path; the state of a mechanism is one leaf."""
  parts = None if _is_mechanism(state) else _parts(state)
  if parts is None:
    yield path, state
    return
  for key, value in parts:
    yield from _leaves(value, _join(path, key))


def _join(path: str, key: str) -> str:
  return f'{path}.{key}' if path else key

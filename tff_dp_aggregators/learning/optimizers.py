"""Optimizers that TFF lacks: DP-FTRL(M), and learning rates that depend on the round.

Checks of the optimizers that learning processes are given are here as well.
`ServerSchedule` states momentum and learning rates once, for the server's optimizer and
for the noise: they are the workload for which a strategy can be optimised.
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.aggregators import clientwise
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry


class FTRL(tff.learning.optimizers.Optimizer):
  """DP-FTRL. A hyperparameter would change past rounds too, so there is none."""

  def __init__(
    self,
    learning_rate: float,
    momentum: float = 0.0,
    workload: Optional[strategies.Workload] = None,
  ):
    """`workload` must equal the aggregator's workload; `None` allows any."""
    self._learning_rate = checks.check_positive('learning_rate', learning_rate)
    checks.check_number('momentum', momentum)
    if not 0 <= momentum < 1:
      raise ValueError(f'momentum must be at least 0 and below 1, got {momentum}.')
    self._momentum = float(momentum)
    self.workload = workload
    self._weight_decay = workload.weight_decay if workload else 0.0

  def check_workload(self, workload: strategies.Workload) -> None:
    """Refuses an aggregator's workload that this optimizer is not for."""
    is_prefix = strategies.workload.is_prefix_sums(workload)
    if (
      (self.workload is not None and workload != self.workload)
      or workload.weight_decay != self._weight_decay
      or (self._momentum and not is_prefix)
    ):
      raise ValueError(
        f"the aggregator's workload is {workload}, and the optimizer is FTRL for "
        f'{self.workload or "any without weight decay"}, with momentum='
        f'{self._momentum}, which is for plain sums. Build both from one '
        'learning.ServerSchedule; or give build_ftrl without momentum.'
      )

  def on_means(self) -> tff.learning.optimizers.Optimizer:
    """SGD, which makes the same model of the mean of each round, up to round-off."""
    if not strategies.workload.is_prefix_sums(self.workload):
      raise ValueError(
        f'server.optimizer is FTRL for the workload {self.workload}, whose momentum, '
        'learning rates or weight decay the aggregator would have to put into its '
        'sums; here it returns the mean of each round. Give optimizer() of the same '
        'learning.ServerSchedule, which comes to the same model.'
      )
    return tff.learning.optimizers.build_sgdm(
      self._learning_rate, self._momentum or None
    )

  def initialize(self, specs: Any) -> Any:
    """Returns the state before the first round."""
    zeros = tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), specs)
    return collections.OrderedDict(anchor=zeros, velocity=zeros)

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Applies the sum of all rounds so far: Algorithm 1 of arXiv:2103.00039.

    The regularized leader, argmin <s, w> + |w - w_0|^2 / (2 learning_rate), is
    w_0 - learning_rate s; with momentum, v takes the place of s. The anchor is w_0, and
    moves only if the model was changed in between; weight decay shrinks it like s.
    """
    tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
    rate, momentum, kept = self._learning_rate, self._momentum, 1 - self._weight_decay
    each = functools.partial(tf.nest.map_structure, check_types=False)
    anchor = each(
      lambda weight, anchor, v: kept * (anchor + (weight - (anchor - rate * v))),
      weights,
      state['anchor'],
      state['velocity'],
    )
    velocity = each(
      lambda total, v: total + momentum * v if momentum else total,
      gradients,
      state['velocity'],
    )
    model = each(lambda anchor, v: anchor - rate * v, anchor, velocity)
    return collections.OrderedDict(anchor=anchor, velocity=velocity), model


def build_ftrl(learning_rate: float, momentum: float = 0.0) -> FTRL:
  """Builds DP-FTRL, or DP-FTRLM with momentum, for cumulative sums (arXiv:2103.00039).

  After round t, with s_t the sum that the aggregator returned, the model is

      v_t = momentum v_{t-1} + s_t
      w_t = w_0 - learning_rate v_t

  which is the model of SGD with that learning rate and momentum on the rounds' means.
  Learning rates that change, and momentum in the released values, are the aggregator's
  workload, with no momentum here, as in `ServerSchedule.ftrl`.

  Args:
    learning_rate: The inverse of the paper's regularization strength lambda.
    momentum: At least 0 and below 1.

  Returns:
    A server optimizer for aggregators with a workload, or a cumulative result, such as
    `aggregators.tree(cumulative=True)`; learning processes refuse it with others.

  Raises:
    TypeError: If an argument is not a number.
    ValueError: If an argument is out of range.

  Example:
    >>> optimizer = build_ftrl(0.5)
    >>> weights = tf.constant([1.0, 2.0])
    >>> state = optimizer.initialize(tf.TensorSpec.from_tensor(weights))
    >>> for total in ([1.0, 0.0], [1.0, 2.0]):  # The second includes the first.
    ...   state, weights = optimizer.next(state, weights, tf.constant(total))
    >>> weights.numpy().tolist()
    [0.5, 1.0]
  """
  return FTRL(learning_rate, momentum)


@dataclasses.dataclass(frozen=True)
class ServerSchedule:
  """SGD with momentum, learning rates and weight decay, and its workload.

  Attributes:
    workload: Rounds, momentum, relative learning rates of the rounds, and weight decay.
    learning_rate: Factor of the relative learning rates; positive.

  Example:
    >>> schedule = ServerSchedule(
    ...   strategies.Workload.cooldown(64, momentum=0.9), learning_rate=0.5
    ... )
    >>> from tff_dp_aggregators import accounting
    >>> participation = strategies.Participation(64, min_separation=8)
    >>> strategy = schedule.strategy('toeplitz', participation)
    >>> mechanism = accounting.Mechanism(
    ...   'file', participation, noise_multiplier=4.0, strategy=strategy
    ... )
    >>> aggregator = aggregators.from_mechanism(
    ...   mechanism, clip_norm=1.0, clients_per_round=100
    ... )
    >>> server_optimizer = schedule.optimizer()
  """

  workload: strategies.Workload
  learning_rate: float = 1.0

  def __post_init__(self) -> None:
    if not isinstance(self.workload, strategies.Workload):
      raise TypeError(
        'workload must be a strategies.Workload, such as '
        f'strategies.Workload(num_rounds, momentum=0.9), got {self.workload!r}.'
      )
    checks.check_positive('learning_rate', self.learning_rate)

  def optimizer(self) -> tff.learning.optimizers.Optimizer:
    """Returns the server's optimizer for aggregators that return each round's mean."""
    return ScheduledOptimizer(self)

  def ftrl(self) -> FTRL:
    """Returns the server's optimizer for aggregators with this `workload`.

    Such an aggregator returns the model's total change so far, up to scale. It is
    scaled and subtracted from the initial model, or from what weight decay left of it.
    """
    return FTRL(self.learning_rate, workload=self.workload)

  def strategy(
    self, name: str, participation: sampling.Schema, **options: Optional[int]
  ) -> strategies.Strategy:
    """Returns the strategy with the least RMSE under this workload.

    Args:
      name: One of `strategies.registry.KINDS`. 'gaussian' and 'tree' have nothing to
        optimise; 'blt' and its variants take only constant learning rates.
      participation: Limits of participation, for the workload's number of rounds.
      **options: As for `accounting.Mechanism`, to which it is given under the name
        'file'.
    """
    given = registry.check_options(name, options)
    limits = sampling.limits_of(participation)
    return registry.kind(name).build_for(limits, self.workload, **given)


class ScheduledOptimizer(tff.learning.optimizers.Optimizer):
  """TFF's SGD with the learning rates and the weight decay of a `ServerSchedule`."""

  def __init__(self, schedule: ServerSchedule):
    self._workload = schedule.workload
    relative = self._workload.learning_rates or (1.0,)
    rates = [schedule.learning_rate * rate for rate in relative]
    self._optimizer = tff.learning.optimizers.schedule_learning_rate(
      tff.learning.optimizers.build_sgdm(
        schedule.learning_rate, self._workload.momentum or None
      ),
      lambda this_round: _rate_of(rates, this_round),
    )

  def check_participation(self, aggregator: aggregators.DPMeanFactory) -> None:
    """Refuses an aggregator for another number of rounds."""
    try:
      num_rounds = aggregator.participation.num_rounds
    except ValueError:  # The aggregator allows any number of rounds.
      return
    if num_rounds != self._workload.num_rounds:
      raise ValueError(
        f'the aggregator is for num_rounds={num_rounds}, but the schedule of the '
        f"server's optimizer for {self._workload.num_rounds}; build both for the same "
        'number.'
      )

  def initialize(self, specs: Any) -> Any:
    """The state before the first round."""
    return self._optimizer.initialize(specs)

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Applies weight decay, then takes a step with the round's learning rate."""
    decay = self._workload.weight_decay
    if decay:
      weights = tf.nest.map_structure(lambda each: (1.0 - decay) * each, weights)
    return self._optimizer.next(state, weights, gradients)


class ClientSchedule:
  """Clients' learning rates by round, float32, and optimizers with one of them."""

  def __init__(
    self,
    learning_rate_fn: Callable[[int], float],
    optimizer_fn: Callable[[Any], tff.learning.optimizers.Optimizer],
    num_rounds: int,
  ):
    rates = []
    for number in range(num_rounds):
      name = f'local.learning_rate_fn({number})'
      rate = np.asarray(learning_rate_fn(number)).tolist()
      rates.append(checks.check_not_negative(name, rate))
    self.learning_rates = np.asarray(rates, np.float32)
    self.make = optimizer_fn

  def learning_rate(self, this_round: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate of a round, in TensorFlow."""
    return _rate_of(self.learning_rates, this_round)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready identity of a schedule: first rate, last rate, checksum of all."""
    return {
      'first': float(f'{self.learning_rates[0]:.6g}'),
      'last': float(f'{self.learning_rates[-1]:.6g}'),
      'all': ledger.checksum_of([self.learning_rates]),
    }


def check_optimizer_fn(
  optimizer_fn: Any,
) -> Callable[[Any], tff.learning.optimizers.Optimizer]:
  """Returns a function from learning rates to optimizers; `None` means SGD."""
  if optimizer_fn is None:
    optimizer_fn = tff.learning.optimizers.build_sgdm
  is_optimizer = isinstance(optimizer_fn, tff.learning.optimizers.Optimizer)
  if is_optimizer or not callable(optimizer_fn):
    raise TypeError(
      'with local.learning_rate_fn, local.optimizer must be a function of the learning '
      'rate, such as tff.learning.optimizers.build_sgdm, and no optimizer with one of '
      f'its own; got {optimizer_fn!r}.'
    )
  function: Callable[[Any], Any] = optimizer_fn
  return function


# Wrappers of this package that do not change the results of the inner aggregator.
_WRAPPERS = (clientwise.ClientwiseFactory, aggregators.ZeroNonfiniteFactory)


def check_pair(
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> None:
  """Refuses an aggregator, of this package or TFF's mean, that is not for it."""
  while isinstance(aggregator, _WRAPPERS):
    aggregator = aggregator.inner
  is_private = isinstance(aggregator, aggregators.DPMeanFactory)
  if not is_private and not isinstance(
    aggregator, tff.aggregators.UnweightedMeanFactory
  ):
    return
  workload = aggregator.workload if is_private else None
  is_ftrl = isinstance(server_optimizer, FTRL)
  if is_ftrl != (workload is not None):
    returned = 'the mean of each round' if is_ftrl else 'sums of all rounds so far'
    raise ValueError(
      f'server_optimizer_fn is {type(server_optimizer).__name__}, and the aggregator '
      f'returns {returned}: '
      'learning.build_ftrl(...) is for aggregators with a workload or cumulative=True, '
      'all other optimizers are for those without.'
    )
  if is_ftrl:
    server_optimizer.check_workload(workload)
  elif is_private and isinstance(server_optimizer, ScheduledOptimizer):
    server_optimizer.check_participation(aggregator)


def check_optimizer(
  name: str, optimizer: Any, default: Optional[tff.learning.optimizers.Optimizer] = None
) -> tff.learning.optimizers.Optimizer:
  """Returns an optimizer that TFF's processes can use; `None` is the default."""
  if optimizer is None and default is not None:
    return default
  if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      f'{name} must be a tff.learning.optimizers.Optimizer, such as '
      f'tff.learning.optimizers.build_sgdm(0.1); got {type(optimizer)}.'
    )
  return _Adafactor(optimizer) if isinstance(optimizer, _ADAFACTOR) else optimizer


def check_client_optimizer(
  optimizer: Any, name: str = 'client_optimizer_fn'
) -> tff.learning.optimizers.Optimizer:
  """Returns the clients' optimizer; `None` means SGD with learning rate 0.1."""
  if isinstance(optimizer, FTRL):
    raise ValueError(
      f'{name} is FTRL on sums of rounds, which is for the server; on a '
      'client, the gradient of each batch stands for itself. Use '
      'tff.learning.optimizers.build_sgdm.'
    )
  default = tff.learning.optimizers.build_sgdm(0.1)
  return check_optimizer(name, optimizer, default)


_ADAFACTOR = type(tff.learning.optimizers.build_adafactor(1.0))


class _Adafactor(tff.learning.optimizers.Optimizer):
  """Keeps the types of Adafactor's state: in TFF 0.87 an integer becomes a float."""

  def __init__(self, inner: tff.learning.optimizers.Optimizer):
    self._inner = inner

  def initialize(self, specs: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, self._inner.initialize(specs))

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    after, weights = self._inner.next(state, weights, gradients)
    cast = tf.nest.map_structure(
      lambda old, new: tf.cast(new, old.dtype), state, after, check_types=False
    )
    return cast, weights


def _rate_of(
  rates: Union[Sequence[float], np.ndarray], this_round: tf.Tensor
) -> tf.Tensor:
  """The learning rate of a round; after the last round, the last rate (unused)."""
  return tf.gather(tf.constant(rates), tf.minimum(this_round, len(rates) - 1))

"""What `train` takes besides model, clients and mechanism, without TensorFlow.

`runs.fitting` checks what has to go together with a mechanism.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.reports import inputs
from tff_dp_aggregators.base import checks

if TYPE_CHECKING:
  import tensorflow_federated as tff

# Packs clients wherever that is possible.
AUTO = 'auto'


SUM, SECURE, MODULAR = 'sum', 'secure_sum', 'secure_modular_sum'
# What sums the clipped values of a round, with its help; secure sums are simulated.
INNER = {
  SUM: 'a plain sum',
  SECURE: 'a secure sum, with bounds that nothing exceeds; of everything but integer '
  'noise',
  MODULAR: 'a secure sum modulo two to the --bits; of integer noise alone',
}


@dataclasses.dataclass(frozen=True)
class ClientTraining:
  """How the model is trained on each client of a round.

  Attributes:
    batch_size: Examples of a batch.
    epochs: Passes over a client's examples in a round.
    optimizer: One of `tff.learning.optimizers`; `None` for SGD with learning rate 0.1.
      With `learning_rate_fn` it is a function of the learning rate.
    learning_rate_fn: From the number of a round, from 0, to the learning rate of
      clients in it, such as `lambda round_num: 0.1 * 0.99**round_num`. `optimizer` is
      then a function such as `tff.learning.optimizers.build_sgdm`, the default. (A
      schedule within an optimizer counts a client's steps, and begins anew in each
      round.) `None` for the optimizer's own learning rate.
    proximal_strength: How strongly training is pulled towards the server's model
      (FedProx, arXiv:1812.06127); `None` for federated averaging.

  Raises:
    TypeError: If a field is not of its type.
    ValueError: If a number is out of range.
  """

  batch_size: int = 16
  epochs: int = 1
  optimizer: Union[
    'tff.learning.optimizers.Optimizer',
    Callable[[Any], 'tff.learning.optimizers.Optimizer'],
    None,
  ] = None
  learning_rate_fn: Optional[Callable[[int], float]] = None
  proximal_strength: Optional[float] = None

  def __post_init__(self) -> None:
    checks.check_positive_int('batch_size', self.batch_size)
    checks.check_positive_int('epochs', self.epochs)
    if self.learning_rate_fn is not None and not callable(self.learning_rate_fn):
      raise TypeError(
        'learning_rate_fn must be a function of the number of a round; got '
        f'{self.learning_rate_fn!r}.'
      )
    if self.proximal_strength is not None:
      checks.check_not_negative('proximal_strength', self.proximal_strength)


@dataclasses.dataclass(frozen=True)
class Server:
  """What the server does with clients' updates, besides what the mechanism says.

  Attributes:
    optimizer: Applies the mean of updates; `None` for that of `build_dp_fed_avg`, SGD
      with learning rate 0.2 and momentum 0.9, although the strategies of `Mechanism`
      are the best for plain sums: `ServerSchedule` has the strategy for momentum, and
      its optimizer. `build_ftrl` is DP-FTRL, and with momentum DP-FTRLM, on the sum of
      the means so far.
    inner_aggregator: What sums the clipped updates: 'sum', 'secure_sum', or for integer
      noise 'secure_modular_sum'. Secure sums are simulated, with the same result.
    zeroing_norm: Updates of a larger L2 norm count as zeros; `None` for none. It must
      not be chosen by looking at the clients' updates.
    coordinate_bound: Largest magnitude of a coordinate of an update, before it is
      clipped, chosen likewise; `None` for any.
    clip_order: Without a mechanism, in which p-norm updates are clipped: at least 1,
      `math.inf` for each entry, `None` for 2. A mechanism clips in that of its noise.
    target_quantile: With adaptive clipping, which fraction of clients is to be left
      unclipped; `None` for that of `aggregators.adaptive`.
    clip_learning_rate: With adaptive clipping, its `learning_rate`; `None` likewise.
    not_private_signal_to_noise: Whether to measure in each round how large the exact
      sum is beside the noise, in columns of `metrics.csv`. It is not private, and the
      report says that it is not covered.

  Raises:
    TypeError: If a field is not of its type.
    ValueError: If a number is out of range, or a name is not known.
  """

  optimizer: Optional['tff.learning.optimizers.Optimizer'] = None
  inner_aggregator: str = SUM
  zeroing_norm: Optional[float] = None
  coordinate_bound: Optional[float] = None
  clip_order: Optional[float] = None
  target_quantile: Optional[float] = None
  clip_learning_rate: Optional[float] = None
  not_private_signal_to_noise: bool = False

  def __post_init__(self) -> None:
    if self.inner_aggregator not in tuple(INNER):
      raise ValueError(
        f'inner_aggregator must be one of {", ".join(INNER)}; got '
        f'{self.inner_aggregator!r}.'
      )
    for names, check in (
      (('zeroing_norm', 'coordinate_bound'), checks.check_positive),
      (('target_quantile', 'clip_learning_rate'), checks.check_number),
    ):
      for name in names:
        if getattr(self, name) is not None:
          check(name, getattr(self, name))
    order = self.clip_order
    if order is not None and not checks.check_number('clip_order', order) >= 1:
      raise ValueError(f'clip_order must be at least 1, or infinite; got {order}.')
    checks.check_bool('not_private_signal_to_noise', self.not_private_signal_to_noise)


def aggregation_to_json(server: Server) -> dict[str, Any]:
  """JSON-ready values of all but the optimizer."""
  values = dataclasses.asdict(dataclasses.replace(server, optimizer=None))
  del values['optimizer']
  if server.clip_order is not None and math.isinf(server.clip_order):
    values['clip_order'] = 'infinity'  # JSON has none.
  return values


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What the model is measured on while it is trained.

  Attributes:
    data: Inputs and labels, `(x, y)` or named `x` and `y`, of nobody whose privacy is
      to be kept; `None` for no evaluation.
    metrics: Measures besides the loss, by name: functions of the labels of all test
      examples and the model's outputs, as in scikit-learn and Keras; a `MeanMetric`
      where outputs are large; metrics of Keras, or their names. One named 'loss' is in
      place of the model's. Or a list of some with names of their own. `None` for those
      that a Keras model was compiled with.
    every: Rounds between two evaluations; the last round is evaluated. A run may go on
      with another number.

  Raises:
    TypeError: If `every` is not an integer.
    ValueError: If it is below 1, or metrics or `every` are given and no data.
  """

  data: Any
  metrics: Any = None
  every: int = 1

  def __post_init__(self) -> None:
    checks.check_positive_int('every', self.every)
    if self.data is None and self.metrics:
      raise ValueError('metrics need data to be measured on.')
    if self.data is None and self.every != 1:
      raise ValueError(f'every={self.every} needs data to measure the model on.')


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """How a run is carried out, and what else is to be told of it.

  Attributes:
    noise_seed: Seed of the noise, in simulations that are to be repeated; `None` for
      secret noise. Clients who are trained one by one, and make noise, draw their own
      keys: they take none.
    packed_simulation: Whether to pack clients; 'auto' packs them where that is
      possible, and says why not where it is not.
    checkpoint_seconds: Least time between two checkpoints.
    timeout_seconds: How long a round may take; `None` for any time. One that takes
      longer, because it hangs, say, ends with an error, and the same call goes on.
    trusted_network: Whether a scheduler of another machine may be reached by `tcp://`,
      as nobody else is on the network.
    settings: What else is to be told in `config.json`, under `flags`; JSON-ready.
    preprocessing: What made the clients' inputs of their data, which new data need as
      well: JSON-ready, kept as `preprocessing.json`. It may be computed from clients'
      data, as means are, so it is for nobody else to see.
    target_epsilon: The target that the mechanism was calibrated to, for the report;
      `None` for that of `Mechanism.for_target`, if it was at the same `delta`.
    not_covered: What else was computed from clients' data without noise, a sentence
      each, such as 'Features were scaled by the mean of all examples.' The report tells
      it among what the guarantee does not cover.
    tuning: Among how many runs on the same clients this one was chosen, and what all of
      them together spend, for the report; `None` if that is not known.
    data_facts: What is to be told there of the data, such as numbers of examples:
      exact, and marked as not private; JSON-ready.
    audit_canaries: How many clients are made up that the report says what an attacker
      reaches with: lower bounds of epsilon (`accounting.canaries`). They count as
      clients in everything, and are packed with them, with fixed clipping and Gaussian
      noise of the server. 0 for none.
    audit_confidence: Probability that these bounds are right; `None` means 0.95.

  Raises:
    TypeError: If a field is not of its type.
    ValueError: If a number is out of range, a sentence of `not_covered` is empty, or
      what is to be JSON-ready is not.
  """

  noise_seed: Optional[int] = None
  packed_simulation: Union[bool, str] = AUTO
  checkpoint_seconds: float = 30.0
  timeout_seconds: Optional[float] = 3600.0
  trusted_network: bool = False
  settings: Optional[Mapping[str, Any]] = None
  preprocessing: Optional[Mapping[str, Any]] = None
  target_epsilon: Optional[float] = None
  not_covered: Sequence[str] = ()
  tuning: Optional[inputs.Tuning] = None
  data_facts: Optional[Mapping[str, Any]] = None
  audit_canaries: int = 0
  audit_confidence: Optional[float] = None

  def __post_init__(self) -> None:
    checks.check_int('audit_canaries', self.audit_canaries, at_least=0)
    if self.audit_confidence is not None:
      canaries.check_confidence(self.audit_confidence, 'audit_confidence')
      if not self.audit_canaries:
        raise ValueError(
          f'audit_confidence={self.audit_confidence} is for audit_canaries, which is '
          '0; leave it out.'
        )
    if self.noise_seed is not None:
      checks.check_int('noise_seed', self.noise_seed)
    if self.packed_simulation not in (True, False, AUTO):
      raise ValueError(
        f"packed_simulation must be True, False or '{AUTO}'; got "
        f'{self.packed_simulation!r}.'
      )
    seconds = self.checkpoint_seconds
    if not checks.check_number('checkpoint_seconds', seconds) >= 0:
      raise ValueError(f'checkpoint_seconds must be at least 0; got {seconds}.')
    checks.check_timeout(self.timeout_seconds)
    checks.check_bool('trusted_network', self.trusted_network)
    for name in ('settings', 'preprocessing', 'data_facts'):
      if getattr(self, name) is not None:
        checks.check_json(name, getattr(self, name))
    if self.target_epsilon is not None:
      checks.check_number('target_epsilon', self.target_epsilon)
    object.__setattr__(self, 'not_covered', inputs.check_not_covered(self.not_covered))
    object.__setattr__(self, 'tuning', inputs.check_tuning(self.tuning))


@dataclasses.dataclass(frozen=True)
class SimulatedCohort:
  """A mechanism whose noise is as if cohort and population were `scale` times larger.

  The noise is the mechanism's, divided by `scale`. Such a run shows what training on
  so many clients would come to. **It carries no guarantee**, and all that it leaves
  says so and names both cohorts.

  Attributes:
    mechanism: That of the larger cohort, with noise of the server.
    scale: At least 1; with 1 it is the mechanism alone.

  Raises:
    TypeError: If the scale is no number.
    ValueError: If it is not finite, or below 1.
  """

  mechanism: Optional[mechanism_lib.Mechanism]
  scale: float

  def __post_init__(self) -> None:
    scale = checks.check_number('scale', self.scale)
    if not 1 <= scale < math.inf:
      raise ValueError(f'scale must be finite and at least 1; got {scale}.')
    object.__setattr__(self, 'scale', float(scale))

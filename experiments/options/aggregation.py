"""What is done with clients' updates, besides what the mechanism says."""

from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.learning.runs.plans import aggregation as aggregation_lib

NAMES = (
  'inner_aggregator',
  'zeroing_norm',
  'coordinate_bound',
  'not_private_signal_to_noise',
)
# Of clipping, which belongs to the mechanism.
_OF_CLIPPING = ('clip_order', 'target_quantile', 'clip_learning_rate')


def define(values: flags.FlagValues) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
  """
  said = '; '.join(f'{name}: {inner.help}' for name, inner in _INNER.items())
  flags.DEFINE_enum(
    'inner_aggregator',
    aggregation_lib.SUM,
    list(_INNER),
    f'What sums the clipped updates inside of the mechanism. {said}. Secure sums are '
    'simulated, with the same result and no security.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'zeroing_norm',
    None,
    'Updates of a larger L2 norm count as zeros, before they are clipped. It is not to '
    'be chosen by looking at updates, and changes no privacy. Default: none do.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'coordinate_bound',
    None,
    'Largest magnitude of a coordinate of an update, before it is clipped; the same '
    'holds of it. Default: any.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'not_private_signal_to_noise',
    False,
    'Measure in each round how loud the exact sum of updates is beside the noise, in '
    'columns of metrics.csv. That is not private, and the report says so.',
    flag_values=values,
  )


def from_flags(
  values: flags.FlagValues,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
) -> aggregation_lib.Aggregation:
  """What the flags say.

  Args:
    values: Parsed flags.
    mechanism: Of the run; `None` for none.
    clip_norm: Bound of one client's update; `None` for none.

  Raises:
    ValueError: If a value is out of range, or does not go with the mechanism.
  """
  given = {name: values[name].value for name in (*NAMES, *_OF_CLIPPING)}
  made = aggregation_lib.Aggregation(**given)
  try:
    made.check(mechanism, clip_norm)
  except ValueError as e:
    raise ValueError(flags_lib.spelled(str(e), (*NAMES, *_OF_CLIPPING))) from e
  return made


_INNER = aggregation_lib.INNER

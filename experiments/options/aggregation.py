"""What is done with clients' updates, besides what the mechanism says."""

from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs.plans import aggregation as aggregation_lib

# Of clipping, which belongs to the mechanism.
_OF_CLIPPING = ('clip_order', 'target_quantile', 'clip_learning_rate')


ROWS = (
  program.Flag(
    'inner_aggregator',
    list(aggregation_lib.INNER),
    'What sums the clipped updates inside of the mechanism. '
    + '; '.join(
      f'{name}: {inner.help}' for name, inner in aggregation_lib.INNER.items()
    )
    + '. Secure sums are simulated, with the same result and no security.',
    default=aggregation_lib.SUM,
  ),
  program.Flag(
    'zeroing_norm',
    float,
    'Updates of a larger L2 norm count as zeros, before they are clipped. It is not to '
    'be chosen by looking at updates, and changes no privacy.',
    unset='none do',
  ),
  program.Flag(
    'coordinate_bound',
    float,
    'Largest magnitude of a coordinate of an update, before it is clipped; it is not '
    'to be chosen by looking at updates either.',
    unset='any',
  ),
  program.Flag(
    'not_private_signal_to_noise',
    bool,
    'Measure in each round how loud the exact sum of updates is beside the noise, in '
    'columns of metrics.csv. That is not private, and the report says so.',
    default=False,
  ),
)


def from_flags(
  values: flags.FlagValues,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
) -> aggregation_lib.Aggregation:
  """What the flags say.

  `mechanism`: Of the run; `None` for none.
  `clip_norm`: Bound of one client's update; `None` for none.
  """
  names = (*(row.name for row in ROWS), *_OF_CLIPPING)
  made = aggregation_lib.Aggregation(**{name: values[name].value for name in names})
  made.check(mechanism, clip_norm)
  return made

"""What is done with clients' updates, besides what the mechanism says."""

import dataclasses
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning import options
from tff_dp_aggregators.learning.runs import fitting

# Of clipping, which belongs to the mechanism.
_OF_CLIPPING = ('clip_order', 'target_quantile', 'clip_learning_rate')
_INNER = '; '.join(f'{name}: {each.help}' for name, each in options.INNER.items())


@dataclasses.dataclass
class _Own:
  inner_aggregator: str = program.flag(
    f'How to sum the clipped updates inside the mechanism. {_INNER}. Secure sums are '
    'simulated: they have the same result and no security.',
    list(options.INNER),
    default=options.SUM,
  )
  zeroing_norm: Optional[float] = program.flag(
    'Replace updates with a larger L2 norm by zeros, before clipping. Do not choose it '
    'by looking at updates. It does not change the guarantee.',
    unset='no update is replaced',
  )
  coordinate_bound: Optional[float] = program.flag(
    'Bound on the magnitude of each coordinate of an update, before clipping. Do not '
    'choose it by looking at updates.',
    unset='no bound',
  )
  not_private_signal_to_noise: bool = program.flag(
    'Measure the ratio of the exact sum of updates to the noise in each round, in '
    'columns of metrics.csv. This is not private, and the report says so.',
    default=False,
  )


ROWS = program.rows_of(_Own)


def from_flags(
  values: flags.FlagValues,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
) -> options.Server:
  """What the flags say, for the mechanism and the bound of one client's update."""
  names = (*(row.name for row in ROWS), *_OF_CLIPPING)
  made = options.Server(**{name: values[name].value for name in names})
  fitting.check_server(made, mechanism, clip_norm, '--')
  return made

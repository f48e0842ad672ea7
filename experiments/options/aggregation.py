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
    f'What sums the clipped updates inside of the mechanism. {_INNER}. Secure sums are '
    'simulated, with the same result and no security.',
    list(options.INNER),
    default=options.SUM,
  )
  zeroing_norm: Optional[float] = program.flag(
    'Updates of a larger L2 norm count as zeros, before they are clipped. It is not to '
    'be chosen by looking at updates, and changes no privacy.',
    unset='none do',
  )
  coordinate_bound: Optional[float] = program.flag(
    'Largest magnitude of a coordinate of an update, before it is clipped; it is not '
    'to be chosen by looking at updates either.',
    unset='any',
  )
  not_private_signal_to_noise: bool = program.flag(
    'Measure in each round how loud the exact sum of updates is beside the noise, in '
    'columns of metrics.csv. That is not private, and the report says so.',
    default=False,
  )


ROWS = program.rows_of(_Own)


def from_flags(
  values: flags.FlagValues,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
) -> options.Server:
  names = (*(row.name for row in ROWS), *_OF_CLIPPING)
  made = options.Server(**{name: values[name].value for name in names})
  fitting.check_server(made, mechanism, clip_norm)
  return made

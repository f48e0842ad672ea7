"""NbAFL: noise on clients and on the server, by formulas that begin with epsilon.

The flags are those of `report --nbafl`; numbers of clients, rounds and clip norm are
those of the simulation.
"""

from collections.abc import Iterable
from typing import Any

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import table

NAMES = table.names(table.NBAFL)
# What may be said as well, as it is so anyway.
_SO_ANYWAY: dict[str, tuple[Any, ...]] = {
  'mechanism': (noises.GAUSSIAN.name,),
  'clipping': ('fixed',),
  'workload': ('prefix_sums',),
  'simulated_cohort_scale': (1.0,),
  'sampling': (sampling.Limits.flag,),
  'min_separation': (1,),
  'rounds_between': (0,),
  'fixed_epoch': (False,),
  'schedule': (sampling.RandomEligible.name,),
}


def rows() -> table.Rows:
  changes = {
    'nbafl': {
      'help': 'Noise of each client and of the server by NbAFL (arXiv:1911.00222), '
      'from --target_epsilon, --target_delta, --clip_norm, --num_rounds, '
      '--num_clients, --clients_per_round and the flags below. The report says what '
      'the formulas claim of an example beside what holds of a client. All clients '
      'take part in each round, or are drawn at random anew for each.'
    },
    'num_exposures': {'unset': '--num_rounds, for a client may be in each of them'},
  }
  return table.change(table.NBAFL, changes)


def prepare(
  values: flags.FlagValues, of_participation: Iterable[str], of_noise: Iterable[str]
) -> None:
  """Refuses what does not go with the flags, and puts what follows from them."""
  flags_lib.check_nbafl(values)
  if not values.nbafl:
    return
  for names, why in (
    (
      of_participation,
      'its formulas are for clients who all take part in each round, or are drawn at '
      'random anew for each, and all report',
    ),
    (of_noise, 'mechanism, noise and its site follow from the formulas'),
  ):
    for name in names:
      flag = values[name]
      if name in (*NAMES, *table.OF_NBAFL) or not flag.present:
        continue
      if flag.value not in _SO_ANYWAY.get(name, ()):
        raise ValueError(f'{flag.serialize()} does not go with --nbafl: {why}.')
  if values.num_clients is None:
    raise ValueError(
      '--nbafl needs the number of clients, which is not known before the data are '
      'read; give --num_clients.'
    )
  values['min_separation'].value = 1  # Not the task's.
  values.set_default('mechanism', noises.GAUSSIAN.name)
  values.set_default('clipping', 'fixed')
  values.set_default('num_exposures', values.num_rounds)


def from_flags(values: flags.FlagValues) -> nbafl.Nbafl:
  """The plan that the flags state, which were prepared."""
  plan = flags_lib.nbafl(values)
  arguments = plan.mechanism_arguments()
  for name in ('noise_site', 'server_noise_multiplier', 'min_clients'):
    if name in arguments:
      values.set_default(name, arguments[name])
  return plan

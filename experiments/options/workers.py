"""Who trains: this process, processes of this machine, or other machines."""

from typing import Optional

from absl import flags

from tff_dp_aggregators.workers import group

# Flags, and the attributes of `group.Workers` that they are.
_ATTRIBUTES = {
  'workers': 'addresses',
  'workers_certificate': 'certificate',
  'workers_key': 'key',
  'workers_authority': 'authority',
  'trusted_network': 'trusted_network',
  'worker_timeout_seconds': 'timeout_seconds',
  'worker_patience_seconds': 'patience_seconds',
}
NAMES = tuple(_ATTRIBUTES)
# A run may go on with other workers, or none.
MAY_DIFFER = NAMES


def define(values: flags.FlagValues) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
  """
  flags.DEFINE_string(
    'workers',
    None,
    'Who trains, to the same result: local:4 for four processes of this machine, or '
    'host1:8470,host2:8470 for those that python -m experiments.worker started. A name '
    'with several addresses is several workers. Noise is made here, and no key is '
    'sent. Default: threads of one process.',
    flag_values=values,
  )
  for name, what in (
    ('certificate', 'with the certificate by which workers know this program'),
    ('key', 'with its private key, which nobody else may be able to read'),
    ('authority', 'with the certificate of who signed those of all'),
  ):
    flags.DEFINE_string(
      f'workers_{name}', None, f'PEM file {what}.', flag_values=values
    )
  flags.DEFINE_bool(
    'trusted_network',
    False,
    'Reach --workers of other machines without certificates. Whoever is on that '
    'network can read the model and the data, and pretend to be a worker. Refused '
    'beside certificates, and where no worker is on another machine.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'worker_timeout_seconds',
    10.0,
    'How long a worker may take to say how it is, before its packs go to others.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'worker_patience_seconds',
    60.0,
    'How long a round waits if there is no worker at all, before the program ends with '
    'an error; the same command goes on.',
    flag_values=values,
  )


def need_trust(values: flags.FlagValues) -> bool:
  """Whether there are workers that a trusted network is needed for.

  Args:
    values: Parsed flags, among them that of a trusted network.
  """
  try:
    return from_flags(values) is not None
  except ValueError:
    return False  # Of what else is wrong, whoever reads the flags is told.


def from_flags(values: flags.FlagValues) -> Optional[group.Workers]:
  """What the flags say.

  Args:
    values: Parsed flags.

  Raises:
    ValueError: If they do not go together, or one is of no use.
  """
  if values.workers is None:
    given = [name for name in NAMES if values[name].present]
    if given:
      raise ValueError(f'--{given[0]} is for --workers, which is not given.')
    return None
  return group.Workers(
    **{attribute: values[name].value for name, attribute in _ATTRIBUTES.items()},
    names=group.Names(*(f'--{name}' for name in NAMES)),
  )

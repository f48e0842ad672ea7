r"""Computes for trainings of other processes and machines, until it is ended.

    python -m experiments.worker --port=8470
    python -m experiments.worker --address=10.0.0.5 --certificate=worker.crt \
        --key=worker.key --authority=group.crt

A training uses it by --workers=HOST:PORT. Who reaches it can run code in it and reads
the model: without certificates it listens for this machine alone. A process of
TensorFlow Federated does the work; it is started again when it dies, hangs, or was left
by a coordinator that crashed. SIGTERM and Ctrl-C end both.
"""

import sys

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import supervisor

from . import commands

DEFAULT_PORT = 8470


def define(values: flags.FlagValues) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
  """
  flags.DEFINE_integer(
    'port',
    DEFAULT_PORT,
    'Port to listen on; 0 takes one that is free, and says which.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'address',
    '127.0.0.1',
    'Address or name to listen on, IPv6 as well; 0.0.0.0 for all of this machine. One '
    'that other machines reach needs certificates, or --trusted_network. Or unix:PATH, '
    'a socket that your own programs alone can call.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'stall_seconds',
    30.0,
    'The process that computes is killed, and another one started, when it answers '
    'nothing for so long. One that is busy answers.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'status_file',
    None,
    'File in which how the worker is, as JSON, is left every few seconds. One that is '
    'older than a minute is of a worker that hangs; who looks after containers kills '
    'it then.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'certificate',
    None,
    "PEM file with this worker's certificate, for the name that coordinators call.",
    flag_values=values,
  )
  flags.DEFINE_string(
    'key',
    None,
    'PEM file with its private key, which nobody else may be able to read.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'authority',
    None,
    'PEM file with the certificate of the authority that has signed those of workers '
    'and coordinators, and of nobody else. Only coordinators with one may call.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'trusted_network',
    False,
    'Listen without certificates where other machines reach it. Whoever is on that '
    'network can run code here and read the model. Refused beside certificates, and '
    'for an address of this machine alone.',
    flag_values=values,
  )


def groups() -> list[program.Group]:
  """Flags that `--help` shows under headings of their own."""
  names = ('certificate', 'key', 'authority', 'trusted_network')
  return [('Who may call', names)]


def main(values: flags.FlagValues) -> int:
  """Computes until it is ended; returns the exit code."""
  try:
    settings = supervisor.Settings(
      host=values.address,
      port=values.port,
      files=credentials.files(values.certificate, values.key, values.authority),
      trusted_network=values.trusted_network,
      stall_seconds=values.stall_seconds,
      status_file=values.status_file,
    )
    return supervisor.run(settings, _say)
  except (ValueError, binary.BinaryError) as e:
    raise program.WrongUsage(str(e)) from e


def _say(line: str) -> None:
  # Whoever started it may read a file or a pipe of it, or nothing any more.
  try:
    print(line, flush=True)
  except OSError:
    sys.stdout = None  # type: ignore[assignment]


PROGRAM = program.Program(
  'tff-dp-worker',
  commands.in_words(__doc__ or ''),
  define,
  main,
  groups=groups,
  refusals=(program.WrongUsage,),
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

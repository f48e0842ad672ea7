r"""Audits the code that makes a mechanism's noise: does it hide what is claimed?

    tff-dp-audit --run_dir=runs/digits
    tff-dp-audit --mechanism=banded --num_rounds=200 --min_separation=20 \
        --noise_multiplier=2 --target_delta=1e-6

Runs the mechanism with one client that sends zeros, a small model and a new key, in
TFF's runtime and as simulations do. What it releases is noise, which follows from the
key: so the program reads the matrix that the noise is made with, and computes from it
the effective noise multiplier for the worst participation that the limits allow. The
table shows it beside the accounted one. It must not be smaller; it is larger if only a
bound of the sensitivity is known, as for trees. For mechanisms that rest on sampling,
the matrix itself must be the strategy's.

Takes a minute or two for 1,000 rounds. Exit codes: 0 the claims hold, 1 one does not,
2 wrong usage.
"""

from absl import flags

from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import sources

_STORAGES = ('auto', 'in_process', 'state', 'redraw', 'files')
_RUNTIMES = ('tff', 'simulation')
# What `--help` shows.
_BASIC = (
  'run_dir',
  'first_rounds',
  'runtime',
  'storage',
  'mechanism',
  'num_rounds',
  'min_separation',
  'max_participations',
  'noise_multiplier',
  'target_delta',
)


def groups() -> tuple[program.Group, ...]:
  own = (
    program.Flag('run_dir', str, 'Directory of a run, whose mechanism is audited.'),
    program.Flag(
      'first_rounds',
      int,
      'Read only so many of the rounds, the first.',
      unset='all of them',
      at_least=1,
    ),
    program.Flag(
      'runtime',
      list(_RUNTIMES),
      "What runs the mechanism: TFF's runtime, or what simulations use.",
      unset='both, one after the other',
    ),
    program.Flag(
      'storage',
      list(_STORAGES),
      'Where the past of the noise is kept, see docs/noise.md.',
      unset='what each runtime has by default',
    ),
  )
  return (('Audit', own), *flags_lib.groups())


def main(values: flags.FlagValues) -> int:
  if values.run_dir is None:
    inputs = flags_lib.planned(values)
  else:
    program.refuse(
      values,
      flags_lib.all_names(),
      'does not go with --run_dir, whose mechanism is known. Leave one of them out.',
    )
    inputs = sources.from_run_dir(values.run_dir)
  from tff_dp_aggregators.learning import audit

  options = {} if values.storage is None else {'storage': values.storage}
  readings = audit.audit(
    inputs.mechanism,
    runtimes=_RUNTIMES if values.runtime is None else [values.runtime],
    first_rounds=values.first_rounds,
    **options,
  )
  print(_table(inputs, readings))
  noise_sources = (inputs.noise_source, inputs_lib.noise_source_of(inputs.ledger))
  if inputs_lib.SEEDED_NOISE in noise_sources:
    print('The run itself had noise of a known seed, and so no guarantee.')
  failed = [each for each in readings if not each.ok]
  for each in failed:
    print(f'FAILED: {each.why}')
  if not failed:
    print(f'The noise of {len(readings[0].matrix)} rounds hides what is claimed.')
  return program.CHECK_FAILED if failed else 0


def _table(inputs: inputs_lib.Inputs, readings: tuple) -> str:
  rows = [('part', 'run by', 'rounds', 'claimed', 'read', 'sensitivity', 'unexplained')]
  for each in readings:
    rows.append(
      (
        each.part or 'all',
        each.runtime,
        str(len(each.matrix)),
        f'{each.claimed:.6g}',
        f'{each.found:.6g}',
        'exact' if each.exact else 'bound',
        f'{each.unexplained:.0e}',
      )
    )
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = [
    '  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip()
    for row in rows
  ]
  lines.insert(0, 'Effective noise multipliers of these rounds:')
  mechanism = inputs.mechanism
  if not mechanism.parts and mechanism.is_one_gaussian:
    for name, number in (
      ('claimed', readings[0].claimed),
      ('read', min(each.found for each in readings)),
    ):
      epsilon = (
        gaussian.epsilon_of(1 / number, inputs.delta) if number else float('inf')
      )
      lines.append(f'Epsilon at delta = {inputs.delta:g}, {name}: {epsilon:.6g}')
  return '\n'.join(lines)


PROGRAM = program.Program('tff-dp-audit', __doc__ or '', groups, main, basic=_BASIC)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

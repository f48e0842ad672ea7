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

import dataclasses
import math
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version

_RUNTIMES = ('tff', 'simulation')


@dataclasses.dataclass
class _Flags:
  run_dir: Optional[str] = program.flag(
    'Directory of a run, whose mechanism is audited.'
  )
  first_rounds: Optional[int] = program.flag(
    'Read only so many of the rounds, the first. Default: all of them.',
    within='[1, inf)',
  )
  runtime: Optional[str] = program.flag(
    "What runs the mechanism: TFF's runtime, or what simulations use. Default: both, "
    'one after the other.',
    list(_RUNTIMES),
  )
  storage: Optional[str] = program.flag(
    'Where the past of the noise is kept, see docs/noise.md. Default: what each '
    'runtime has by default.',
    ['auto', 'in_process', 'state', 'redraw', 'files'],
  )


_FLAGS = program.rows_of(_Flags)


def groups() -> tuple[program.Group, ...]:
  return (('Audit', _FLAGS), *flags_lib.groups())


def main(values: flags.FlagValues) -> int:
  if values.run_dir is None:
    inputs = flags_lib.planned(values)
    if inputs.mechanism.is_sampled and flags_lib.target_from(values) is None:
      why = 'has no effect: with sampling and stated noise, no epsilon is computed.'
      program.refuse(values, ['accountant'], f'{why} Leave it out.')
  else:
    program.refuse(
      values,
      flags_lib.all_names(),
      'does not go with --run_dir, whose mechanism is known. Leave one of them out.',
    )
    inputs = sources.from_run_dir(values.run_dir)
    _check_run(values.run_dir, inputs)
  from tff_dp_aggregators.learning import audit

  options = {'storage': values.storage, 'clip_norm': inputs.clip_norm}
  readings = audit.audit(
    inputs.mechanism,
    runtimes=_RUNTIMES if values.runtime is None else [values.runtime],
    first_rounds=values.first_rounds,
    **{name: value for name, value in options.items() if value is not None},
  )
  print(_table(inputs, readings))
  if inputs.mechanism.clipped_count_stddev is not None:
    print(
      'The noise of the count of small norms (adaptive clipping) is not audited: '
      'multipliers are without it, and epsilons count it as it is stated.'
    )
  failed = [each for each in readings if not each.ok]
  for each in failed:
    print(f'FAILED: {each.why}')
  if not failed:
    print(f'The noise of {len(readings[0].matrix)} rounds hides what is claimed.')
  return program.CHECK_FAILED if failed else 0


def _check_run(run_dir: str, inputs: sources.Inputs) -> None:
  """Refuses runs whose records disagree or that have no guarantee; prints warnings."""
  cohort = inputs.simulated_cohort
  if cohort is not None:
    raise ValueError(
      f'--run_dir={run_dir}: the run simulated a larger cohort and has '
      f'1/{cohort.scale:g} of the noise of its mechanism, so it has no guarantee to '
      'audit. Leave --run_dir out and give the flags of the mechanism.'
    )
  built = statement.build(inputs, with_curves=False)  # Compares the ledger's lines.
  for warning in built.get('warnings', ()):
    print(f'Warning: {warning}')
  trained, audited = inputs.code_version or 'unknown code', str(version.current())
  if audited not in trained:
    print(f'Warning: {trained} trained the run, and the audit is of {audited}.')


def _table(inputs: sources.Inputs, readings: tuple) -> str:
  import dp_accounting  # At the top it would import the slow parts of SciPy.

  row = '{:<10}  {:<10}  {:>6}  {:>10}  {:>10}  {:<11}  {}'.format
  names = ('part', 'run by', 'rounds', 'claimed', 'read', 'sensitivity', 'unexplained')
  lines = ['Effective noise multipliers of these rounds:', row(*names)]
  for each in readings:
    kind, residual = 'exact' if each.exact else 'bound', f'{each.unexplained:.0e}'
    multipliers = (f'{each.claimed:.6g}', f'{each.found:.6g}')
    first = (each.part or 'all', each.runtime, len(each.matrix))
    lines.append(row(*first, *multipliers, kind, residual))
  mechanism = inputs.mechanism
  if not mechanism.is_one_gaussian:
    lines.append('Epsilon rests on sampling as well, and is not computed.')
    return '\n'.join(lines)
  parts = {each.part for each in readings}
  for name, attribute in (('claimed', 'claimed'), ('read', 'found')):
    least = [
      min(getattr(each, attribute) for each in readings if each.part == part)
      for part in parts
    ]
    squared = sum(number**-2 if number else math.inf for number in least)
    # The count of small norms has its share of what is claimed.
    share = mechanism.clipped_count_share or 0.0
    squared += share / (1 - share) / readings[0].claimed ** 2
    event = dp_accounting.GaussianDpEvent(1 / math.sqrt(squared))
    epsilon = rounding.up(inputs.epsilon_of(event), 5)
    lines.append(f'Epsilon at delta = {inputs.delta:g}, {name}: {epsilon}')
  return '\n'.join(lines)


_BASIC = (
  'mechanism num_rounds min_separation max_participations noise_multiplier'.split()
)
_BASIC += ['target_delta', *(row.name for row in _FLAGS)]
PROGRAM = program.Program('tff-dp-audit', __doc__ or '', groups, main, basic=_BASIC)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

r"""Prints a privacy report: what a mechanism, or a run of it, guarantees and why.

From flags, which give two of noise, target and number of rounds:

    tff-dp-report --mechanism=tree \
        --num_rounds=2000 --rounds_between=313 --max_participations=6 \
        --noise_multiplier=7 --target_delta=1e-10

From a run directory, from a ledger, or from the round log of a production system:

    tff-dp-report --run_dir=runs/digits-banded
    tff-dp-report --ledger=ledger.jsonl \
        --mechanism=tree --num_rounds=2000 --min_separation=314 \
        --noise_multiplier=7 --target_delta=1e-10
    tff-dp-report --round_log=rounds.csv \
        --mechanism=tree --noise_multiplier=7 --target_delta=1e-10 \
        --enforced_by='the job scheduler of the app' --clip_norm=0.5

Several of these can be combined; the report then covers what they spent together on the
same clients, with what other systems released of them (--other_release). The mechanism
in flags is that of all ledgers and round logs; give a run with another one as its run
directory, or as its JSON report (--report).

Verification computes a report again, and fails on any difference:

    tff-dp-report --verify=report.json

Exit codes: 0 success, 1 verification failed or target missed, 2 wrong usage.
"""

import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import participation
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import verification

# Flags that name what to report; they can be repeated and combined.
_SOURCES = ('run_dir', 'report', 'ledger', 'round_log')
_EXAMPLE = "--other_release='survey of March: epsilon=0.5, delta=1e-7'"


@dataclasses.dataclass
class _ReportFlags:
  run_dir: Optional[list[str]] = program.flag(
    'Report what the run in this directory spent. This flag, --report, --ledger and '
    '--round_log can be combined.'
  )
  report: Optional[list[str]] = program.flag(
    'Report what this JSON report states, after verifying it.'
  )
  ledger: Optional[list[str]] = program.flag(
    'Report what the rounds of this ledger spent, with the mechanism in flags.'
  )
  round_log: Optional[list[str]] = program.flag(
    'Take the number of rounds and the limits on participation from this log of a '
    "production system's rounds; see tff-dp-participation. If the strategy was "
    'optimised for limits, give it by --strategy_file, or state the planned '
    '--num_rounds and --min_separation. With --ledger of the same run, check that they '
    'agree, and that the planned limits in flags were kept.'
  )
  other_release: Optional[list[str]] = program.flag(
    "Repeated: what another system released about the same clients, as in 'survey of "
    "March: epsilon=0.5, delta=1e-7'; adjacency=add_or_remove, or another one, may "
    'follow. It is added to what the runs spent, and --target_delta covers all.'
  )
  verify: Optional[str] = program.flag(
    'Compute this JSON report again and fail on any difference.'
  )
  schema: bool = program.flag(
    'Print the JSON schema of the reports of --format=json.', default=False
  )


def groups() -> tuple[program.Group, ...]:
  """Returns the program's flags."""
  formats = ('markdown', *(f for f in rendering.FORMATS if f != 'markdown'))
  own = (*program.rows_of(_ReportFlags), *table.printed(*formats))
  return (
    ('What is reported', own),
    ('Round log', table.ROUND_LOG),
    *flags_lib.groups(),
    ('Stated, and marked as not verified', program.rows_of(_StatedFlags)),
    ('NbAFL', table.NBAFL),
  )


_STATE = 'State, for the report and not verified, what'


@dataclasses.dataclass
class _StatedFlags:
  """Facts about the mechanism in flags and its run that no program can know."""

  enforced_by: Optional[str] = program.flag(
    f'{_STATE} keeps the rounds of a client apart, or draws the clients.'
  )
  cap_enforced_by: Optional[str] = program.flag(
    f'{_STATE} keeps a client within --max_participations, if the separation allows '
    'more.'
  )
  rounds_fixed_by: Optional[str] = program.flag(
    f'{_STATE} fixed, before anything was computed from clients, the number of rounds '
    'of a run that ended early, such as a budget. The guarantee is then of the rounds '
    'that ran. Default: nothing, and the guarantee is of all planned rounds.',
  )
  noise_source: Optional[str] = program.flag(f'{_STATE} the noise comes from.')
  code_version: Optional[str] = program.flag(
    f'{_STATE} version of the code trained the model.'
  )
  clip_norm: Optional[float] = program.flag(
    f'{table.CLIP_NORM.help} Not verified without a ledger.', within='(0, inf)'
  )


def _mechanism_flags() -> tuple[str, ...]:
  """Flags that determine the numbers of a mechanism, besides files of its run."""
  return (
    *flags_lib.all_names(),
    *table.names(table.ROUND_LOG),
    *table.names(program.rows_of(_StatedFlags)),
    *table.names(table.NBAFL),
    'other_release',
  )


def build(values: flags.FlagValues) -> dict[str, Any]:
  """Builds the statement that the flags ask for."""
  flags_lib.check_nbafl(values)
  if values.nbafl:
    allowed = (*table.names(table.NBAFL), *table.OF_NBAFL)
    others = (*_mechanism_flags(), *_SOURCES)
    program.refuse(values, others, 'does not go with --nbafl.', but=allowed)
    command = sources.command_of(program.given(values, allowed))
    return statement_lib.build_nbafl(flags_lib.nbafl(values), command=command)
  _check_sources(values)
  return composition.compose(
    list(_parts(values, with_curves=values.format in ('json', 'html'))),
    accountant=values.accountant,
    command=sources.command_of(program.given(values, (*_mechanism_flags(), *_SOURCES))),
    other_releases=[
      program.settings_of('other_release', text, model.OtherRelease, _EXAMPLE)
      for text in values.other_release or ()
    ],
  )


def _check_sources(values: flags.FlagValues) -> None:
  is_composed = _num_sources(values) > 1 or values['other_release'].present
  if values.round_log is None:
    program.refuse(values, table.names(table.ROUND_LOG), 'is for --round_log.')
  if _reports_mechanism(values):
    if is_composed:
      why = 'is for one mechanism, and what is composed spends more; leave it out.'
      program.refuse(values, ('target_epsilon', 'target_rho'), why)
    return
  but = ['rounds_fixed_by'] if values.run_dir is not None else []
  if values.run_dir is not None or is_composed:
    but.append('accountant')
  others = (*flags_lib.all_names(), *table.names(program.rows_of(_StatedFlags)))
  why = 'does not go with --run_dir alone.'
  if values.run_dir is None:
    why = 'does not go with --report alone; make the report again with it.'
  program.refuse(values, others, why, but=but)


def _stated_fields(values: flags.FlagValues) -> dict[str, Any]:
  stated = program.read(_StatedFlags, values)
  for name, value in stated.items():
    if isinstance(value, str) and not value.strip():
      raise ValueError(f'--{name} is empty; leave it out if there is nothing to state.')
  if 'clip_norm' in stated:
    if values['part'].present:
      flags_lib.check_beside_parts(values, ['clip_norm'])
    if values.clipped_count_stddev is not None:
      raise ValueError('--clip_norm does not go with --clipped_count_stddev.')
  return stated


def _reports_mechanism(values: flags.FlagValues) -> bool:
  is_other = values.run_dir or values.report
  return bool(values.ledger or values.round_log or not is_other)


def _num_sources(values: flags.FlagValues) -> int:
  num_runs = max(len(values.ledger or ()), len(values.round_log or ()))
  return num_runs + len(values.run_dir or ()) + len(values.report or ())


def _parts(values: flags.FlagValues, with_curves: bool) -> Iterator[composition.Part]:
  def part(name: str, inputs: sources.Inputs) -> composition.Part:
    return composition.Part(name, statement_lib.build(inputs, with_curves=with_curves))

  stated = _stated_fields(values)
  for path in values.run_dir or ():
    run = sources.from_run_dir(path, values.accountant, stated.get('rounds_fixed_by'))
    if run.mechanism is None:
      raise ValueError(f'{path}: the run had no privacy mechanism.')
    yield part(f'--run_dir={path}', run)
  if _reports_mechanism(values):

    @functools.cache
    def planned(limits: Optional[strategies.Participation]) -> sources.Inputs:
      plan = flags_lib.planned(values, limits)
      if 'cap_enforced_by' in stated and plan.mechanism.limits.assumed_at_most is None:
        raise ValueError(
          '--cap_enforced_by is for --max_participations below what is possible anyway.'
        )
      return dataclasses.replace(plan, **stated)

    ledgers, logs = values.ledger or (), values.round_log or ()
    if ledgers and logs and len(ledgers) != len(logs):
      raise ValueError(
        f'--ledger is given {len(ledgers)} times and --round_log {len(logs)} times; '
        'give each ledger its round log, in the same order.'
      )
    flags_of_all = program.given(values, _mechanism_flags())
    # Events of a ledger are for its planned limits; the log may show they were kept.
    has_plan = bool(ledgers) and any(
      values[name].present for name in table.names(table.participation())
    )
    for ledger, path in list(itertools.zip_longest(ledgers, logs)) or [(None, None)]:
      given = (('ledger', ledger), ('round_log', path))
      arguments = [f'--{name}={value}' for name, value in given if value is not None]
      log = None if path is None else _round_log(values, path, has_plan)
      run = sources.from_plan(
        planned(None if log is None or has_plan else log.limits),
        ledger=ledger,
        strategy_file=values.strategy_file,
        round_log=log,
        command=sources.command_of([*flags_of_all, *arguments]),
      )
      yield part(' '.join(arguments) or 'the plan', run)
  for path in values.report or ():
    verified = verification.statement_of_report(path, statement_of)
    yield composition.Part(f'--report={path}', verified)


def _round_log(values: flags.FlagValues, path: str, has_plan: bool) -> sources.RoundLog:
  log = sources.from_round_log(
    path,
    values.min_wait_hours,
    values.wait_from,
    values.first_start,
    columns=participation.columns_from_flags(values),
    population=values.population_name,
    planned=None if has_plan else flags_lib.planned_limits(values),
  )
  if log.proved.observed is not None:
    flags_lib.warn_of_large_delta(values, log.proved.observed.num_clients)
  return log


def statement_of(arguments: Sequence[str]) -> dict[str, Any]:
  """Builds the statement of a report's command; refuses flags that none prints."""
  allowed = {*_mechanism_flags(), *_SOURCES}
  for argument in arguments:
    # Abbreviations and flag files are refused; absl would read a flag file first.
    name = argument[2:].split('=', 1)[0] if argument.startswith('--') else ''
    positive = name[2:] if name.startswith('no') else name  # As in --nofixed_epoch.
    if not {name, positive} & allowed:
      raise ValueError(f'{argument!r} does not decide on the numbers of a report.')
  return build(program.values_of(groups(), arguments))


def main(values: flags.FlagValues) -> int:
  """Prints or writes the report; returns the exit code."""
  if values.verify is not None:
    why = 'does not go with --verify, which needs no other flag.'
    program.refuse(values, values, why, but=('verify',))
    result = verification.verify(values.verify, statement_of)
    folder = os.path.dirname(values.verify)
    for page in ('report.md', 'report.html'):
      if os.path.exists(os.path.join(folder, page)):
        print(f'note: {page} beside it was not verified; --report makes it again')
    sys.stdout.write(result.text)
    return 0 if result.ok else program.CHECK_FAILED
  program.check_new(values, 'output')
  if values.schema:
    why = 'does not go with --schema, which needs no other flag.'
    program.refuse(values, values, why, but=('schema', 'output'))
    text = json.dumps(schema_lib.load(), indent=2) + '\n'
  else:
    ending = os.path.splitext(values.output or '')[1]
    wanted = {'.json': 'json', '.html': 'html'}.get(ending, values.format)
    if wanted != values.format:
      raise program.WrongUsage(
        f'--output={values.output} is for --format={wanted}, not {values.format}.'
      )
    learned = None
    if values.format == 'html' and values.run_dir and _num_sources(values) == 1:
      learned = learning_curves.of_run(values.run_dir[0])
    text = rendering.render(build(values), values.format, learned)
  program.print_or_write(text, values.output)
  return 0


_BASIC = (
  *table.BASIC,
  *_SOURCES,
  *('rounds_between', 'columns', 'min_wait_hours'),
  *('verify', 'enforced_by', 'cap_enforced_by', 'rounds_fixed_by', 'noise_source'),
)
PROGRAM = program.Program('tff-dp-report', __doc__ or '', groups, main, basic=_BASIC)
execute, run = PROGRAM.execute, PROGRAM.run

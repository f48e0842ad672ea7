"""What a report says where there is no guarantee, and beside one.

Runs without a mechanism, runs with the noise of a larger cohort than their own, and
what else was computed from clients' data without noise.
"""

from collections.abc import Iterator
from typing import Any, Optional

from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import how_to_verify
from tff_dp_aggregators.accounting.reports.rendering import ledger_words
from tff_dp_aggregators.accounting.reports.rendering.document import Code
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

_NO_PRIVACY = (
  'No privacy mechanism was used: whether or not updates were clipped, no noise was '
  'added to them, and epsilon is infinite.'
)
NOTHING = (
  'No finite epsilon holds: whoever sees the models may learn anything about a client.'
)
_BESIDES = "Also computed from clients' data without noise:"
_CONDITION = (
  'What follows is conditional, and no guarantee of this run: a run would have had it '
  'in which every round has as many clients as the larger cohort, drawn from as many '
  'clients as the larger population, under the same limits or sampling.'
)
_PACKED = (
  'packed: one computation trained many clients',
  'a technique of simulation; the sums, the noise and the accounting are those of '
  'clients that train by themselves',
)
_ONE_BY_ONE = (
  'one by one: each client in a computation of its own',
  'one program was all clients and the server; a secure sum, if there was one, was '
  'simulated, with the same result and no security',
)
# By what statements call them.
_SIMULATIONS = {'packed': _PACKED, 'one_by_one': _ONE_BY_ONE}


def document_of(title: str, statement: dict[str, Any]) -> document.Document:
  """The report of a run without a guarantee.

  Args:
    title: Of the document.
    statement: As `statement.build_without_privacy` returned it, or `statement.build`
      for a run with the noise of a larger cohort.
  """
  cohort = statement['simulated_cohort']
  facts = tuple(simulation_facts(statement['simulation']))
  simulated: tuple[document.Block, ...] = (document.Facts(facts),) if facts else ()
  if cohort is None:
    nothing = (document.Paragraph(_NO_PRIVACY), document.Paragraph(NOTHING))
    besides = tuple(_besides(statement))
    return document.Document(title, 'none.', False, (*nothing, *besides, *simulated))
  summary = (document.Paragraph(_what_it_is(cohort)), *_besides(statement), *simulated)
  sections = (_section(cohort), how_to_verify.section(statement))
  return document.Document(title, _headline(cohort), False, summary, sections)


def simulation_facts(simulation: Optional[str]) -> Iterator[Fact]:
  """How clients were simulated, if that is to be told."""
  if simulation is not None:
    yield Fact('simulation', *_SIMULATIONS[simulation])


def tuning_items(statement: dict[str, Any]) -> Iterator[str]:
  """Among how many runs this one was chosen, or each that is composed, if known."""
  for number, part in enumerate(statement.get('parts', ()), start=1):
    for item in tuning_items(part):
      yield item.replace('choosing this run', f'choosing run {number}', 1)
  tuning = statement['tuning']
  if tuning is None:
    return
  together = 'no finite epsilon holds for all of them together'
  if tuning['epsilon'] is not None:
    together = (
      f'all of them together spent epsilon = {rounding.up(tuning["epsilon"])} at the '
      'same delta'
    )
  yield f'choosing this run among {tuning["num_runs"]} on the same clients; {together}'


def _besides(statement: dict[str, Any]) -> Iterator[document.Block]:
  items = (*statement['not_covered'], *tuning_items(statement))
  if items:
    yield document.Items(_BESIDES, items)


def _headline(cohort: dict[str, Any]) -> str:
  return (
    f'none (the noise is that of a simulated cohort of {_simulated(cohort)} clients a '
    f'round; the rounds had {_number(cohort["clients_per_round"])}).'
  )


def _what_it_is(cohort: dict[str, Any]) -> str:
  return (
    f'This run simulates a larger cohort. Its rounds had '
    f'{_number(cohort["clients_per_round"])} of {_number(cohort["num_clients"])} '
    f'clients, and the noise that is right for {_simulated(cohort)} of '
    f'{_number(cohort["simulated_num_clients"])}: {_number(cohort["scale"])} times as '
    'many, so that the noise is less by that factor. It shows what such a training '
    'would come to. It carries no privacy guarantee for the clients whose data it used.'
  )


def _simulated(cohort: dict[str, Any]) -> str:
  return _number(cohort['simulated_clients_per_round'])


def _number(value: float) -> str:
  """With all its digits, and numbers of clients as people write them."""
  return f'{int(value)}' if float(value).is_integer() else rounding.exact(value)


def _section(cohort: dict[str, Any]) -> document.Section:
  facts = document.Facts(tuple(_facts(cohort)))
  blocks = (document.Paragraph(_CONDITION), facts)
  return document.Section('If the cohort had been larger', blocks)


def _facts(cohort: dict[str, Any]) -> Iterator[Fact]:
  accountant = cohort['accountant']
  by = '' if accountant is None else f' (by the accountant {accountant})'
  yield Fact(
    'epsilon of the larger cohort',
    f'{rounding.up(cohort["simulated_epsilon"])} at delta = '
    f'{rounding.exact(cohort["delta"])}{by}',
    f'for {cohort["adjacency"]} adjacency, in {cohort["rounds_completed"]} of '
    f'{cohort["rounds_planned"]} rounds. Not spent by this run, which has no finite '
    'epsilon',
  )
  if cohort['target_epsilon'] is not None:
    yield Fact(
      'target of the larger cohort', f'epsilon {_number(cohort["target_epsilon"])}'
    )
  for name, meaning in (
    ('clients_per_round', 'clients of a round'),
    ('num_clients', 'clients in all'),
    ('noise_multiplier', 'noise relative to the clip norm'),
    ('clipped_count_stddev', 'noise of the count of small norms, in clients'),
  ):
    if cohort[name] is not None:
      yield Fact(
        name.replace('_', ' ').replace('num clients', 'clients'),
        f'{_number(cohort[name])} in this run, '
        f'{_number(cohort[f"simulated_{name}"])} for the larger cohort',
        meaning,
      )
  yield Fact('mechanism', cohort['mechanism'])
  yield Fact('strategy checksum', Code(cohort['strategy_checksum']))
  yield Fact(
    'participation',
    cohort['participation'],
    'in this run; the larger cohort would be drawn in the same way, of the larger '
    'population',
  )
  head = cohort['ledger_head']
  yield Fact('lines of the ledger', f'{head["lines"]}')
  yield Fact(
    ledger_words.HASH,
    Code(f'sha256:{head["sha256"]}'),
    'each line says that its round was not private',
  )

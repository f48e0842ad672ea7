"""What a report says of a joint mechanism: of all parts together, and of each."""

from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import ledger_words
from tff_dp_aggregators.accounting.reports.rendering import mechanism_section
from tff_dp_aggregators.accounting.reports.rendering import rounding
from tff_dp_aggregators.accounting.reports.rendering import without_guarantee
from tff_dp_aggregators.accounting.reports.rendering.document import Code
from tff_dp_aggregators.accounting.reports.rendering.document import Fact

_HEADER = (
  'part',
  'weights',
  'mechanism',
  'clip norm',
  'noise multiplier',
  'sensitivity',
  'effective noise multiplier',
  'share of mu^2',
)


def sections(statement: dict[str, Any]) -> Iterator[document.Section]:
  """The mechanism of a plan or of a run whose weights are in parts.

  Args:
    statement: As `statement.build` returned it.
  """
  parts = statement['mechanism']['parts']
  yield document.Section(
    'Mechanism',
    (
      document.Paragraph(mechanism_section.principle(statement)),
      document.Facts(tuple(_facts(statement))),
      document.Table(_HEADER, tuple(_row(part) for part in parts)),
    ),
  )
  for part, of_part in zip(parts, mechanism_section.by_part(statement)):
    # What ran is said of all parts together; their clip norms are in the ledger.
    alone = {**of_part, 'run': None}
    facts = (
      Fact('weights', _weights(part), _patterns(part)),
      *mechanism_section.facts_of_noise(alone),
    )
    yield document.Section(f'Part {part["part"]}', (document.Facts(facts),))


def _facts(statement: dict[str, Any]) -> Iterator[Fact]:
  mechanism, run = statement['mechanism'], statement['run']
  names = ', '.join(part['part'] for part in mechanism['parts'])
  yield Fact('mechanism', f'joint: the parts {names}')
  yield Fact('strategy checksum', Code(mechanism['strategy_checksum']), 'of all parts')
  rounds = f'{mechanism["num_rounds"]}'
  if run is not None:
    rounds = f'{run["rounds_completed"]} of {rounds}'
  yield Fact('rounds', rounds)
  if run is not None:
    yield from ledger_words.facts(run)
    yield from without_guarantee.simulation_facts(run['simulation'])
  yield from mechanism_section.before_clipping(run)
  effective = mechanism['effective_noise_multiplier']
  if effective is not None:
    yield Fact(
      'effective noise multiplier',
      rounding.down(effective),
      'of all parts together: one over mu, whose square is the sum of the squares of '
      'those of the parts. It says how private they are',
    )
  yield from mechanism_section.facts_of_all(statement)


def _row(part: dict[str, Any]) -> tuple[str, ...]:
  share = part['share_of_mu_squared']
  return (
    part['part'],
    _weights(part),
    part['name'],
    rounding.exact(part['clip_norm']),
    rounding.exact(part['noise_multiplier']),
    rounding.up(part['sensitivity'], 6),
    rounding.down(part['effective_noise_multiplier']),
    'none: not Gaussian' if share is None else f'{share:.4f}',
  )


def _weights(part: dict[str, Any]) -> str:
  """The names of the weights, or where no model is known their patterns."""
  names = part['weights']
  return ', '.join(names) if names is not None else ' '.join(part['patterns'])


def _patterns(part: dict[str, Any]) -> str:
  return (
    f'those whose names are like {" or ".join(part["patterns"])}, and of no part before'
  )

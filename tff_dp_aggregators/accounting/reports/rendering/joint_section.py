"""What a report says of a joint mechanism: of all parts together, and of each."""

from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import ledger_words
from tff_dp_aggregators.accounting.reports.rendering import mechanism_section
from tff_dp_aggregators.accounting.reports.rendering import without_guarantee
from tff_dp_aggregators.accounting.reports.rendering.document import Code
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

_HEADER = (
  'part',
  'weights',
  'mechanism',
  'clip norm',
  'noise multiplier',
  'sensitivity',
  'effective noise multiplier',
  'share',
)
_SHARES = (
  'Shares are parts of the sum of 1 / effective noise multiplier^2, by which a target '
  'is divided when noise is found for it. Of parts with Gaussian noise alone that is '
  'the sum of their mu^2.'
)
_OF_OTHERS = (
  ' Of other noise a share says nothing else in numbers: with more of it there is less '
  'noise.'
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
      document.Paragraph(_shares(parts)),
    ),
  )
  for part, of_part in zip(parts, mechanism_section.by_part(statement)):
    # What ran is said of all parts together; their clip norms are in the ledger.
    alone = {**of_part, 'run': None}
    facts = (
      Fact('weights', _weights(part, with_shapes=True), _patterns(part)),
      *_size_facts(part),
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


def _shares(parts: list[dict[str, Any]]) -> str:
  """What the shares of the parts are of."""
  gaussian = [part for part in parts if part['share_of_mu_squared'] is not None]
  if len(gaussian) == len(parts):
    return _SHARES
  if len(gaussian) < 2:
    return _SHARES + _OF_OTHERS
  listed = ', '.join(
    f'{part["part"]} has {part["share_of_mu_squared"]:.4f}' for part in gaussian
  )
  return f'{_SHARES}{_OF_OTHERS} Of the mu^2 of the Gaussian parts {listed}.'


def _row(part: dict[str, Any]) -> tuple[str, ...]:
  return (
    part['part'],
    _weights(part),
    part['name'],
    rounding.exact(part['clip_norm']),
    rounding.exact(part['noise_multiplier']),
    rounding.up(part['sensitivity'], 6),
    rounding.down(part['effective_noise_multiplier']),
    f'{part["share"]:.4f}',
  )


def _weights(part: dict[str, Any], with_shapes: bool = False) -> str:
  """The names of the weights, or where no model is known their patterns."""
  names = part['weights']
  if names is None:
    return ' '.join(part['patterns'])
  if with_shapes:
    names = [f'{name} {shape}' for name, shape in zip(names, part['shapes'])]
  return ', '.join(names)


def _size_facts(part: dict[str, Any]) -> Iterator[Fact]:
  """How large the part is, where the model is known."""
  if part['num_parameters'] is not None:
    yield Fact(
      'parameters', f'{part["num_parameters"]}', 'in all its weights, of these shapes'
    )


def _patterns(part: dict[str, Any]) -> str:
  return (
    f'those whose names are like {" or ".join(part["patterns"])}, and of no part before'
  )

"""What the report of an NbAFL plan says: what is claimed, and what holds."""

from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import how_to_verify
from tff_dp_aggregators.accounting.reports.rendering import rounding
from tff_dp_aggregators.accounting.reports.rendering.document import Fact

_SEEN = {
  'uplink': "one client's uploads",
  'downlink': 'the models of the rounds',
}
_CHANGES = {'replace_one': 'is another', 'zero_out': 'counts as nothing'}
_WHAT_IT_IS = (
  'In NbAFL (noising before model aggregation, arXiv:1911.00222) each client clips its '
  'upload and adds Gaussian noise before it sends it, and the server adds more to the '
  "mean if the clients' is too little for all rounds. How much of both follows from "
  'formulas that begin with epsilon. What they claim is about one example of a client.'
)
_NOT_THE_SAME = (
  'The guarantee above is that of a client, of whom all examples together are hidden: '
  'it rests on no assumption about single examples. What is claimed and what the '
  'accountants of this package say of the same noise stand beside each other below. '
  'Where the second is the smaller, the formulas ask for more noise than their claim '
  'takes; where it is the larger, the claim does not hold.'
)
_ASSUMPTIONS = (
  'one example moves an upload by no more than 2 C / m: so it is for a mean over at '
  'least m examples that are clipped each to norm C. Clipping the finished upload does '
  'not make it so, and then nothing but the rows of a client holds. Rows of an example '
  'rest on this, and no others',
  'as many clients in every round as are stated, who add their noise and keep it to '
  'themselves, where models are looked at',
  'no more uploads of a client are seen than are stated',
  'fewer clients than all are drawn at random without replacement, and nobody learns '
  'who was drawn, where that is stated',
  'noise that nobody can predict',
)


def document_of(title: str, statement: dict[str, Any]) -> document.Document:
  """The report of a plan.

  Args:
    title: Of the document.
    statement: As `statement.build_nbafl` returned it.
  """
  guarantee = statement['guarantee']
  return document.Document(
    title,
    _headline(statement),
    guarantee['is_private'],
    (
      document.Paragraph(_WHAT_IT_IS),
      document.Paragraph(_NOT_THE_SAME),
      document.Items('It rests on these assumptions:', _ASSUMPTIONS),
    ),
    (
      document.Section('What is claimed, and what holds', (_rows(statement),)),
      document.Section('Plan', (document.Facts(tuple(_facts(statement))),)),
      how_to_verify.section(statement),
    ),
  )


def _headline(statement: dict[str, Any]) -> str:
  guarantee, plan = statement['guarantee'], statement['mechanism']
  delta = rounding.exact(guarantee['delta'])
  if guarantee['epsilon'] is None:
    return f'none (epsilon of a client is infinite at delta = {delta}).'
  return (
    f'(epsilon, delta) = ({rounding.up(guarantee["epsilon"])}, {delta}) central '
    f'differential privacy for each client, in all {plan["num_rounds"]} planned rounds '
    f'together; the formulas claim {rounding.exact(plan["epsilon"])} for each example.'
  )


def _rows(statement: dict[str, Any]) -> document.Table:
  delta = rounding.exact(statement['guarantee']['delta'])
  return document.Table(
    (
      'who sees',
      'releases',
      'is to tell whether',
      'noise over what that changes',
      'epsilon claimed',
      f'epsilon at delta = {delta}',
    ),
    tuple(
      (
        _SEEN[each['seen']],
        f'{each["releases"]}',
        f'one {each["unit"]} {_CHANGES[each["adjacency"]]}',
        rounding.down(each['noise_multiplier']),
        _claimed(each),
        rounding.up(each['epsilon']),
      )
      for each in statement['guarantees']
    ),
  )


def _claimed(row: dict[str, Any]) -> str:
  if row['claimed_epsilon'] is None:
    return 'nothing'
  return rounding.exact(row['claimed_epsilon'])


def _facts(statement: dict[str, Any]) -> Iterator[Fact]:
  plan = statement['mechanism']
  for name, title, meaning in (
    ('epsilon', 'epsilon asked for', 'of one example, in all that is seen'),
    ('delta', 'delta', 'of all guarantees'),
    ('clip_norm', 'clip norm (L2)', 'C, the largest length of an upload'),
    ('num_exposures', 'exposures', "L, how often a client's uploads are seen"),
    ('num_rounds', 'rounds', 'T, how many models are sent down'),
    ('num_clients', 'clients', 'N, of all rounds'),
    ('cohort', 'clients of a round', 'K, drawn at random if they are not all'),
    ('min_examples', 'examples of a client', 'm, at least'),
  ):
    yield Fact(title, rounding.exact(plan[name]), meaning)
  yield Fact('calibration', plan['calibration'], _CALIBRATIONS[plan['calibration']])
  for name, title, meaning in (
    ('uplink_stddev', 'noise of a client', 'sigma_u, in each coordinate of an upload'),
    ('downlink_stddev', 'noise of the server', 'sigma_d, in each coordinate of a mean'),
    (
      'client_noise_multiplier',
      'noise multiplier of a client',
      'its noise over the clip norm',
    ),
    (
      'server_noise_multiplier',
      'noise multiplier of the server',
      "its noise on a round's sum over the clip norm",
    ),
    (
      'sum_noise_multiplier',
      'noise multiplier of the sum',
      "all noise in a round's sum over the clip norm",
    ),
  ):
    yield Fact(title, rounding.exact(plan[name]), meaning)


_CALIBRATIONS = {
  'published': 'by the formulas, for epsilon below 1',
  'exact': 'the least noise with what the formulas promise, by the exact curve of a '
  'Gaussian',
}

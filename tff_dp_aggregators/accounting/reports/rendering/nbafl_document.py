"""What the report of an NbAFL plan says: what is claimed, and what holds."""

from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import how_to_verify
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

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
_IN_A_RUN = (
  'The noise of this run is that of such a plan. Its clients clip their finished '
  'update, and no single examples: one example may change an update as much as all '
  'together. So what is claimed of an example was not provided for here, nor was what '
  'the accountants say of one; of an example holds what holds of its client. Rows are '
  'of all rounds that were planned. The guarantee of this report is of what a client '
  'sends in all rounds in which it may take part, which may be more than the exposures '
  'that the plan counts.'
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
      document.Paragraph(_of_its_runs(statement)),
      document.Paragraph(_WHAT_IT_IS),
      document.Paragraph(_NOT_THE_SAME),
      document.Items('It rests on these assumptions:', _ASSUMPTIONS),
    ),
    (
      document.Section(
        'What is claimed, and what holds',
        (_rows(statement['guarantees'], statement['guarantee']['delta']),),
      ),
      document.Section(
        'Plan', (document.Facts(tuple(_facts(statement['mechanism']))),)
      ),
      how_to_verify.section(statement),
    ),
  )


def _of_its_runs(statement: dict[str, Any]) -> str:
  """What else the same noise is said to be, in the report of a run."""
  local = nbafl_report.local_of(statement['guarantees'])
  return (
    'The report of a run with this noise begins with epsilon = '
    f'{rounding.up(local["epsilon"])} at the same delta: local differential privacy, '
    'of what a client sends in all rounds, towards everybody. The one above is towards '
    'those who see no more than the models.'
  )


def asked_for(statement: dict[str, Any]) -> Iterator[document.Paragraph]:
  """What the plan of a run was asked for and what its own report says, if of one.

  Args:
    statement: As `statement.build` or `compose` returned it.
  """
  said = statement.get('nbafl')
  if said is None:
    return
  central, plan = nbafl_report.central_of(said['guarantees']), said['plan']
  yield document.Paragraph(
    f'NbAFL was asked for epsilon = {rounding.exact(plan["epsilon"])} at delta = '
    f'{rounding.exact(plan["delta"])}, which its formulas claim of one example. The '
    'guarantee above is of what a client sends in all rounds. The report of the plan '
    f'(report --nbafl) begins with epsilon = {rounding.up(central["epsilon"])}, of a '
    'client as well, towards those who see no more than the models of all its rounds.'
  )


def sections_of_run(statement: dict[str, Any]) -> Iterator[document.Section]:
  """What the report of a run says of the plan that its noise is from, if of one.

  Args:
    statement: As `statement.build` or `compose` returned it.
  """
  said = statement.get('nbafl')
  if said is None:
    return
  plan = said['plan']
  yield document.Section(
    'NbAFL: what is claimed, and what holds',
    (
      document.Paragraph(_WHAT_IT_IS),
      document.Paragraph(_IN_A_RUN),
      _rows(said['guarantees'], plan['delta'], plan),
      document.Items('All of it rests on these assumptions:', _ASSUMPTIONS),
      document.Facts(tuple(_facts(plan))),
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


def _rows(
  guarantees: Sequence[dict[str, Any]],
  delta: float,
  run: Optional[dict[str, Any]] = None,
) -> document.Table:
  """What is claimed beside what holds; of a run, whose plan is given, if it does."""
  header = (
    'who sees',
    'releases',
    'is to tell whether',
    'noise over what that changes',
    'epsilon claimed',
    f'epsilon at delta = {rounding.exact(delta)}',
  )
  return document.Table(
    header if run is None else (*header, 'in this run'),
    tuple(
      (
        _SEEN[each['seen']],
        f'{each["releases"]}',
        f'one {each["unit"]} {_CHANGES[each["adjacency"]]}',
        rounding.down(each['noise_multiplier']),
        _claimed(each),
        rounding.up(each['epsilon']),
        *(() if run is None else (_in_run(each, run),)),
      )
      for each in guarantees
    ),
  )


def _in_run(row: dict[str, Any], plan: dict[str, Any]) -> str:
  """Whether a row is one of a run, and what that takes."""
  if row['unit'] == 'example':
    return 'not provided for: no examples were clipped'
  if row['seen'] == 'uplink' and row['releases'] < plan['num_rounds']:
    return 'holds if no more uploads are seen, and no models'
  if row['seen'] == 'downlink' and plan['cohort'] < plan['num_clients']:
    return 'holds if nobody learns who was drawn, nor the seed of that'
  return 'holds'


def _claimed(row: dict[str, Any]) -> str:
  if row['claimed_epsilon'] is None:
    return 'nothing'
  return rounding.exact(row['claimed_epsilon'])


def _facts(plan: dict[str, Any]) -> Iterator[Fact]:
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

"""What a report says of a mechanism: what it does, and its numbers."""

from collections.abc import Iterator
from typing import Any, Optional

from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.reports import provenance
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import ledger_words
from tff_dp_aggregators.accounting.reports.rendering import without_guarantee
from tff_dp_aggregators.accounting.reports.rendering.document import Code
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.strategies import registry

_MATRIX_MECHANISM = (
  "The server adds up the clipped updates of a round's clients and adds Gaussian "
  'noise. In a matrix mechanism (arXiv:2202.08312) what is released follows from '
  'C X + z: the rows of X are the sums of the rounds, C is the strategy matrix, which '
  'decides how the noise of different rounds is correlated, and z is independent noise.'
)
_INDEPENDENT = (
  "The server adds up the clipped updates of a round's clients and adds {} noise, "
  'drawn anew in each round.'
)
_JOINT = (
  'The weights of the model are in parts. The server clips each part of an update by '
  "itself, adds up the parts of a round's clients, and adds noise of a mechanism that "
  'each part has for itself'
)
_JOINT_MATRIX = (
  'Gaussian noise to {}, in a matrix mechanism (arXiv:2202.08312) for each: what is '
  'released of the part follows from C X + z, where the rows of X are the sums of the '
  'rounds, C is the strategy matrix, which decides how the noise of different rounds '
  'is correlated, and z is independent noise'
)
_JOINT_INDEPENDENT = '{} noise to {}, drawn anew in each round'
_FROM_FILE = 'noise correlated over rounds by a matrix that was loaded from a file'
_CLIPPED = {
  2: "the largest length of a client's update; a longer one is scaled down to it",
  1: "the largest sum of absolute values in a client's update; one with more is scaled "
  'down to it',
}
_FOUND = {
  'noise_multiplier': 'the least noise that keeps it was found',
  'num_rounds': 'the most rounds that keep it were found',
  'max_participations': 'the most participations that keep it were found',
  None: 'it was checked',
}


def section(statement: dict[str, Any]) -> document.Section:
  """The mechanism of a plan or of a run.

  Args:
    statement: As `statement.build` returned it.
  """
  facts = (
    *facts_of_noise(statement, ran=(*_rounds_facts(statement),)),
    *facts_of_all(statement),
  )
  blocks = (document.Paragraph(principle(statement)), document.Facts(facts))
  return document.Section('Mechanism', blocks)


def _rounds_facts(statement: dict[str, Any]) -> Iterator[Fact]:
  run, rounds = statement['run'], f'{statement["mechanism"]["num_rounds"]}'
  if run is not None:
    rounds = f'{run["rounds_completed"]} of {rounds}'
  yield Fact('rounds', rounds)
  if run is not None:
    yield from ledger_words.facts(run, site_of(statement).is_of_client)
    yield from without_guarantee.simulation_facts(run['simulation'])


def facts_of_noise(
  statement: dict[str, Any], ran: tuple[Fact, ...] = ()
) -> Iterator[Fact]:
  """What a mechanism does in numbers.

  Args:
    statement: As `statement.build` returned it.
    ran: Facts of its rounds.
  """
  mechanism = statement['mechanism']
  name = mechanism['name']
  yield Fact('mechanism', f'{name}: {_words(name)}')
  site = site_of(statement)
  if site is not sites.SERVER:
    yield Fact('noise is made by', site_terms_of(statement).made_by)
  yield Fact('strategy', Code(mechanism['strategy']), 'kind of the matrix C')
  yield Fact('strategy checksum', Code(mechanism['strategy_checksum']))
  yield from ran
  yield from _option_facts(mechanism)
  of_what = 'sizes of this part' if 'part' in mechanism else 'model sizes'
  yield Fact(
    'noise memory',
    f'{mechanism["noise_buffers"]} {of_what}',
    'what the server keeps of the noise from round to round',
  )
  noise = noise_of(statement)
  z = site_terms_of(statement).z
  whose = '' if noise.is_integer or z is None else f' (z: {z})'
  yield Fact(
    f'clip norm (L{noise.order})',
    marked(statement, 'clip_norm', _clip_norm(statement)),
    _CLIPPED[noise.order],
  )
  yield from before_clipping(statement['run'])
  yield Fact(
    'noise multiplier',
    rounding.exact(mechanism['noise_multiplier']),
    f'noise relative to the clip norm: {terms.NOISES[noise.name].scale} over the clip '
    f'norm{whose}. It says how loud the noise is',
  )
  if mechanism['server_noise_multiplier'] is not None:
    yield Fact(
      'noise multiplier of the server',
      rounding.exact(mechanism['server_noise_multiplier']),
      "standard deviation of an entry of the server's noise of a round's sum, over the "
      'clip norm. It hides clients in the sums, and is in what else holds alone',
    )
  if mechanism['adaptive_clipping'] is not None:
    yield from _adaptive_facts(mechanism['adaptive_clipping'])
  private = 'It says how private the mechanism is'
  if site.is_simulation:
    private = 'It says how private what is simulated would be; here nothing is'
  exact = 'exact' if mechanism['sensitivity_kind'] == 'exact' else 'an upper bound'
  yield Fact(
    'sensitivity',
    f'{rounding.up(mechanism["sensitivity"], 6)} clip norms '
    f'(squared: {rounding.up(mechanism["sensitivity_squared"], 6)}), {exact}',
    _sensitivity_meaning(statement),
  )
  yield Fact(
    'effective noise multiplier',
    rounding.down(mechanism['effective_noise_multiplier']),
    f'noise relative to the sensitivity: noise multiplier over sensitivity. {private}',
  )
  yield Fact(
    'error of the sums over rounds',
    f'{rounding.up(mechanism["rmse"])} clip norms in the root mean square over rounds, '
    f'{rounding.up(mechanism["max_error"])} at most',
    'standard deviation of the noise in an entry of the sum of all rounds so far: '
    f'what privacy costs{_error_of(statement)}',
  )
  if mechanism['integer_noise'] is not None:
    yield from _integer_facts(mechanism['integer_noise'])


def facts_of_all(statement: dict[str, Any]) -> Iterator[Fact]:
  """Where the noise is from, which code trained, and what was asked for.

  Args:
    statement: As `statement.build` returned it.
  """
  mechanism, run = statement['mechanism'], statement['run']
  yield Fact(
    'source of the noise',
    marked(statement, 'noise_source', mechanism['noise_source']),
    'who can predict the noise can take it away',
  )
  generators = ledger_words.generators(run)
  if generators:
    yield Fact('generator of the noise', generators, 'as the ledger says')
  if statement['code_version'] is not None:
    yield Fact(
      'code that trained',
      marked(statement, 'code_version', statement['code_version']),
      'the version of what clipped, summed and added the noise',
    )
  if statement['target'] is not None:
    target = statement['target']
    yield Fact(
      'target',
      f'epsilon {rounding.exact(target["epsilon"])}; {_FOUND[target["found"]]}',
      'what was asked for',
    )


def _words(name: str) -> str:
  """What a mechanism's noise is like, with the papers that it is from."""
  if name in noises.OTHERS:
    return _with_papers(terms.NOISES[name].words, terms.NOISES[name].citations)
  kind = registry.KINDS.get(name)
  return _FROM_FILE if kind is None else _with_papers(kind.words, kind.citations)


def _with_papers(words: str, citations: tuple[str, ...]) -> str:
  papers = ', '.join(citations)
  return f'{words} ({papers})' if papers else words


def _option_facts(mechanism: dict[str, Any]) -> Iterator[Fact]:
  kind = registry.kind_of(mechanism['strategy'])
  for option in () if kind is None else kind.options:
    value = mechanism.get(option.name)
    if value is not None:
      yield Fact(option.title, option.written.format(value), option.meaning)
  for name, each in terms.OPTIONS.items():
    if mechanism.get(name) is not None:
      yield Fact(each.title, f'{mechanism[name]}', each.meaning)


def _clip_norm(statement: dict[str, Any]) -> str:
  mechanism, run = statement['mechanism'], statement['run']
  in_ledger = '' if run is None else ledger_words.clip_norms(run['clip_norms'])
  if mechanism['adaptive_clipping'] is not None:
    return f"follows a quantile of the clients' norms{in_ledger and f': {in_ledger}'}"
  if in_ledger:
    return in_ledger
  if mechanism['clip_norm'] is None:
    return 'not stated; the guarantee holds for any'
  return rounding.exact(mechanism['clip_norm'])


def before_clipping(run: Optional[dict[str, Any]]) -> Iterator[Fact]:
  """What a run did with an update before it was clipped, if it did anything.

  Args:
    run: Of a statement.
  """
  before = None if run is None else run['before_clipping']
  if before is None:
    return
  same = 'before clipping, so that the sensitivity is the same'
  if before['zeroing_norm'] is not None:
    yield Fact(
      'largest update',
      f'of L2 norm {rounding.exact(before["zeroing_norm"])}',
      f'one that is longer counts as zeros, {same}',
    )
  if before['coordinate_bound'] is not None:
    yield Fact(
      'largest coordinate',
      rounding.exact(before['coordinate_bound']),
      f'larger ones are cut to it, {same}',
    )


def _adaptive_facts(adaptive: dict[str, Any]) -> Iterator[Fact]:
  yield Fact(
    'noise multiplier of the updates',
    rounding.exact(adaptive['values_noise_multiplier']),
    'the clip norm is estimated privately; the noise multiplier above covers the '
    'estimate and the updates together, the updates themselves get this larger one '
    '(arXiv:1905.03871, Theorem 1)',
  )
  yield Fact(
    'noise of the clip norm',
    f'{rounding.exact(adaptive["clipped_count_stddev"])} clients',
    'standard deviation of the noise in the number of clients whose updates are '
    'shorter than the clip norm',
  )


def _sensitivity_meaning(statement: dict[str, Any]) -> str:
  which = 'in all its planned rounds together'
  if is_sampled(statement):
    together = 'round by round' if composes(statement) else 'for all rounds together'
    which = f'in one round; sampling is accounted for {together}'
  twice = ''
  if statement['definition']['adjacency']['name'] == 'replace_one':
    twice = ". Twice that of C, as one client's part goes and another's comes"
  what = 'what it sends' if site_of(statement).is_of_client else 'C X'
  rounded = ''
  if statement['mechanism']['integer_noise'] is not None:
    rounded = ', after its contribution was rounded to the grid'
  return f'the most by which one client can change {what}{rounded}, {which}{twice}'


def _error_of(statement: dict[str, Any]) -> str:
  """Of how many clients' noise the error is, where they make it."""
  site, mechanism = site_of(statement), statement['mechanism']
  if mechanism['error_of'] == 'client' and site.adds_on_server:
    return (
      '. Here with the noise of one client a round, and that of the server; more '
      'clients add more'
    )
  if mechanism['error_of'] == 'client':
    return '. Here that of the noise of one client a round: m of them add sqrt(m) times'
  if site is sites.SERVER:
    return ''
  fewest = mechanism[noises.MIN_CLIENTS]
  and_server = ' and that of the server' if site.adds_on_server else ''
  return (
    f'. Here with the noise of {fewest} clients{and_server} in each round; more add '
    'more'
  )


def _integer_facts(integers: dict[str, Any]) -> Iterator[Fact]:
  yield Fact(
    'grid',
    f'{rounding.down(integers["steps"], 3)} steps in a clip norm',
    'what clients send are whole numbers of such steps',
  )
  yield Fact(
    "a client's share of the noise",
    f'{rounding.down(integers["local_stddev"], 3)} steps',
    'its standard deviation',
  )
  yield Fact(
    'cost of rounding',
    f'contributions up to {rounding.up(integers["rounding_factor"], 6)} times as long, '
    f'and {rounding.up(integers["rounding_error"])} clip norms at most of error',
    'by chance to one of the two next whole numbers, so that the mean is kept. The '
    'sensitivity has the first; the second is the standard deviation in an entry of a '
    "round's sum, beside the noise",
  )
  yield Fact(
    'beta',
    rounding.exact(integers['beta']),
    'probability at most that a client rounds again, as its whole numbers came out '
    'longer than the bound that the sensitivity has. All that is sent keeps the bound: '
    'this exempts nothing from the guarantee',
  )
  yield Fact(
    'sums that wrap around',
    f'in a round of {integers["clients"]} clients with a probability of at most '
    f'{rounding.up(integers["wrap_probability"])}',
    'then entries are off by a power of two, and the result of the round is spoilt. It '
    'costs no privacy: what wraps is a function of the sum',
  )


def by_part(statement: dict[str, Any]) -> list[dict[str, Any]]:
  """The statement, or with a joint mechanism what it says of each part."""
  parts = statement['mechanism'].get('parts')
  return (
    [statement] if parts is None else [{**statement, 'mechanism': p} for p in parts]
  )


def noise_of(statement: dict[str, Any]) -> noises.Noise:
  """The kind of noise."""
  return noises.of_mechanism(statement['mechanism']['name'])


def site_of(statement: dict[str, Any]) -> sites.Site:
  """Where the noise is made."""
  return sites.SITES[statement['mechanism']['noise_site']]


def site_terms_of(statement: dict[str, Any]) -> terms.SiteTerms:
  """What is said of where the noise is made."""
  return terms.SITES[statement['mechanism']['noise_site']]


def principle(statement: dict[str, Any]) -> str:
  """What clients and server do, in general."""
  if 'parts' in statement['mechanism']:
    return _principle_of_parts(by_part(statement))
  noise = noise_of(statement)
  name = _capitalized(noise)
  said = site_terms_of(statement).principle
  if said is not None:
    return said.format(noise=name)
  return _MATRIX_MECHANISM if noise.is_gaussian else _INDEPENDENT.format(name)


def _principle_of_parts(statements: list[dict[str, Any]]) -> str:
  """What is done with parts, those with the same kind of noise together."""
  by_noise: dict[noises.Noise, list[str]] = {}
  for each in statements:
    by_noise.setdefault(noise_of(each), []).append(each['mechanism']['part'])
  said = []
  for noise, names in by_noise.items():
    to = ' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))
    said.append(
      _JOINT_MATRIX.format(to)
      if noise.is_gaussian
      else _JOINT_INDEPENDENT.format(_capitalized(noise), to)
    )
  return f'{_JOINT}: {"; and ".join(said)}.'


def _capitalized(noise: noises.Noise) -> str:
  return ' '.join(word.capitalize() for word in noise.name.split('_'))


def is_sampled(statement: dict[str, Any]) -> bool:
  """Whether the guarantee rests on sampling."""
  return schemas.is_sampled(schemas.of_report(statement['participation']))


def composes(statement: dict[str, Any]) -> bool:
  """Whether what rounds cost adds up."""
  return schemas.kind_of(schemas.of_report(statement['participation'])).composes


def marked(statement: dict[str, Any], fact: str, text: str) -> str:
  """What a report says of a fact, and whether anything but a word stands for it."""
  if statement['provenance'][fact] == provenance.STATED:
    return f'{text} ({provenance.MARK})'
  return text

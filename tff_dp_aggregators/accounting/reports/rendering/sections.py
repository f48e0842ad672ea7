"""What a report says: a statement put into sentences, facts, tables and plots.

After a summary for readers who never saw this package, the order is that of section 5.3
of "How to DP-fy ML" (arXiv:2303.00654). Every term is explained where it first stands.
Nothing is computed here that a guarantee rests on: the numbers are the statement's.
"""

from collections.abc import Iterator
from typing import Any, Optional

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import how_to_verify
from tff_dp_aggregators.accounting.reports.rendering import joint_section
from tff_dp_aggregators.accounting.reports.rendering import ledger_words
from tff_dp_aggregators.accounting.reports.rendering import mechanism_section
from tff_dp_aggregators.accounting.reports.rendering import nbafl_document
from tff_dp_aggregators.accounting.reports.rendering import other_guarantees_section
from tff_dp_aggregators.accounting.reports.rendering import without_guarantee
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

_TITLE = 'Privacy report'
_EPSILON_AND_DELTA = (
  'Epsilon limits by which factor, e^epsilon, one client can make any outcome more '
  'likely or less: smaller is more private, and 0 would hide a client altogether. '
  'Delta is the probability exempt from that limit; it should be far below one over '
  'the number of clients.'
)
_ROUNDING = (
  'Printed numbers are rounded to the unfavourable side: epsilon, mu, rho, sensitivity '
  'and error up, the effective noise multiplier down. What was chosen or found is '
  'printed with all its digits. The JSON report has those of all numbers.'
)
_PROSE = (document.Paragraph, document.Items)
# What an observer wants to tell, and the two answers.
_QUESTIONS = {
  'zero_out': (
    'whether the contributions of one client were used or replaced by zeros',
    'clients whose contributions were replaced',
    'those whose contributions were used',
  ),
  'add_or_remove': (
    'whether one client was among those that trained',
    'clients that were not',
    'those that were',
  ),
  'replace_one': (
    'which of two sets of data one client had',
    'clients that had the first',
    'those that had the second',
  ),
}


def of_statement(statement: dict[str, Any]) -> document.Document:
  """The report of a statement.

  Args:
    statement: As `statement.build`, `compose` or `build_without_privacy` returned it,
      or as read from a JSON report.
  """
  if statement['mechanism'] is None:
    return without_guarantee.document_of(_TITLE, statement)
  if nbafl_report.is_one(statement):
    return nbafl_document.document_of(_TITLE, statement)
  return document.Document(
    _TITLE,
    _headline(statement),
    statement['guarantee']['epsilon'] is not None,
    tuple(_summary(statement)),
    (
      _definition(statement),
      *(_composition(statement) if statement['parts'] else _of_a_run(statement)),
      _accounting(statement),
      *other_guarantees_section.sections(statement),
      *nbafl_document.sections_of_run(statement),
      how_to_verify.section(statement),
      *_parts(statement),
    ),
    tuple(statement.get('warnings', ())),
    _condition(statement),
  )


def _condition(statement: dict[str, Any]) -> str:
  """What the guarantee needs that is stated nowhere: that limits are kept."""
  if statement['guarantee']['epsilon'] is None:
    return ''
  for _, run in _runs(statement):
    participation = run['participation']
    caps = (participation['enforced_by'], participation['cap_enforced_by'])
    if inputs_lib.NOT_STATED in caps:
      return (
        'It holds only if something keeps clients to what is said below of their '
        'participation; nobody states what does.'
      )
  return ''


def _headline(statement: dict[str, Any]) -> str:
  guarantee = statement['guarantee']
  if guarantee['epsilon'] is None:
    if _is_simulation(statement):
      return (
        'none (a simulation of local differential privacy: the server adds the noise, '
        'and sees what clients send without any).'
      )
    if statement['mechanism']['noise_multiplier'] == 0:
      return 'none (the noise is zero).'
    return (
      f'none (epsilon is infinite at delta = {rounding.exact(guarantee["delta"])}).'
    )
  return (
    f'{_epsilon_delta(guarantee)} {_kind(statement)}differential privacy for each '
    f'client, {_of_what(statement)}.'
  )


def _is_simulation(statement: dict[str, Any]) -> bool:
  """Whether the noise is one that is made elsewhere, without the guarantee of that."""
  return any(
    mechanism_section.site_of(part).is_simulation for _, part in _runs(statement)
  )


def _kind(statement: dict[str, Any]) -> str:
  """Local or distributed, if it is."""
  if any(_other_releases(statement)):
    return ''  # Who is trusted with those, nobody states.
  found = {mechanism_section.site_terms_of(part).kind for _, part in _runs(statement)}
  (kind,) = found if len(found) == 1 else ('',)
  return kind and f'{kind} '


def _epsilon_delta(guarantee: dict[str, Any]) -> str:
  epsilon, delta = rounding.up(guarantee['epsilon']), rounding.exact(guarantee['delta'])
  return f'(epsilon, delta) = ({epsilon}, {delta})'


def _of_what(statement: dict[str, Any]) -> str:
  """What the guarantee is about, after a comma."""
  if statement['parts']:
    number = len(statement['parts'])
    runs = f'all {number} runs' if number > 1 else 'the run'
    others = len(statement.get('other_releases', ()))
    besides = f' and {others} other release{"s" * (others > 1)}' if others else ''
    return f'in {runs}{besides} together'
  run, planned = statement['run'], statement['mechanism']['num_rounds']
  number = planned if run is None else run['rounds_completed']
  stopped = ''
  if _is_cut_short(statement):
    later = rounding.up(run['epsilon_planned'])
    stopped = (
      ', if no result of clients decided when to stop; where released ones did, '
      f'epsilon = {later}'
    )
  if number == 1:
    return f'in the one round that {"is planned" if run is None else "ran"}{stopped}'
  log = statement['participation']['source']
  if run is None and log is not None:
    return f'in all {log.get("num_rounds", number)} rounds of the log together'
  if run is None:
    return f'in all {number} planned rounds together'
  return f'in the {number} rounds that ran, together{stopped}'


def _summary(statement: dict[str, Any]) -> Iterator[document.Block]:
  definition = statement['definition']
  if statement['guarantee']['epsilon'] is None:
    if _is_simulation(statement):
      yield document.Paragraph(f'{_sentence(statement["setting"])}.')
      simulated = statement['mechanism']['simulated_epsilon']
      if simulated is not None:
        delta = rounding.exact(statement['guarantee']['delta'])
        yield document.Paragraph(
          'If each client added the noise itself, all its planned rounds together '
          f'would have (epsilon, delta) = ({rounding.up(simulated)}, {delta}) local '
          'differential privacy. That is what is simulated, and nobody has it here.'
        )
    yield document.Paragraph(without_guarantee.NOTHING)
    return
  pure = statement['guarantee']['pure_epsilon']
  if pure:  # It is 0 of nothing.
    yield document.Paragraph(
      f'With delta = 0 it is epsilon = {rounding.up(pure)}: pure differential privacy, '
      'which Laplace noise has.'
    )
  yield from nbafl_document.asked_for(statement)
  if _is_cut_short(statement):
    run, guarantee = statement['run'], statement['guarantee']
    yield document.Items(
      f'This run stopped after {run["rounds_completed"]} of {run["rounds_planned"]} '
      'rounds. Two numbers hold, by what the decision to stop rested on:',
      (
        'If on nothing that was computed from clients (a fixed time, a failure): '
        f'epsilon = {rounding.up(guarantee["epsilon"])}, that of the rounds that ran. '
        'What follows is of this number.',
        'If on what was released (the models, how well they do on public test data): '
        f'epsilon = {rounding.up(run["epsilon_planned"])}, that of all rounds planned, '
        'whatever the rule was. The time of the stop is then a result as well, which '
        'the number of the rounds that ran does not cover.',
        "If on exact numbers of clients' data, such as training losses: neither. The "
        'decision itself tells something of them, which no noise hides.',
      ),
    )
  yield document.Paragraph(_meaning(statement))
  yield document.Paragraph(_EPSILON_AND_DELTA)
  yield from other_guarantees_section.usual_local(statement)
  yield document.Items('It rests on these assumptions:', tuple(_assumptions(statement)))
  yield document.Items('It covers:', tuple(definition['covered']))
  yield document.Items(
    'It does not cover:',
    (*definition['not_covered'], *without_guarantee.tuning_items(statement)),
  )


def _is_cut_short(statement: dict[str, Any]) -> bool:
  run = statement['run']
  return run is not None and run['rounds_completed'] < run['rounds_planned']


def _meaning(statement: dict[str, Any]) -> str:
  question, without, with_ = _QUESTIONS[statement['definition']['adjacency']['name']]
  recognised = statement['guarantee']['recognised']
  return (
    f'In plain words: somebody who sees {_seen(statement)}, and knows everything '
    f'else, wants to tell {question}. If they may suspect wrongly '
    f'{rounding.exact(100 * recognised["false_alarms"])}% of the {without}, they '
    f'recognise at most {rounding.percent(recognised["share"])} of {with_}.'
  )


def _seen(statement: dict[str, Any]) -> str:
  runs: dict[str, list[str]] = {}
  for number, part in _runs(statement):
    seen = mechanism_section.site_terms_of(part).seen
    if schemas.is_sampled(schemas.of_report(part['participation'])):
      seen = f'{seen}, but not who was drawn'
    runs.setdefault(seen, []).append(number)
  if len(runs) == 1:
    return next(iter(runs))
  # Who sees what a client sends in one run need not see it in another.
  return '; and '.join(
    f'of run {" and ".join(numbers)} {seen}' for seen, numbers in runs.items()
  )


def _assumptions(statement: dict[str, Any]) -> Iterator[str]:
  yield f'{_sentence(statement["setting"])}.'
  for each in _other_releases(statement):
    neighbours = each['adjacency'] or 'not stated for which, and taken to be these'
    yield (
      f'Another release, {each["name"]}: epsilon = {rounding.exact(each["epsilon"])} '
      f'and delta = {rounding.exact(each["delta"])} of all that it tells of one '
      f'client (neighbours: {neighbours}), by randomness of its own. This is stated, '
      'and not verified.'
    )
  for number, part in _runs(statement):
    run = f' in run {number}' if number else ''
    participation, mechanism = part['participation'], part['mechanism']
    schema = schemas.of_report(participation)
    yield (
      f'Participation{run}: {schemas.kind_of(schema).sentence(schema)}. '
      f'{_sentence(_what_enforces(participation))}: '
      f'{mechanism_section.marked(part, "enforced_by", participation["enforced_by"])}.'
      f'{_cap_enforced(part)}'
    )
    source = mechanism_section.marked(part, 'noise_source', mechanism['noise_source'])
    generators = ledger_words.generators(part['run'])
    generator = f' Its generator: {generators}.' if generators else ''
    yield f'Noise{run} that nobody can predict. Its source: {source}.{generator}'
    for assumption in mechanism_section.site_terms_of(part).assumptions:
      text = assumption.format(**mechanism)
      yield f'{f"Run {number}: " if number else ""}{text}.'
    if _varies_without_paying(part):
      yield (
        f'Clip norms{run} that changed from round to round but were chosen without '
        "clients' data, or only from what had been released: the mechanism is not one "
        'that pays for adaptive clipping.'
      )
    if _is_cut_short(part):
      yield (
        f'The decision to stop early{run} depended on nothing that was computed from '
        'clients; if on what had been released, epsilon of the whole plan holds.'
      )


def _other_releases(statement: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """What is composed as it is stated, in the parts of a composition as well."""
  yield from statement.get('other_releases', ())
  for part in statement['parts']:
    yield from _other_releases(part)


def _what_enforces(participation: dict[str, Any]) -> str:
  """What the text in `enforced_by` is about."""
  if schemas.is_sampled(schemas.of_report(participation)):
    return 'what enforces the sampling'
  return 'what enforces the separation'


def _cap_enforced(statement: dict[str, Any]) -> str:
  """What enforces the cap, as a sentence after another; nothing without a cap."""
  participation = statement['participation']
  if participation['assumed_at_most'] is None:
    return ''
  by = mechanism_section.marked(
    statement, 'cap_enforced_by', participation['cap_enforced_by']
  )
  return f' What enforces the limit of {participation["assumed_at_most"]}: {by}.'


def _varies_without_paying(statement: dict[str, Any]) -> bool:
  """Whether clip norms changed though nothing is paid for adapting them."""
  run, mechanism = statement['run'], statement['mechanism']
  if run is None or mechanism['adaptive_clipping'] is not None:
    return False
  # Of parts, each line of the ledger has the same ones, or it is refused.
  return run['clip_norms']['smallest'] != run['clip_norms']['largest']


def _sentence(text: str) -> str:
  return text[:1].upper() + text[1:]


def _runs(
  statement: dict[str, Any], number: str = ''
) -> Iterator[tuple[str, dict[str, Any]]]:
  """The statements of single runs, with numbers such as 2 or 2.1 if they are parts."""
  if not statement['parts']:
    yield number, statement
  for index, part in enumerate(statement['parts'], start=1):
    yield from _runs(part, f'{number}.{index}' if number else f'{index}')


def _definition(statement: dict[str, Any]) -> document.Section:
  definition = statement['definition']
  facts = (
    Fact('setting', statement['setting'], 'who is trusted with what'),
    Fact('privacy unit', definition['privacy_unit'], 'whose privacy it is'),
    Fact(
      'adjacency',
      definition['adjacency']['meaning'],
      'which changes of the data are hidden',
    ),
    Fact('outputs', definition['outputs'], 'what the adversary sees'),
  )
  return document.Section('Setting and definition', (document.Facts(facts),))


def _of_a_run(statement: dict[str, Any]) -> tuple[document.Section, ...]:
  if 'parts' in statement['mechanism']:
    return (*joint_section.sections(statement), _participation(statement))
  return mechanism_section.section(statement), _participation(statement)


def _composition(statement: dict[str, Any]) -> tuple[document.Section, ...]:
  rows = []
  for number, part in enumerate(statement['parts'], start=1):
    epsilon = rounding.up(part['guarantee']['epsilon'])
    rows.append((f'{number}', part['mechanism']['name'], _of_what(part), epsilon))
  for each in statement.get('other_releases', ()):
    spent = f'{rounding.up(each["epsilon"])} at {rounding.exact(each["delta"])}'
    rows.append(('-', each['name'], 'another release, as it is stated', spent))
  intro = (
    'A client may take part in all of these runs, and an adversary may put together '
    'what it learns from each. So they are accounted for together. This holds if the '
    'noise of each is drawn independently, never from the same seed or key, and with '
    'sampling the clients as well.'
  )
  table = document.Table(('run', 'mechanism', 'what ran', 'epsilon alone'), tuple(rows))
  principles = dict.fromkeys(
    mechanism_section.principle(part) for _, part in _runs(statement)
  )
  blocks: tuple[document.Block, ...] = (
    document.Paragraph(intro),
    table,
    *(document.Paragraph(each) for each in principles),
  )
  return (document.Section('Runs', blocks),)


def _parts(statement: dict[str, Any]) -> Iterator[document.Section]:
  """The runs of a composition; what holds for all of them stands above."""
  if not statement['parts']:
    return
  for number, part in _runs(statement):
    others = (
      *other_guarantees_section.sections(part),
      *nbafl_document.sections_of_run(part),
    )
    for section in (*_of_a_run(part), _accounting(part), *others):
      blocks = tuple(b for b in section.blocks if not isinstance(b, _PROSE))
      yield document.Section(f'Run {number}: {section.title.lower()}', blocks)


def _participation(statement: dict[str, Any]) -> document.Section:
  participation = statement['participation']
  schema = schemas.of_report(participation)
  facts = [Fact('assumption', participation['assumption'])]
  for fact in schemas.kind_of(schema).facts(schema):
    exact = fact.value if isinstance(fact.value, str) else rounding.exact(fact.value)
    facts.append(Fact(fact.term, exact, fact.meaning))
  sampled = schemas.is_sampled(schema)
  facts.append(
    Fact(
      'sampling enforced by' if sampled else 'separation enforced by',
      mechanism_section.marked(statement, 'enforced_by', participation['enforced_by']),
      'what makes sure that the assumption holds',
    )
  )
  if participation['assumed_at_most'] is not None:
    facts.append(
      Fact(
        f'at most {participation["assumed_at_most"]} enforced by',
        mechanism_section.marked(
          statement, 'cap_enforced_by', participation['cap_enforced_by']
        ),
        'what makes sure of the assumption of its own',
      )
    )
  if participation['source'] is not None:
    facts += _source_facts(participation)
  intro = (
    'The numbers rest on this; a client for which it does not hold has less privacy.'
  )
  blocks = (document.Paragraph(intro), document.Facts(tuple(facts)))
  return document.Section('Participation', blocks)


def _source_facts(participation: dict[str, Any]) -> Iterator[Fact]:
  """What a round log says, but for what stands above already."""
  source = dict(participation['source'])
  source.update(source.pop('waiting', None) or {})
  planned, occurred = source.pop('planned', None), source.pop('occurred', None)
  if planned is not None:
    cap = planned['max_participations']
    at_most = '' if cap is None else f', at most {cap} of them'
    yield Fact(
      'planned limits',
      f'rounds of a client at least {planned["min_separation"]} apart{at_most}',
      'not kept, and accounted for as the log shows'
      if planned['broken']
      else 'kept by the log, and what the guarantee is of',
    )
  if occurred is not None:
    yield Fact(
      'what occurred',
      f'epsilon = {rounding.up(occurred["epsilon"])} at delta = '
      f'{rounding.exact(occurred["delta"])}',
      'of the participations in the log alone, by the client with the largest one. It '
      'depends on who took part when, and is no guarantee; that is of all that the '
      'limits allow',
    )
  for name, value in _flat(source):
    if participation.get(name) != value:
      yield Fact(f'round log: {name.replace("_", " ")}', _written(value))


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
  """The values of a nested dict, without those that say nothing."""
  for key, value in values.items():
    if isinstance(value, dict):
      yield from ((f'{key}: {name}', each) for name, each in _flat(value))
    elif value is not None and value != []:
      yield key, value


def _written(value: Any) -> str:
  if isinstance(value, list):
    sentences = all(isinstance(each, str) for each in value)
    return (' ' if sentences else ', ').join(_written(each) for each in value)
  return rounding.exact(value) if isinstance(value, float) else str(value)


def _accounting(statement: dict[str, Any]) -> document.Section:
  guarantee = statement['guarantee']
  blocks: list[document.Block] = [
    document.Paragraph(_how_composed(statement)),
    _by_accountant(guarantee),
  ]
  if guarantee['epsilon'] is not None:
    if len(guarantee['accountants']) > 1:
      blocks.extend(_why_they_differ(statement))
    if guarantee['gdp_mu'] is not None:
      blocks.append(document.Facts(tuple(_other_terms(guarantee))))
    blocks.append(_by_delta(statement))
    blocks.append(document.Paragraph(_ROUNDING))
  plots = tuple(_plots(statement))
  if plots:
    blocks.append(document.Plots(plots))
  return document.Section('Accounting', tuple(blocks))


def _by_accountant(guarantee: dict[str, Any]) -> document.Table:
  chosen = guarantee['accountant']
  rows = tuple(
    (
      _label(each) + (' (stated above)' if each['name'] == chosen else ''),
      rounding.up(each['epsilon'], 6),
      each['kind'],
    )
    for each in guarantee['accountants']
  )
  delta = rounding.exact(guarantee['delta'])
  return document.Table(
    ('accountant', f'epsilon at delta = {delta}', 'what it is'), rows
  )


def _label(listed: dict[str, Any]) -> str:
  """An accountant's name, and whose bound it states if not its own."""
  other = listed['instead']
  return terms.label(listed['name'], other and accountants.Instead(**other))


def _by_delta(statement: dict[str, Any]) -> document.Table:
  guarantee = statement['guarantee']
  chosen = guarantee['accountant']
  rows = [
    (
      rounding.exact(point['delta']),
      rounding.up(point['epsilon'], 6)
      + ('' if point['accountant'] == chosen else f' ({point["accountant"]})'),
    )
    for point in guarantee['epsilon_by_delta']
  ]
  if guarantee['pure_epsilon'] is not None:
    rows.append(('0', f'{rounding.up(guarantee["pure_epsilon"], 6)} (the sum of all)'))
  header = ('delta', f'epsilon ({_by(chosen, statement)})')
  return document.Table(header, tuple(rows))


def _by(accountant: Optional[str], statement: dict[str, Any]) -> str:
  """By whom an epsilon is, where `exact` alone would say that it is."""
  if accountant == accountants.EXACT and statement_lib.is_bound(statement):
    return 'exact, of an upper bound of the sensitivity'
  return f'{accountant}'


def _how_composed(statement: dict[str, Any]) -> str:
  if statement.get('other_releases'):
    parts = statement['parts']
    runs = parts[0] if len(parts) == 1 else dict(statement, other_releases=[])
    return (
      f'{_how_composed(runs)} What other releases state is added to that: their '
      'deltas are taken from delta, at what is left the accountants state epsilon of '
      'the runs, and to that the epsilons are added (basic composition; Dwork and '
      'Roth 2014, theorem 3.16).'
    )
  runs = [part for _, part in _runs(statement)]
  if not all(mechanism_section.composes(part) for part in runs):
    return (
      'In which rounds a client is, is drawn for all of them together or depends on '
      'those before, and nobody learns it; so an outcome of all rounds is looked at as '
      'a whole. With the client its distribution '
      'is a mixture over all that it may have drawn, without it that of noise alone, '
      'and the accountant says how hard these are to tell apart. All of it counts from '
      'the first round on.'
    )
  if any(mechanism_section.is_sampled(part) for part in runs):
    noise = ' or '.join(
      dict.fromkeys(mechanism_section.noise_of(p).name.capitalize() for p in runs)
    )
    return (
      f'A round is a {noise} mechanism on a random sample of the clients. Clients that '
      'are not drawn give nothing away, and nobody knows who was drawn; so a round '
      'spends less than without sampling. The accountants add up what the rounds spend.'
    )
  if _is_simulation(statement):
    return 'No round is private, and nothing is accounted for but that.'
  kinds = dict.fromkeys(
    mechanism_section.noise_of(part)
    for run in runs
    for part in mechanism_section.by_part(run)
  )
  costs = [cost for cost in (terms.NOISES[k.name].cost for k in kinds) if cost]
  if costs and len(kinds) > len(costs):
    costs.append(
      'What has Gaussian noise is one Gaussian mechanism in all rounds together, and '
      'is composed with that.'
    )
  if costs:
    return ' '.join(costs)
  if statement['parts']:
    number = 'mu, whose square is the sum of the squares of those of the runs'
  elif 'parts' in statement['mechanism']:
    number = 'mu, whose square is the sum of the squares of those of the parts'
  else:
    number = 'mu, the sensitivity over the noise multiplier'
    if _is_cut_short(statement):
      number += ' (here the sensitivity for the rounds that ran)'
  bound = ''
  if statement_lib.is_bound(statement):
    bound = ' The sensitivity is known by an upper bound, so epsilon is one as well.'
  if 'parts' in statement['mechanism'] and bound:
    bound = (
      ' Each part counts with those rounds of a client that are the worst for it. '
      'These need not be the same for all parts, so this mu is an upper bound, and '
      'epsilon is one as well.'
    )
  return (
    f'All {"runs" if statement["parts"] else "rounds"} together are one Gaussian '
    'mechanism. Its privacy curve, epsilon for every delta, is known exactly '
    f'(arXiv:1805.06530) and depends on one number, {number}.{bound}'
  )


def _why_they_differ(statement: dict[str, Any]) -> tuple[document.Block, ...]:
  kind = 'bound' if statement_lib.is_bound(statement) else 'exact'
  kept = tuple(
    terms.of_accountant(each['name']).of_sensitivity(kind).keeps
    for each in statement['guarantee']['accountants']
  )
  return (
    document.Paragraph(
      'All of these are valid for the same noise; an accountant that keeps less of the '
      'mechanism has to state a larger epsilon. Compare a published figure with the '
      'row of the accountant it was computed with.'
    ),
    document.Items('What they keep:', kept),
  )


def _other_terms(guarantee: dict[str, Any]) -> Iterator[Fact]:
  yield Fact(
    'mu',
    rounding.up(guarantee['gdp_mu'], 6),
    'Gaussian differential privacy (arXiv:1905.02383): telling whether a client took '
    'part is as hard as telling one draw of N(0, 1) from one of N(mu, 1)',
  )
  yield Fact(
    'rho',
    rounding.up(guarantee['zcdp_rho'], 6),
    'zero-concentrated differential privacy, zCDP (arXiv:1605.02065): mu^2 / 2',
  )


def _plots(statement: dict[str, Any]) -> Iterator[document.Plot]:
  curves, guarantee = statement['curves'] or {}, statement['guarantee']
  delta = rounding.exact(guarantee['delta'])
  here = (guarantee['delta'], guarantee['epsilon'])
  yield from _plot(
    curves.get('epsilon_by_delta'),
    title='Epsilon against delta',
    caption='Each point of the curve is a guarantee of the same mechanism.',
    x_label='delta',
    y_label='epsilon',
    log_x=True,
    mark=here,
  )
  spent = curves.get('epsilon_by_round')
  spent_by = curves.get('epsilon_by_round_accountant')
  other = ''
  if spent_by != guarantee['accountant']:
    other = f' Computed by {spent_by}, the guarantee by {guarantee["accountant"]}.'
  yield from _plot(
    spent,
    title='Epsilon against rounds',
    caption=f'What has been spent after so many rounds.{other}{_steps(statement)}',
    x_label='rounds',
    y_label=f'epsilon at delta = {delta} ({_by(spent_by, statement)})',
    mark=tuple(spent[-1]) if spent else None,
  )
  yield from _plot(
    curves.get('error_by_round'),
    title='Error against rounds',
    caption='Standard deviation of the noise in an entry of the sum of all rounds so '
    'far. Lower is more accurate.',
    x_label='rounds',
    y_label='error (clip norms)',
  )
  yield from _plot(
    [point for point in curves.get('noise_correlation') or [] if point[0] > 0],
    title='Noise correlation',
    caption="Of the last round's noise with that of earlier rounds. Below zero it "
    'takes away noise that was added before; all zero is independent noise.',
    x_label='rounds earlier',
    y_label='correlation',
    is_bars=True,
  )


def _steps(statement: dict[str, Any]) -> str:
  """Why epsilon jumps in some rounds, if it does."""
  if statement['parts']:
    return ''
  separation = statement['participation'].get('min_separation')
  if separation in (None, 1):
    return ''
  return (
    ' It jumps where one client can have taken part once more, every '
    f'{separation} rounds at most.'
  )


def _plot(
  points: Optional[list[list[float]]], **options: Any
) -> Iterator[document.Plot]:
  if points:
    yield document.Plot(points=tuple((x, y) for x, y in points), **options)

"""What several runs spent together: statements from any sources, composed.

A client may take part in all of them. No run may count twice, which its ledger tells,
or its round log and population; a plan has neither, and counts as often as it is given.
Nor may noise of two runs be known to come from one seed, or from one key.
"""

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import guarantees
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms

_TEXTS = terms.sentences('statement.j2')
# Events of rounds for which clients are drawn by themselves, as files name them.
_DRAWN_BY_THEMSELVES = (
  dp_accounting.PoissonSampledDpEvent.__name__,
  events.TruncatedPoissonDpEvent.__name__,
)
_OF_ONE_RUN = (
  ': they are of one run, or of two that went on from one state with the same noise. '
  'If one is the beginning of the other, give the longer one alone.'
)
_ONE_SEED = (
  'have their noise from the same seed, or from seeds that no noise_key_tag tells '
  'apart. Runs compose if their noise is independent: secret, or of different seeds.'
)
_DEPENDENT = ', and epsilon is for draws that are independent.'
_ONE_DRAW = f'drew their clients from the same seed{_DEPENDENT}'
_ONE_FILE = (
  'drew their clients from the same file, or from what nothing tells apart'
  f'{_DEPENDENT} Files are told apart by private.json of the run directories, seeds by '
  'sampling_tag.'
)
_SAME_SIZES = f'have cohorts of the same sizes, drawn at random{_DEPENDENT}'


class Part(NamedTuple):
  """A statement to be composed with others, as `statement` returned it."""

  name: str  # Where it comes from, for messages, such as '--ledger=ledger.jsonl'.
  statement: dict[str, Any]


def compose(
  parts: Sequence[Part],
  *,
  accountant: Optional[str] = None,
  command: Optional[str] = None,
  other_releases: Sequence[inputs_lib.OtherRelease] = (),
  ledgers: Optional[Sequence[str]] = None,
) -> dict[str, Any]:
  """The statement of several runs or phases together; of a single one, that itself.

  Curves are computed if all parts have them.

  `other_releases`: What other systems released of these clients, as it is stated.
  `ledgers`: Where those of the parts are, if not where these say.
  """
  _check_distinct(parts)
  if len(parts) == 1 and not other_releases:
    return parts[0].statement
  statements = [part for _, part in parts]
  for name, part in parts:
    mechanism = part['mechanism'] or {}
    placement = noises.PLACEMENTS.get(mechanism.get('noise_site', ''))
    if not mechanism or (placement is not None and placement.is_simulation):
      raise ValueError(
        f'{name} has no guarantee, as without a mechanism, or with noise that is of a '
        'larger cohort or simulates that of clients; with it nothing has one.'
      )
    if nbafl_report.is_one(part):
      raise ValueError(
        f'{name} is of an NbAFL plan, which has several guarantees, of examples and of '
        'clients; it stands alone.'
      )
  files = [file for part in statements for file in part['verification']['files']]
  stated = [file['path'] for file in files if file['role'] == 'ledger']
  check_not_forked(stated if ledgers is None else ledgers)
  definitions = [part['definition'] for part in statements]
  of_what = [
    (part['definition']['adjacency']['name'], part['guarantee']['delta'])
    for part in statements
  ]
  for (name, _), (adjacency, delta) in zip(parts, of_what):
    if (adjacency, delta) != of_what[0]:
      raise ValueError(
        f'what is composed needs the same adjacency and delta; {parts[0].name} has '
        f'{of_what[0][0]} and {of_what[0][1]}, {name} has {adjacency} and {delta}. '
        'Epsilons for different neighbours say nothing together; --adjacency gives a '
        'mechanism another one, where it has several.'
      )
  if not of_what:
    raise ValueError('parts must be one at least; got none.')
  adjacency, delta = of_what[0]
  relation = sampling.ADJACENCIES[adjacency]
  inputs_lib.check_releases(other_releases, delta, adjacency)
  event = dp_accounting.ComposedDpEvent(
    [*map(_event_of_part, statements), *(each.to_event() for each in other_releases)]
  )
  known_by = 'bound' if statement_lib.is_bound(*statements) else 'exact'
  total = guarantees.of_event(event, delta, relation, accountant, known_by)
  mu = total.gdp_mu or math.inf
  curves = None
  if all(part['curves'] is not None for part in statements):
    curves = model.Curves(
      epsilon_by_delta=statement_lib.by_delta(event, delta, relation, accountant),
    )
  # Towards another observer, or for other neighbours, other releases state nothing.
  others = []
  if not accountants.has_stated(event):
    others = guarantees.others_composed(statements, accountant)
  settings = _union([part['setting']] for part in statements)
  seen = _union([each['outputs'].removesuffix(_TEXTS.secret)] for each in definitions)
  outputs = '; and '.join(seen)
  if any(each['outputs'].endswith(_TEXTS.secret) for each in definitions):
    outputs += _TEXTS.secret
  return model.to_json(
    model.Composition(
      warnings=[
        f'Run {number}: {warning}'
        for number, part in enumerate(statements, start=1)
        for warning in part.get('warnings', ())
      ],
      setting=terms.in_a_line(_TEXTS.setting(settings, bool(other_releases))),
      definition=model.Definition(
        privacy_unit=definitions[0]['privacy_unit'],
        adjacency=model.NamedAdjacency(**definitions[0]['adjacency']),
        outputs=outputs + ('; and other releases' if other_releases else ''),
        covered=_union(each['covered'] for each in definitions),
        not_covered=_union(each['not_covered'] for each in definitions),
      ),
      mechanism=model.Composed(
        name='composition',
        effective_noise_multiplier=1 / mu if math.isfinite(mu) else None,
      ),
      guarantee=total,
      other_guarantees=others,
      parts=statements,
      other_releases=list(other_releases),
      curves=curves,
      software=statement_lib.software(),
      verification=model.Verification(
        command=command,
        files=[model.File(**file) for file in files],
        inputs=model.VerificationInputs(
          event=events.to_json(event),
          delta=delta,
          accountant=accountant,
          with_curves=curves is not None,
        ),
      ),
    )
  )


def _union(lists: Iterable[list[str]]) -> list[str]:
  return list(dict.fromkeys(each for items in lists for each in items))


def _event_of_part(part: dict[str, Any]) -> dp_accounting.DpEvent:
  """What a part spent, with the strategy of a mixture if the report has it."""
  inputs = part['verification']['inputs']
  event = events.from_json(inputs['event'])
  if isinstance(event, events.MixtureDpEvent) and inputs['strategy'] is not None:
    strategy = strategies.Strategy.from_json(json.dumps(inputs['strategy']))
    if strategy.checksum == event.strategy_checksum:
      return dataclasses.replace(event, strategy=strategy)
  return event


def _check_distinct(parts: Sequence[Part]) -> None:
  """Refuses a run that is given twice."""
  seen: dict[Any, str] = {}
  for name, part in parts:
    for _, run in model.runs(part):
      files = run['verification']['files'] if run['mechanism'] else ()
      by_role = {file['role']: file['sha256'] for file in files}
      if 'ledger' in by_role:
        identity = ('ledger', by_role['ledger'], None)
      elif 'round_log' in by_role:
        population = run['participation']['source']['arguments'].get('population')
        identity = ('round log', by_role['round_log'], population)
      else:
        continue
      if identity in seen:
        raise ValueError(
          f'a run is given twice, in {seen[identity]} and in {name}: the same '
          f'{identity[0]} (sha256 {identity[1]}). Give each run once.'
        )
      seen[identity] = name


class _Run(NamedTuple):
  """What tells the run of a ledger from others."""

  first: ledger_lib.LedgerEntry
  # What no two runs may share, each with what is wrong if they do.
  marks: dict[tuple[str, Any], None]
  sizes: Sequence[int]  # Clients of each round, as far as chance drew them.
  # Hashes of those of so many rounds of a file that no two draws have them by chance.
  cohorts: Sequence[str]


def check_not_forked(ledgers: Sequence[str]) -> None:
  """Checks that runs compose: their noise, and where it counts their draws, differ.

  From one key or seed two runs have the same noise, and their difference none; their
  ledgers name one key, begin alike, or have a result in common. From one seed or file
  they have the same clients: their ledgers name one, or have cohorts of the same sizes.
  """
  runs: dict[str, _Run] = {}
  for path in ledgers:
    entries = ledger_lib.read(path).entries
    if not entries:
      continue
    run = _Run(
      entries[0], _marks(entries), _drawn_sizes(entries), _cohorts(path, entries[0])
    )
    for other, before in runs.items():
      if (why := _why_one(before, run)) is not None:
        raise ValueError(f'{other} and {path} {why}')
    runs[path] = run


def _why_one(one: _Run, other: _Run) -> Optional[str]:
  """Why two ledgers may be of one run or draw; what one does not state is the same."""
  for what in other.marks:
    if what in one.marks:
      return what[0]
  both = (one.first, other.first)
  tags = {each.noise_key_tag for each in both}
  if all(each.has_seeded_noise for each in both) and (None in tags or len(tags) == 1):
    return _ONE_SEED
  if all(ledger_lib.is_drawn(each.dp_event) for each in both):
    tagged = all(each.sampling_tag is not None for each in both)
    from_files = any(each.sampling_source == ledger_lib.FILE for each in both)
    # Seeds that both name are compared above, and sizes below.
    is_told_apart = not from_files and (tagged or (one.sizes and other.sizes))
    files_differ = one.cohorts and set(one.cohorts).isdisjoint(other.cohorts)
    if not is_told_apart and not (files_differ and other.cohorts):
      return _ONE_FILE
  return _SAME_SIZES if _are_of_one_draw(one.sizes, other.sizes) else None


def _marks(entries: Sequence[ledger_lib.LedgerEntry]) -> dict[tuple[str, Any], None]:
  first = entries[0]
  line = json.dumps(dataclasses.asdict(first), sort_keys=True)
  marks: list[tuple[str, Any]] = [(f'begin with the same line{_OF_ONE_RUN}', line)]
  if first.noise_key_tag is not None and not first.has_seeded_noise:
    marks.append((f'have noise of the same key{_OF_ONE_RUN}', first.noise_key_tag))
  if first.sampling_tag is not None:
    marks.append((_ONE_DRAW, first.sampling_tag))
  results = {entry.result_checksum for entry in entries} - {None}
  marks += [(f'have the same result{_OF_ONE_RUN}', each) for each in results]
  return dict.fromkeys(marks)


def _cohorts(ledger: str, first: ledger_lib.LedgerEntry) -> Sequence[str]:
  """Hashes of cohorts of a file, where a run's private settings are there to see."""
  path = os.path.join(os.path.dirname(ledger), 'private.json')
  if first.sampling_source != ledger_lib.FILE or not os.path.exists(path):
    return ()
  with open(path, encoding='utf-8') as file:
    private = json.load(file)
  found: Sequence[str] = private['training']['schedule'].get('cohorts', ())
  return found


def _drawn_sizes(entries: Sequence[Any]) -> list[int]:
  """Clients of each round, if it drew each by itself; those of one cycle, of bins."""
  if any(entry.cohort_requested is None for entry in entries):
    return []  # Their draws are told apart by tags.
  together, _ = ledger_lib.split(entries[0].dp_event)
  if any(ledger_lib.is_allocated(each) for each in together):
    sizes = [entry.cohort_requested for entry in entries]
    cycles = range(1, len(sizes) + 1)
    return sizes[: next(c for c in cycles if sizes[c:] == sizes[: len(sizes) - c])]
  return [
    entry.cohort_requested
    for entry in entries
    if entry.event.get('type') in _DRAWN_BY_THEMSELVES
  ]


def _are_of_one_draw(sizes: Sequence[int], others: Sequence[int]) -> bool:
  """Whether sizes are alike by more than chance, which two rounds of one run tell."""
  common = min(len(sizes), len(others))
  if not common or sizes[:common] != others[:common]:
    return False
  counts = collections.Counter(sizes[:common]).values()
  by_chance = sum((count / common) ** 2 for count in counts)
  return bool(by_chance**common < 1e-9)

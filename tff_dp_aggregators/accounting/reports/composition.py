"""Composes the statements of several runs into one statement of what they spent.

A client may take part in all of them. A run that is given twice, as its ledger or its
round log and population show, is refused; a plan has neither, and counts each time. So
are runs whose noise is known to come from the same seed or key.
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
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms

_TEXTS = terms.sentences('statement.j2')
# Types of events, as in files, of rounds that draw each client independently.
_INDEPENDENT_DRAWS = (
  dp_accounting.PoissonSampledDpEvent.__name__,
  events.TruncatedPoissonDpEvent.__name__,
)
# Stated adjacencies that imply the adjacency of a report: if a client is removed, or
# replaced by a client without data, its contributions are replaced by zeros.
_IMPLYING = {'zero_out': ('zero_out', 'add_or_remove', 'replace_one')}
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
  'drew their clients from the same file, or from sources that may be the same'
  f'{_DEPENDENT} Files are told apart by private.json of the run directories, seeds by '
  'sampling_tag.'
)
_SAME_SIZES = f'have cohorts of the same sizes, drawn at random{_DEPENDENT}'


class Part(NamedTuple):
  """A statement to be composed with others, as `statement` returned it."""

  name: str  # Its source, for messages, such as '--ledger=ledger.jsonl'.
  statement: dict[str, Any]


def compose(
  parts: Sequence[Part],
  *,
  accountant: Optional[str] = None,
  command: Optional[str] = None,
  other_releases: Sequence[model.OtherRelease] = (),
) -> dict[str, Any]:
  """Returns the statement of several parts together; a single part is not changed.

  Curves are computed if all parts have them.

  `other_releases`: What other systems released about these clients, as it is stated.
  """
  _check_distinct(parts)
  if len(parts) == 1 and not other_releases:
    return parts[0].statement
  if not parts:
    raise ValueError('parts is empty; give at least one.')
  statements = [part for _, part in parts]
  pairs = []
  for name, part in parts:
    mechanism = part['mechanism'] or {}
    placement = noises.PLACEMENTS.get(mechanism.get('noise_site', ''))
    if not mechanism or (placement is not None and placement.is_simulation):
      raise ValueError(
        f'{name} has no guarantee: there is no mechanism, or the noise is that of a '
        'larger cohort or simulates that of clients. With it a composition has none.'
      )
    if model.is_plan(part):
      raise ValueError(
        f'{name} is of an NbAFL plan, which has several guarantees, of examples and of '
        'clients; it stands alone.'
      )
    adjacency, delta = (
      part['definition']['adjacency']['name'],
      part['guarantee']['delta'],
    )
    pairs.append((adjacency, delta))
    if pairs[-1] != pairs[0]:
      raise ValueError(
        f'what is composed needs the same adjacency and delta; {parts[0].name} has '
        f'{pairs[0][0]} and {pairs[0][1]}, {name} has {adjacency} and {delta}. '
        'Epsilons for different neighbours say nothing together; --adjacency gives a '
        'mechanism another one, where it has several.'
      )
  files = [file for part in statements for file in part['verification']['files']]
  check_not_forked([file['path'] for file in files if file['role'] == 'ledger'])
  definitions = [part['definition'] for part in statements]
  relation = sampling.ADJACENCIES[adjacency]
  _check_releases(other_releases, delta, adjacency)
  event = dp_accounting.ComposedDpEvent(
    [*map(_event_of_part, statements), *(each.to_event() for each in other_releases)]
  )
  sensitivity_kind = 'bound' if statement_lib.is_bound(*statements) else 'exact'
  guarantee = guarantees.of_event(event, delta, relation, accountant, sensitivity_kind)
  mu = guarantee.gdp_mu or math.inf
  curves = None
  if all(part['curves'] is not None for part in statements):
    curves = model.Curves(
      epsilon_by_delta=statement_lib.by_delta(event, delta, relation, accountant),
    )
  # Other releases state no epsilon towards other observers or for other adjacencies.
  other_guarantees = []
  if not accountants.has_stated(event):
    other_guarantees = guarantees.others_composed(statements, accountant)
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
      guarantee=guarantee,
      other_guarantees=other_guarantees,
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
  """The event of a part; a mixture gets its strategy, if the report has it."""
  inputs = part['verification']['inputs']
  event = events.from_json(inputs['event'])
  if isinstance(event, events.MixtureDpEvent) and inputs['strategy'] is not None:
    strategy = strategies.Strategy.from_json(json.dumps(inputs['strategy']))
    if strategy.checksum == event.strategy_checksum:
      return dataclasses.replace(event, strategy=strategy)
  return event


def _check_distinct(parts: Sequence[Part]) -> None:
  """Raises ValueError if a run is given twice."""
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


def _check_releases(
  releases: Sequence[model.OtherRelease], delta: float, adjacency: str
) -> None:
  """Raises ValueError if other releases cannot be composed with runs."""
  names = [release.name for release in releases]
  if len(set(names)) < len(names):
    raise ValueError(f'other releases must have names of their own; got {names}.')
  accepted = _IMPLYING.get(adjacency, (adjacency,))
  for release in releases:
    if release.adjacency not in (None, *accepted):
      raise ValueError(
        f'{release.name!r} is stated for adjacency={release.adjacency}, and the runs '
        f'are for {adjacency}, with which {" or ".join(accepted)} goes.'
      )
  deltas = sum(release.delta for release in releases)
  if not deltas < delta:
    raise ValueError(
      f'deltas of other releases sum to {deltas:g}, which leaves nothing for the runs '
      f'of delta = {delta:g}, that of all together. Give a larger --target_delta.'
    )


class _Run(NamedTuple):
  """What distinguishes the run of a ledger from other runs."""

  first: ledger_lib.LedgerEntry
  # Error messages, each with a value that no two independent runs have in common.
  marks: dict[tuple[str, Any], None]
  sizes: Sequence[int]  # Cohort sizes of the rounds in which they are random.
  # Hashes of cohorts from a file, each of enough rounds not to be equal by chance.
  cohorts: Sequence[str]


def check_not_forked(ledgers: Sequence[str]) -> None:
  """Raises ValueError if the noise or the draws of runs may not be independent.

  Runs with the same key or seed have the same noise, so their difference has none.
  Their ledgers name one key, begin with the same line, or have a result in common.
  Where epsilon relies on sampling, runs whose draws are from one seed or file have the
  same clients: their ledgers name one seed or file, or have cohorts of equal sizes.
  """
  runs: dict[str, _Run] = {}
  for path in ledgers:
    entries = ledger_lib.read(path).entries
    if not entries:
      continue
    run = _Run(
      entries[0], _marks(entries), _drawn_sizes(entries), _cohorts(path, entries[0])
    )
    for earlier_path, earlier_run in runs.items():
      if (reason := _reason_not_independent(earlier_run, run)) is not None:
        raise ValueError(f'{earlier_path} and {path} {reason}')
    runs[path] = run


def _reason_not_independent(run: _Run, other: _Run) -> Optional[str]:
  """Why two ledgers may be of one run or draw, assuming unstated values to be equal."""
  for mark in other.marks:
    if mark in run.marks:
      return mark[0]
  firsts = (run.first, other.first)
  tags = {each.noise_key_tag for each in firsts}
  if all(each.has_seeded_noise for each in firsts) and (None in tags or len(tags) == 1):
    return _ONE_SEED
  if all(ledger_lib.is_drawn(each.dp_event) for each in firsts):
    have_tags = all(each.sampling_tag is not None for each in firsts)
    from_files = any(each.sampling_source == ledger_lib.FILE for each in firsts)
    # Tags that both ledgers have were compared above; sizes are below.
    differ = not from_files and (have_tags or (run.sizes and other.sizes))
    files_differ = run.cohorts and set(run.cohorts).isdisjoint(other.cohorts)
    if not differ and not (files_differ and other.cohorts):
      return _ONE_FILE
  return _SAME_SIZES if _are_of_one_draw(run.sizes, other.sizes) else None


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
  """Hashes of cohorts from a file, if the run's private settings can be read."""
  path = os.path.join(os.path.dirname(ledger), 'private.json')
  if first.sampling_source != ledger_lib.FILE or not os.path.exists(path):
    return ()
  with open(path, encoding='utf-8') as file:
    private = json.load(file)
  cohorts: Sequence[str] = private['training']['schedule'].get('cohorts', ())
  return cohorts


def _drawn_sizes(entries: Sequence[Any]) -> list[int]:
  """Sizes of rounds with independent draws; with balls in bins, of one cycle."""
  if any(entry.cohort_requested is None for entry in entries):
    return []  # Tags distinguish these draws.
  together, _ = ledger_lib.split(entries[0].dp_event)
  if any(ledger_lib.is_allocated(each) for each in together):
    sizes = [entry.cohort_requested for entry in entries]
    cycles = range(1, len(sizes) + 1)
    return sizes[: next(c for c in cycles if sizes[c:] == sizes[: len(sizes) - c])]
  return [
    entry.cohort_requested
    for entry in entries
    if entry.event.get('type') in _INDEPENDENT_DRAWS
  ]


def _are_of_one_draw(sizes: Sequence[int], other_sizes: Sequence[int]) -> bool:
  """Whether sizes agree by more than chance, estimated from two rounds of one run."""
  common = min(len(sizes), len(other_sizes))
  if not common or sizes[:common] != other_sizes[:common]:
    return False
  counts = collections.Counter(sizes[:common]).values()
  collision_probability = sum((count / common) ** 2 for count in counts)
  return bool(collision_probability**common < 1e-9)

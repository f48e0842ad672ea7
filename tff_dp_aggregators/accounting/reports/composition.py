"""Composes the statements of several runs into one statement of what they spent.

A client may take part in all of them. A run that is given twice, as its ledger or its
round log and population show, is refused; a plan has neither, and counts each time. So
are runs whose noise is known to come from the same seed or key.
"""

import dataclasses
import json
import math
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
# Adjacencies that imply zero-out: if a client is removed, or replaced by a client
# without data, its contributions are replaced by zeros.
_IMPLYING_ZERO_OUT = ('zero_out', 'add_or_remove', 'replace_one')
_OF_ONE_RUN = (
  ': they are of one run, or of two that went on from one state with the same noise. '
  'If one is the beginning of the other, give the longer one alone.'
)
_ONE_SEED = (
  'have their noise from the same seed, or from seeds that no noise_key_tag tells '
  'apart. Runs compose if their noise is independent: secret, or of different seeds.'
)
_ONE_DRAW = (
  'drew their clients from the same seed or file, or from sources that may be the '
  'same, and epsilon is for draws that are independent. Seeds are told apart by '
  'sampling_tag of the ledgers, unstated ones by random sizes of cohorts.'
)


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
  adjacency, delta = _neighbours_and_delta(parts)
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
    model.Private(
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


def _neighbours_and_delta(parts: Sequence[Part]) -> tuple[str, float]:
  """The adjacency and delta of all parts; raises ValueError if they do not compose."""
  pairs = []
  for name, part in parts:
    site = (part['mechanism'] or {}).get('noise_site')
    is_simulation = site in noises.PLACEMENTS and noises.PLACEMENTS[site].is_simulation
    if 'accountant' not in part['guarantee'] or is_simulation:
      raise ValueError(
        f'{name} has no guarantee that composes: there is no mechanism, its noise is '
        'that of a larger cohort or simulates that of clients, or it is an NbAFL plan.'
      )
    pairs.append((part['definition']['adjacency']['name'], part['guarantee']['delta']))
    if pairs[-1] != pairs[0]:
      remedy = (
        '--adjacency gives a mechanism another one, where it has several.'
        if pairs[-1][0] != pairs[0][0]
        else "Make one of them again with the other's --target_delta."
      )
      raise ValueError(
        'what is composed needs the same adjacency and delta; '
        f'{parts[0].name} has {pairs[0][0]} and {pairs[0][1]}, '
        f'{name} has {pairs[-1][0]} and {pairs[-1][1]}. {remedy}'
      )
  return pairs[0]


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
  seen: dict[Any, str] = {}
  for name, part in parts:
    for _, run in model.runs(part):
      files = run['verification']['files'] if run['mechanism'] else ()
      by_role = {file['role']: file['sha256'] for file in files}
      role = next((each for each in ('ledger', 'round_log') if each in by_role), None)
      if role is None:
        continue
      identity: tuple[Any, ...] = (role, by_role[role])
      if role == 'round_log':
        source = run['participation']['source']
        identity += (source['arguments'].get('population'),)
      if identity in seen:
        raise ValueError(
          f'a run is given twice, in {seen[identity]} and in {name}: the same '
          f'{role.replace("_", " ")} (sha256 {by_role[role]}). Give each run once.'
        )
      seen[identity] = name


def _check_releases(
  releases: Sequence[model.OtherRelease], delta: float, adjacency: str
) -> None:
  names = [release.name for release in releases]
  if len(set(names)) < len(names):
    raise ValueError(f'other releases must have names of their own; got {names}.')
  accepted = _IMPLYING_ZERO_OUT if adjacency == 'zero_out' else (adjacency,)
  for release in releases:
    if release.adjacency not in (None, *accepted):
      raise ValueError(
        f'{release.name!r} is stated for adjacency={release.adjacency}, and the runs '
        f'are for {adjacency}, with which {" or ".join(accepted)} goes.'
      )
  if not (deltas := sum(release.delta for release in releases)) < delta:
    raise ValueError(
      f'deltas of other releases sum to {deltas:g}, which leaves nothing for the runs '
      f'of delta = {delta:g}, that of all together. Give a larger --target_delta.'
    )


def check_not_forked(ledgers: Sequence[str]) -> None:
  """Raises ValueError if the noise or the draws of runs may not be independent.

  Runs with the same key or seed have the same noise, so their difference has none.
  Their ledgers name one key, begin with the same line, or have a result in common.
  Where epsilon relies on sampling, runs whose draws are from one seed have the same
  clients; ledgers show other draws by other seeds, or by other random sizes of cohorts.
  """
  runs: dict[str, Sequence[ledger_lib.LedgerEntry]] = {}
  for path in ledgers:
    entries = ledger_lib.read(path).entries
    if not entries:
      continue
    for earlier_path, earlier in runs.items():
      if (reason := _reason_not_independent(earlier, entries)) is not None:
        raise ValueError(f'{earlier_path} and {path} {reason}')
    runs[path] = entries


def _reason_not_independent(
  run: Sequence[ledger_lib.LedgerEntry], other: Sequence[ledger_lib.LedgerEntry]
) -> Optional[str]:
  """Why two ledgers may be of one run or draw, assuming unstated values to be equal."""
  marks = _marks(run)
  for text, mark in _marks(other).items():
    if mark & marks[text]:
      return text
  firsts = (run[0], other[0])
  tags = {each.noise_key_tag for each in firsts}
  if all(each.has_seeded_noise for each in firsts) and (None in tags or len(tags) == 1):
    return _ONE_SEED
  if not all(ledger_lib.is_drawn(each.dp_event) for each in firsts):
    return None
  if any(each.sampling_source == ledger_lib.FILE for each in firsts):
    return _ONE_DRAW
  if all(each.sampling_tag is not None for each in firsts):
    return None  # They are of different seeds, as marks are compared above.
  sizes = [[entry.cohort_requested for entry in entries] for entries in (run, other)]
  fixed = dp_accounting.SampledWithoutReplacementDpEvent
  has_fixed_size = any(
    isinstance(event, fixed)
    for first in firsts
    for event in accountants.nested(first.dp_event)
  )
  are_random = all(len(set(each)) > 1 and None not in each for each in sizes)
  differ = any(size != other_size for size, other_size in zip(*sizes))
  return None if are_random and differ and not has_fixed_size else _ONE_DRAW


def _marks(entries: Sequence[ledger_lib.LedgerEntry]) -> dict[str, set[Any]]:
  """Values that no two independent runs have in common, by what it means if they do."""
  first = entries[0]
  key_tag = None if first.has_seeded_noise else first.noise_key_tag
  return {
    f'begin with the same line{_OF_ONE_RUN}': {
      json.dumps(dataclasses.asdict(first), sort_keys=True)
    },
    f'have noise of the same key{_OF_ONE_RUN}': {key_tag} - {None},
    _ONE_DRAW: {first.sampling_tag} - {None},
    f'have the same result{_OF_ONE_RUN}': {each.result_checksum for each in entries}
    - {None},
  }

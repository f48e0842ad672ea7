"""Whether a ledger is one of a mechanism, under its schema.

`records.ledger` has the rules that the lines keep among themselves; here they are held
against what was planned.
"""

from collections.abc import Sequence
from typing import Any, Optional, cast

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib

# How far figures of a ledger may be below those planned, and above, relative. More
# noise than planned would be privacy that nothing shows.
_BELOW, _ABOVE = 1 - 1e-6, 1 + 1e-9


def check(
  mechanism: joint_mechanism.AnyMechanism,
  ledger: ledger_lib.Ledger,
  clip_norm: Optional[float] = None,
) -> None:
  """Refuses a ledger whose rounds were not this mechanism's, under its schema."""
  entries = ledger.entries
  if not mechanism.is_sampled and mechanism.relation is not Relation.REPLACE_SPECIAL:
    raise ValueError(
      'ledgers of rounds without sampling hold events for zero-out adjacency; state '
      f'the mechanism with it, not with {mechanism.adjacency}.'
    )
  _check_length(mechanism, entries)
  _check_parts(mechanism, entries[0])
  line = mechanism.line(None)
  of_rounds = {name: line[name] for name in line if name != 'clip_norm'}
  for entry in entries:
    stated = {name: getattr(entry, name) for name in of_rounds}
    if stated != of_rounds:
      raise ValueError(
        f'round {entry.round} of the ledger used {_difference(stated, of_rounds)}. '
        'State the mechanism, number of rounds and noise that the run was planned '
        'with; to compose runs of several mechanisms, give each as its JSON report, '
        '--report.'
      )
  _check_clients(mechanism, entries)
  if mechanism.has_noise and mechanism.is_private and mechanism.is_one_gaussian:
    _check_limits(mechanism, entries)
  elif mechanism.has_noise:
    _check_events(mechanism, ledger)
  _check_clip_norm(mechanism, entries, clip_norm)


def check_simulated(inputs: inputs_lib.Inputs) -> None:
  """Refuses a ledger of other noise than a larger cohort's, or that states privacy."""
  mechanism, cohort = cast(Any, inputs.mechanism), inputs.simulated_cohort
  assert cohort is not None
  if mechanism.parts:
    raise ValueError(
      'a larger cohort is simulated with one mechanism for all weights; this one has '
      'parts, so something was altered.'
    )
  if inputs.ledger is None:
    raise ValueError('a run that simulates a larger cohort is told by its ledger.')
  entries = inputs.ledger.entries
  _check_clip_norm(mechanism, entries, inputs.clip_norm)
  _check_length(mechanism, entries)
  expected = (mechanism.strategy.checksum, mechanism.noise_multiplier / cohort.scale)
  for entry in entries:
    if (entry.strategy_checksum, entry.noise_multiplier) != expected:
      raise ValueError(
        f'round {entry.round} of the ledger used strategy {entry.strategy_checksum} '
        f'with noise multiplier {entry.noise_multiplier}, but with the noise of a '
        f'cohort {cohort.scale:g} times as large it is {expected[0]} with '
        f'{expected[1]}: they are not of the same run.'
      )
    if entry.dp_event != dp_accounting.NonPrivateDpEvent():
      raise ValueError(
        f'round {entry.round} of the ledger has the event {entry.dp_event}, but the '
        'run simulates a larger cohort, and no round of it is private.'
      )


def _check_length(
  mechanism: joint_mechanism.AnyMechanism, entries: Sequence[ledger_lib.LedgerEntry]
) -> None:
  planned = mechanism.participation.num_rounds
  if not 0 < len(entries) <= planned:
    raise ValueError(
      f'the ledger lists {len(entries)} rounds; the mechanism is for 1 to {planned}.'
    )


def _check_clip_norm(
  mechanism: joint_mechanism.AnyMechanism,
  entries: Sequence[ledger_lib.LedgerEntry],
  clip_norm: Optional[float],
) -> None:
  if clip_norm is None or mechanism.clipped_count_stddev is not None:
    return
  for entry in entries:
    if entry.clip_norm != clip_norm:
      raise ValueError(
        f'clip_norm is {clip_norm}, but {entry.clip_norm} in round {entry.round} of '
        'the ledger.'
      )


def _check_parts(
  mechanism: joint_mechanism.AnyMechanism, entry: ledger_lib.LedgerEntry
) -> None:
  """Refuses a ledger of parts for a mechanism of all weights, and the other way."""
  if entry.parts is not None and not mechanism.parts:
    names = ', '.join(part['name'] for part in cast(Any, entry.parts))
    raise ValueError(
      f'the ledger is of a run whose parts {names} have mechanisms of their own, and '
      'the mechanism is one of all weights. State that of each part as in the run: a '
      '--part for each, instead of --mechanism; in Python, a JointMechanism.'
    )
  if entry.parts is None and mechanism.parts:
    names = ', '.join(part.name for part in mechanism.parts)
    raise ValueError(
      f'the ledger is of a run with one mechanism for all weights, and the mechanism '
      f'is one of the parts {names}. State the one of the run: --mechanism, '
      '--noise_multiplier and its options, instead of --part.'
    )


def _difference(stated: dict[str, Any], planned: dict[str, Any]) -> str:
  """What a line has of another mechanism."""
  one, other = (f'strategy {each["strategy_checksum"]}' for each in (stated, planned))
  noise, own = _noise_in_words(stated), _noise_in_words(planned)
  if one == other:
    return f'{one}, as the mechanism does, with {noise}, and the mechanism has {own}'
  return f'{one} with {noise}, the mechanism is {other} with {own}'


def _noise_in_words(line: dict[str, Any]) -> str:
  """What a line has of a mechanism's noise."""
  noise = f'noise multiplier {line["noise_multiplier"]}'
  if line.get('parts') is not None:
    noise = 'the parts ' + '; '.join(
      f'{part["name"]} with clip norm {part["clip_norm"]} and noise multiplier '
      f'{part["noise_multiplier"]}'
      for part in line['parts']
    )
  placement = line['noise_site']
  if placement is not None:
    numbers = ''.join(
      f', {name}={value}'
      for name, value in placement.items()
      if name != 'name' and value is not None
    )
    noise = f'{noise} (noise_site={placement["name"]}{numbers})'
  return noise


def _check_clients(
  mechanism: joint_mechanism.AnyMechanism, entries: Sequence[ledger_lib.LedgerEntry]
) -> None:
  """Refuses a ledger with a round whose noise came from fewer clients than counted."""
  fewest = dict(mechanism.options).get(noises.MIN_CLIENTS)
  if fewest is None:
    return
  for entry in entries:
    if entry.cohort_reported is None:
      raise ValueError(
        f'round {entry.round} of the ledger does not tell how many clients reported, '
        f'and min_clients={fewest} counts the noise of as many. State cohort_reported '
        'in each line.'
      )
    if entry.cohort_reported < fewest:
      raise ValueError(
        f'round {entry.round} of the ledger was released with {entry.cohort_reported} '
        f'clients, and min_clients={fewest} counts the noise of more: it has less '
        'privacy than is stated. State the mechanism with as many clients as reported '
        'in every round, and the noise that they made.'
      )


def _check_events(
  mechanism: joint_mechanism.AnyMechanism, ledger: ledger_lib.Ledger
) -> None:
  """Refuses a ledger whose rounds have other events than those planned.

  They were sampled in another way, or not at all, or made for other limits.
  """
  if ledger.aborted and mechanism.is_sampled:
    raise ValueError(
      f'the ledger has an aborted attempt at round {ledger.aborted[0].round}, and '
      'sampling allows one attempt at a round: another makes its clients more likely '
      'to be in the round than the sampling says. State the mechanism with limits on '
      'participation, without sampling.'
    )
  for entry, planned in zip(ledger.entries, mechanism.round_events):
    # Ledgers of old had bounds in place of mixtures.
    as_written = (planned, events.with_bounds(planned))
    if not any(_is_as_planned(entry.event, events.to_json(e)) for e in as_written):
      raise ValueError(
        f'round {entry.round} of the ledger has the event {entry.dp_event}, but with '
        f'{"this sampling" if mechanism.is_sampled else "these limits"} it is '
        f'{planned}. The events of a sampled mechanism are its round_events; those '
        'that are taken from states know nothing of sampling.'
      )


def _is_as_planned(stated: Any, planned: Any) -> bool:
  """Whether a written event is another, but for round-off in its noise multiplier."""
  if not isinstance(planned, dict) or set(stated) != set(planned):
    return False
  for name, value in planned.items():
    if name == 'noise_multiplier':
      same = value * _BELOW <= stated[name] <= value * _ABOVE
    elif name in ('event', 'bound'):
      same = _is_as_planned(stated[name], value)
    elif name == 'events':
      same = len(stated[name]) == len(value) and all(
        map(_is_as_planned, stated[name], value)
      )
    else:
      same = stated[name] == value
    if not same:
      return False
  return True


def _check_limits(
  mechanism: joint_mechanism.AnyMechanism, entries: Sequence[ledger_lib.LedgerEntry]
) -> None:
  """Refuses a ledger whose events are for other limits on participation."""
  for entry, planned in zip(entries, mechanism.noise_multipliers_so_far):
    stated = entry.effective_noise_multiplier
    if stated is None or not planned * _BELOW <= stated <= planned * _ABOVE:
      raise ValueError(
        f'round {entry.round} of the ledger has the effective noise multiplier '
        f'{stated}, but under these limits on participation it is {float(planned)}: '
        'the run was made for other limits.'
      )

"""Whether a ledger is one of a mechanism: each line is held against that planned."""

from collections.abc import Iterator, Sequence
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
_REMEDY = (
  'State mechanism, parts, rounds, noise, clip norm, limits or sampling as the run was '
  'planned with (the events of a sampled mechanism are its round_events); to compose '
  'runs of several mechanisms, give each as its JSON report, --report.'
)


def check(
  mechanism: joint_mechanism.AnyMechanism,
  ledger: ledger_lib.Ledger,
  clip_norm: Optional[float] = None,
) -> None:
  """Refuses a ledger whose rounds were not this mechanism's, under its schema."""
  if not mechanism.is_sampled and mechanism.relation is not Relation.REPLACE_SPECIAL:
    raise ValueError(
      'ledgers of rounds without sampling hold events for zero-out adjacency; state '
      f'the mechanism with it, not with {mechanism.adjacency}.'
    )
  if ledger.aborted and mechanism.is_sampled and mechanism.has_noise:
    raise ValueError(
      f'the ledger has an aborted attempt at round {ledger.aborted[0].round}, and '
      'another one makes clients likelier to be in it than the sampling says. State '
      'the mechanism with limits on participation, without sampling.'
    )
  _compare(mechanism, ledger.entries, _planned(mechanism, clip_norm))
  fewest = dict(mechanism.options).get(noises.MIN_CLIENTS)
  for entry in ledger.entries:
    reported = entry.cohort_reported
    if fewest is not None and (reported is None or reported < fewest):
      raise ValueError(
        f'round {entry.round} of the ledger was released with {reported} clients, and '
        f'min_clients={fewest} counts the noise of as many. State the mechanism with '
        'as many clients as reported in every round, and the noise that they made.'
      )


def check_simulated(inputs: inputs_lib.Inputs) -> None:
  """Refuses a ledger of other noise than a larger cohort's, or that states privacy."""
  mechanism, cohort = cast(Any, inputs.mechanism), inputs.simulated_cohort
  assert cohort is not None
  if mechanism.parts or inputs.ledger is None:
    raise ValueError(
      'a larger cohort is simulated with one mechanism for all weights, and told by a '
      'ledger; something was altered.'
    )
  line = {
    'strategy_checksum': mechanism.strategy.checksum,
    'noise_multiplier': mechanism.noise_multiplier / cohort.scale,
    **_clip_norm(mechanism, inputs.clip_norm),
    'dp_event': dp_accounting.NonPrivateDpEvent(),
  }
  entries = inputs.ledger.entries
  remedy = (
    f'The run simulates a cohort {cohort.scale:g} times as large and no round of it is '
    'private: they are not of the same run.'
  )
  _compare(mechanism, entries, iter([line] * len(entries)), remedy)


def _planned(
  mechanism: joint_mechanism.AnyMechanism, clip_norm: Optional[float]
) -> Iterator[dict[str, Any]]:
  """What the line of each round has by the mechanism."""
  line = {'parts': None, **mechanism.line(None)}
  del line['clip_norm']
  line |= _clip_norm(mechanism, clip_norm)
  if mechanism.has_noise and mechanism.is_private and mechanism.is_one_gaussian:
    for so_far in mechanism.noise_multipliers_so_far:
      yield {**line, 'effective_noise_multiplier': float(so_far)}
  else:
    for event in mechanism.round_events:
      yield {**line, 'dp_event': event} if mechanism.has_noise else line


def _clip_norm(
  mechanism: joint_mechanism.AnyMechanism, clip_norm: Optional[float]
) -> dict[str, Any]:
  """The clip norm of all lines, if it is stated and does not change."""
  if clip_norm is None or mechanism.clipped_count_stddev is not None:
    return {}
  return {'clip_norm': clip_norm}


def _compare(
  mechanism: joint_mechanism.AnyMechanism,
  entries: Sequence[ledger_lib.LedgerEntry],
  planned: Iterator[dict[str, Any]],
  remedy: str = _REMEDY,
) -> None:
  """Refuses the first line that has something else than was planned."""
  most = mechanism.participation.num_rounds
  if not 0 < len(entries) <= most:
    raise ValueError(
      f'the ledger lists {len(entries)} rounds; the mechanism is for 1 to {most}.'
    )
  for entry, line in zip(entries, planned):
    for name, value in line.items():
      stated = getattr(entry, name)
      if not _is_as_planned(name, stated, value):
        raise ValueError(
          f'round {entry.round} of the ledger has the '
          f'{name.removeprefix("dp_").replace("_", " ")} {stated}, but by the '
          f'mechanism it is {value}. {remedy}'
        )


def _is_as_planned(name: str, stated: Any, planned: Any) -> bool:
  """Whether a field is as planned, but for round-off in what rounds compose to."""
  if name == 'effective_noise_multiplier':
    return stated is not None and planned * _BELOW <= stated <= planned * _ABOVE
  if name != 'dp_event':
    return bool(stated == planned)
  # Ledgers of old had bounds in place of mixtures.
  as_written = (planned, events.with_bounds(planned))
  written = events.to_json(stated)
  return any(_is_same_event(written, events.to_json(each)) for each in as_written)


def _is_same_event(stated: Any, planned: Any, name: str = '') -> bool:
  """Whether a written event is another, but for round-off in its noise multiplier."""
  if isinstance(planned, dict) and isinstance(stated, dict):
    return set(stated) == set(planned) and all(
      _is_same_event(stated[key], value, key) for key, value in planned.items()
    )
  if isinstance(planned, list) and isinstance(stated, list):
    return len(stated) == len(planned) and all(map(_is_same_event, stated, planned))
  if name == 'noise_multiplier':
    return bool(planned * _BELOW <= stated <= planned * _ABOVE)
  return bool(stated == planned)

"""The privacy statement: a guarantee with everything it rests on, as data.

`build` turns `Inputs` (a mechanism, a delta, what a run's ledger says) into one
JSON-ready dict, and `compose` several of those into one. The headings
follow section 5.3 of "How to DP-fy ML" (arXiv:2303.00654): setting, definition (unit,
adjacency, outputs, data accesses), accounting (type, assumptions, formal statement),
verification. `schema.load` describes the dict; `rendering` writes it out for people;
`verification` computes it again.
"""

import dataclasses
import functools
import importlib.metadata
import json
import math
import platform
from collections.abc import Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism as joint_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import curves as curves_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import integer_noise
from tff_dp_aggregators.accounting.reports import ledger_checks
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import other_guarantees
from tff_dp_aggregators.accounting.reports import parts as parts_lib
from tff_dp_aggregators.accounting.reports import provenance
from tff_dp_aggregators.accounting.reports import recognition
from tff_dp_aggregators.accounting.reports import simulated_cohorts
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

# What a JSON report says that it is.
FORMAT = 'tff_dp_aggregators.privacy_report'
# Of that format; a report of another version is refused.
VERSION = 7

_UNIT = (
  'one client with all its data: the guarantee is about everything that a client '
  'contributes in all rounds together'
)
_ADJACENCIES = {
  'zero_out': (
    'zeroing out: two data sets are neighbours if they differ in one client, all of '
    'whose contributions are replaced by zeros (arXiv:2103.00039, Definition 1.1)'
  ),
  'add_or_remove': (
    'add or remove: two data sets are neighbours if one of them has one client more'
  ),
  'replace_one': (
    'replace one: two data sets are neighbours if they differ in the data of one '
    'client, which may be any other data; epsilon is about twice that of the other '
    'two adjacencies and not comparable with it'
  ),
}
_SECRET = ', but not who took part in which round'
_COVERED = (
  'client updates (model deltas), as far as they reach the model through the '
  'private aggregator',
)
_ADAPTIVE = 'the norms of client updates, as far as they decide on the clip norm'
_NOT_COVERED = (
  'choosing hyperparameters (learning rates, clip norm, rounds) on the same clients',
  'other runs on the same clients, unless this report says that it composes them',
  'metrics computed on client data, such as training loss, and exact counts such as '
  'the number of non-finite updates',
  'test accuracy, if the test data is private as well',
  'the number and identity of clients in a round, attempts at it that were aborted, '
  'and timing',
)
_POPULATION = (
  'how many clients there are in all, unless the sampling and what the mean is divided '
  'by were chosen without knowing it'
)
_TRUSTED = (
  '; and who made other releases is trusted with what these were made of, and shows '
  'nothing of it but them'
)
_ADDED = '; with what other releases state added to it, an upper bound'
# Strategies of at most so many numbers are part of the report.
_MAX_NUMBERS = 10_000
_STATED_DELTAS = tuple(10.0**-power for power in range(4, 11, 2))


def build(inputs: inputs_lib.Inputs, *, with_curves: bool = True) -> dict[str, Any]:
  """Builds the statement of a mechanism, and of a run of it.

  Args:
    inputs: What it is made of.
    with_curves: Whether to compute the points of plots; else `curves` is `None`.

  Returns:
    A JSON-ready dict, described by `schema.load`; infinities are `None`. Of a run that
    simulates a larger cohort it is one without privacy.

  Raises:
    ValueError: If `delta` is out of range, the target is missed, or the ledger is of
      another mechanism, other limits on participation or sampling, or another clip
      norm.
    dp_accounting.UnsupportedEventError: If the accountant cannot read the events.
  """
  mechanism, delta = inputs.mechanism, inputs.delta
  gaussian.check_delta(delta)
  event, run, clip_norm = mechanism.event, None, inputs.clip_norm
  _check_target(inputs)
  if inputs.nbafl is not None:
    nbafl_report.check(inputs.nbafl, mechanism, delta=delta, clip_norm=clip_norm)
  if inputs.simulated_cohort is not None:
    return _of_simulated_cohort(inputs)
  if inputs.ledger is not None:
    ledger_checks.check(mechanism, inputs.ledger)
    ledger_checks.check_clip_norm(mechanism, inputs.clip_norm, inputs.ledger.entries)
    event, run = _event_of(inputs, inputs.ledger), _run(inputs, inputs.ledger)
    if mechanism.clipped_count_stddev is None:
      clip_norm = _only_clip_norm(inputs.ledger.entries)
  target = None
  if inputs.target_epsilon is not None:
    target = {'epsilon': inputs.target_epsilon, 'found': inputs.found}
  curves = None
  if with_curves:
    curves = curves_lib.of_mechanism(mechanism, event, delta, inputs.accountant, run)
  return {
    'format': FORMAT,
    'version': VERSION,
    'warnings': provenance.warnings(inputs),
    'setting': terms.SITES[mechanism.noise_site].setting,
    'definition': _definition(mechanism, inputs.not_covered),
    'mechanism': parts_lib.mechanism_of(inputs, clip_norm, _mechanism),
    'participation': _participation(inputs),
    'run': run,
    'target': target,
    'tuning': None if inputs.tuning is None else inputs.tuning.to_json(),
    'guarantee': guarantee(
      event, delta, mechanism.relation, inputs.accountant, mechanism.sensitivity_kind
    ),
    'other_guarantees': other_guarantees.of(inputs),
    'nbafl': nbafl_report.of_run(inputs.nbafl),
    'parts': [],
    'curves': curves,
    'code_version': inputs.code_version,
    'provenance': provenance.of(inputs),
    'software': _software(),
    'verification': {
      'command': inputs.command,
      'files': [dict(file) for file in inputs.files],
      'inputs': {
        'mechanism': mechanism.to_json(),
        'strategy': parts_lib.strategy_of(mechanism, _small),
        'event': events.to_json(event),
        'delta': delta,
        'accountant': inputs.accountant,
        'target_epsilon': inputs.target_epsilon,
        'found': inputs.found,
        'clip_norm': clip_norm,
        'with_curves': with_curves,
      },
    },
  }


def compose(
  parts: Sequence[dict[str, Any]],
  *,
  accountant: Optional[str] = None,
  command: Optional[str] = None,
  other_releases: Sequence[inputs_lib.OtherRelease] = (),
) -> dict[str, Any]:
  """The statement of several runs or phases on the same clients together.

  Args:
    parts: What `build` returned for each, at the same delta and for the same adjacency.
      A client may take part in all of them. Curves are computed if all parts have them.
    accountant: Whose epsilon the guarantee states; `None` for the tightest.
    command: A command that prints the same numbers again.
    other_releases: What other systems released of these clients, as it is stated.

  Raises:
    ValueError: If there is nothing to compose, parts are for different deltas or
      adjacencies, or the deltas of other releases leave nothing of that.
  """
  if not parts or len(parts) + len(other_releases) < 2:
    raise ValueError(
      f'a composition has two parts or more; got {len(parts)}, and '
      f'{len(other_releases)} other releases.'
    )
  adjacencies = {part['definition']['adjacency']['name'] for part in parts}
  deltas = {part['guarantee']['delta'] for part in parts}
  for name, values in (('adjacency', adjacencies), ('delta', deltas)):
    if len(values) > 1:
      raise ValueError(f'parts of a composition need the same {name}; got {values}.')
  (delta,) = deltas
  (adjacency,) = adjacencies
  relation = schemas.ADJACENCIES[adjacency]
  inputs_lib.check_releases(other_releases, delta, adjacency)
  event = dp_accounting.ComposedDpEvent(
    [*map(_event_of_part, parts), *(each.to_event() for each in other_releases)]
  )
  outputs = [part['definition']['outputs'] for part in parts]
  definition = dict(
    parts[0]['definition'],
    outputs=_outputs_of(outputs) + ('; and other releases' if other_releases else ''),
    covered=_union(part['definition']['covered'] for part in parts),
    not_covered=_union(part['definition']['not_covered'] for part in parts),
  )
  kind = 'bound' if is_bound(*parts) else 'exact'
  total = guarantee(event, delta, relation, accountant, kind)
  mu = total['gdp_mu']
  curves = None
  if all(part['curves'] is not None for part in parts):
    curves = {
      'epsilon_by_delta': curves_lib.by_delta(event, delta, relation, accountant),
      'epsilon_by_round': [],
      'epsilon_by_round_accountant': None,
      'error_by_round': [],
      'noise_correlation': [],
    }
  return {
    'format': FORMAT,
    'version': VERSION,
    'warnings': [
      f'Run {number}: {warning}'
      for number, part in enumerate(parts, start=1)
      for warning in part.get('warnings', ())
    ],
    'setting': _setting_of(parts) + (_TRUSTED if other_releases else ''),
    'definition': definition,
    'mechanism': {
      'name': 'composition',
      'noise_multiplier': None,
      'sensitivity_squared': None,
      'effective_noise_multiplier': 1 / mu if mu else None,
    },
    'participation': None,
    'run': None,
    'target': None,
    'tuning': None,
    'guarantee': total,
    # Of another observer, or other neighbours, other releases state nothing.
    'other_guarantees': (
      []
      if accountants.has_stated(event)
      else other_guarantees.composed(parts, accountant)
    ),
    'parts': list(parts),
    'other_releases': [each.to_json() for each in other_releases],
    'curves': curves,
    'code_version': None,
    'provenance': None,
    'software': _software(),
    'verification': {
      'command': command,
      'files': [file for part in parts for file in part['verification']['files']],
      'inputs': {
        'mechanism': None,
        'strategy': None,
        'event': events.to_json(event),
        'delta': delta,
        'accountant': accountant,
        'target_epsilon': None,
        'found': None,
        'clip_norm': None,
        'with_curves': curves is not None,
      },
    },
  }


def _event_of_part(part: dict[str, Any]) -> dp_accounting.DpEvent:
  """What a part spent, with the strategy of a mixture if the report has it."""
  inputs = part['verification']['inputs']
  event = events.from_json(inputs['event'])
  if isinstance(event, events.MixtureDpEvent) and inputs['strategy'] is not None:
    strategy = strategies.Strategy.from_json(json.dumps(inputs['strategy']))
    if strategy.checksum == event.strategy_checksum:
      return dataclasses.replace(event, strategy=strategy)
  return event


def build_nbafl(plan: nbafl.Nbafl, *, command: Optional[str] = None) -> dict[str, Any]:
  """The statement of an NbAFL plan: what its formulas claim, and what holds.

  Args:
    plan: With all its inputs.
    command: A command that prints the same numbers again.

  Example:
    >>> plan = nbafl.Nbafl(
    ...   0.8,
    ...   1e-5,
    ...   clip_norm=1.5,
    ...   num_exposures=2,
    ...   num_rounds=30,
    ...   num_clients=50,
    ...   min_examples=10_000,
    ... )
    >>> for each in build_nbafl(plan)['guarantees'][:2]:
    ...   print(each['claimed_epsilon'], f'{each["epsilon"]:.3f}')
    0.4 0.276
    0.8 0.403
  """
  said = nbafl_report.of(plan, _software(), command)
  return {'format': FORMAT, 'version': VERSION, **said}


def build_without_privacy(
  simulation: Optional[str] = None,
  *,
  not_covered: Sequence[str] = (),
  tuning: Optional[inputs_lib.Tuning] = None,
  files: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
  """The statement of a run without any privacy mechanism: that there is none.

  Args:
    simulation: As in `Inputs`.
    not_covered: As in `Inputs`.
    tuning: As in `Inputs`.
    files: As in `Inputs`.
  """
  verification = None
  if files:
    verification = {
      'command': None,
      'files': [dict(file) for file in files],
      'inputs': {'accountant': None},
    }
  return {
    'format': FORMAT,
    'version': VERSION,
    'mechanism': None,
    'simulation': simulation,
    'simulated_cohort': None,
    'not_covered': list(not_covered),
    'tuning': None if tuning is None else tuning.to_json(),
    'guarantee': {
      'epsilon': None,
      'delta': None,
      'is_private': False,
      'epsilon_rdp': None,
      'zcdp_rho': None,
      'gdp_mu': None,
    },
    'verification': verification,
  }


def _of_simulated_cohort(inputs: inputs_lib.Inputs) -> dict[str, Any]:
  """The statement of a run with the noise of a larger cohort: that it has no privacy.

  Raises:
    ValueError: If the ledger is not of such a run.
  """
  entries = () if inputs.ledger is None else inputs.ledger.entries
  ledger_checks.check_clip_norm(inputs.mechanism, inputs.clip_norm, entries)
  nothing = build_without_privacy(
    inputs.simulation, not_covered=inputs.not_covered, tuning=inputs.tuning
  )
  return dict(
    nothing,
    simulated_cohort=simulated_cohorts.of(inputs),
    verification={
      'command': inputs.command,
      'files': [dict(file) for file in inputs.files],
      'inputs': {'accountant': inputs.accountant},
    },
  )


def guarantee(
  event: dp_accounting.DpEvent,
  delta: float,
  relation: Relation,
  accountant: Optional[str] = None,
  sensitivity_kind: str = 'exact',
) -> dict[str, Any]:
  """What an event guarantees, by all accountants that can read it.

  Args:
    event: Everything that ran.
    delta: At which delta epsilon is stated.
    relation: Neighbouring relation.
    accountant: Whose epsilon is `epsilon`; `None` for the tightest.
    sensitivity_kind: Whether the sensitivity that the event is made by is 'exact', or a
      'bound', and so every epsilon.

  Returns:
    `epsilon` (of `accountant`), `delta`, the epsilons of others under their names
    (`epsilon_rdp`, ...), `zcdp_rho` and `gdp_mu` where there are such, and
    `accountants`, a list that says what each number is; `epsilon_by_delta` has epsilon
    for customary deltas, `pure_epsilon` for delta 0, and `recognised` what it means for
    an observer. Infinities are `None`.
  """
  gaussian.check_delta(delta)
  chosen = accountant or accountants.tightest(event, relation)
  names = dict.fromkeys((chosen, *terms.of_accountant(chosen).beside))
  composed, listed = {}, []
  for name in names:
    try:
      composed[name] = accountants.composed(event, name, relation)
      value = composed[name].get_epsilon(delta)
    except (dp_accounting.UnsupportedEventError, ValueError):
      if name == chosen:
        raise
      continue
    other = composed[name].instead(delta)
    said = terms.of_accountant(other.accountant if other else name)
    kind = said.of_sensitivity(sensitivity_kind).kind
    listed.append(
      {
        'name': name,
        'epsilon': _finite(value),
        'kind': kind + (_ADDED if accountants.has_stated(event) else ''),
        'instead': other and other._asdict(),
      }
    )
  by_name = {each['name']: each['epsilon'] for each in listed}
  try:
    mu = accountants.gdp_mu(event)
  except dp_accounting.UnsupportedEventError:
    mu = None
  pure = accountants.pure_epsilon(event, relation)
  return {
    'epsilon': by_name[chosen],
    'delta': delta,
    'is_private': by_name[chosen] is not None,
    'accountant': chosen,
    **{
      f'epsilon_{name}': by_name.get(name)
      for name in accountants.ACCOUNTANTS
      if terms.of_accountant(name).in_guarantee
    },
    'zcdp_rho': None if mu is None else _finite(mu * mu / 2),
    'gdp_mu': None if mu is None else _finite(mu),
    'pure_epsilon': _finite(pure),
    'recognised': {
      'false_alarms': recognition.FALSE_ALARMS,
      'share': recognition.of_event(composed, event, relation, mu, pure),
    },
    'accountants': listed,
    'epsilon_by_delta': [
      {
        'delta': each,
        'epsilon': _finite(composed[chosen].get_epsilon(each)),
        'accountant': getattr(composed[chosen].instead(each), 'accountant', chosen),
      }
      for each in sorted({delta, *_STATED_DELTAS}, reverse=True)
    ],
  }


def is_bound(*statements: dict[str, Any]) -> bool:
  """Whether a sensitivity that the statements rest on is known by an upper bound.

  Args:
    *statements: As `build` or `compose` returned them.
  """
  return any(
    is_bound(*each['parts'])
    if each['parts']
    else each['mechanism']['sensitivity_kind'] != 'exact'
    for each in statements
  )


def _setting_of(parts: Sequence[dict[str, Any]]) -> str:
  """Who is trusted with what in several runs."""
  settings = list(dict.fromkeys(part['setting'] for part in parts))
  if len(settings) == 1:
    return str(settings[0])
  of_runs = '; '.join(f'({i}) {each}' for i, each in enumerate(settings, start=1))
  return (
    'not the same in all runs, and what holds of all together holds towards those whom '
    f'each of these protects from: {of_runs}'
  )


def _outputs_of(outputs: Sequence[str]) -> str:
  """What the adversary sees of several runs."""
  seen = dict.fromkeys(each.removesuffix(_SECRET) for each in outputs)
  secret = any(each.endswith(_SECRET) for each in outputs)
  return '; and '.join(seen) + (_SECRET if secret else '')


def _definition(
  mechanism: joint_lib.AnyMechanism, not_covered: Sequence[str]
) -> dict[str, Any]:
  assert mechanism.adjacency is not None
  adaptive = mechanism.clipped_count_stddev is not None
  return {
    'privacy_unit': _UNIT,
    'adjacency': {
      'name': mechanism.adjacency,
      'meaning': _ADJACENCIES[mechanism.adjacency],
    },
    'outputs': terms.SITES[mechanism.noise_site].outputs
    + (_SECRET if mechanism.is_sampled else ''),
    'covered': [*_COVERED, *([_ADAPTIVE] if adaptive else [])],
    'not_covered': [
      *_NOT_COVERED,
      *([_POPULATION] if mechanism.adjacency == 'add_or_remove' else []),
      *not_covered,
    ],
  }


def _mechanism(
  mechanism: mechanism_lib.Mechanism,
  clip_norm: Optional[float],
  inputs: inputs_lib.Inputs,
) -> dict[str, Any]:
  strategy = mechanism.strategy
  error = strategy.per_query_error()
  integers = integer_noise.of(inputs)
  factor = 1.0 if integers is None else integers['rounding_factor']
  sensitivity = factor * mechanism.sensitivity
  noise = curves_lib.error_multiplier(mechanism)
  adaptive = None
  if mechanism.clipped_count_stddev is not None:
    adaptive = {
      'clipped_count_stddev': mechanism.clipped_count_stddev,
      'values_noise_multiplier': mechanism.values_noise_multiplier,
    }
  return {
    'name': mechanism.name,
    'strategy': strategy.kind,
    'strategy_checksum': strategy.checksum,
    'num_rounds': strategy.num_rounds,
    'noise_site': mechanism.noise_site,
    **dict.fromkeys(mechanism_lib.options()),
    **dict(mechanism.options),
    **registry.options_of(strategy),
    'noise_buffers': strategy.noise_buffers,
    'clip_norm': clip_norm,
    'adaptive_clipping': adaptive,
    'noise_multiplier': mechanism.noise_multiplier,
    'server_noise_multiplier': mechanism.server_noise_multiplier,
    'sensitivity': sensitivity,
    'sensitivity_squared': factor**2 * mechanism.sensitivity_squared,
    'sensitivity_kind': mechanism.sensitivity_kind,
    'effective_noise_multiplier': mechanism.noise_multiplier / sensitivity,
    'integer_noise': integers,
    'simulated_epsilon': _simulated_epsilon(mechanism, inputs),
    'noise_source': inputs.noise_source,
    # Of the noise in prefix sums, in clip norms.
    'error_of': curves_lib.error_of(mechanism),
    'rmse': noise * math.sqrt(float(error.mean())),
    'max_error': noise * math.sqrt(float(error.max())),
  }


def _simulated_epsilon(
  mechanism: mechanism_lib.Mechanism, inputs: inputs_lib.Inputs
) -> Optional[float]:
  """Epsilon of noise that is only simulated; `None` if it is made, or infinite."""
  if not mechanism.site.is_simulation:
    return None
  would_be = mechanism.event_with(mechanism.noise_multiplier)
  return _finite(
    accountants.epsilon(
      would_be, inputs.delta, inputs.accountant, relation=mechanism.relation
    )
  )


def _participation(inputs: inputs_lib.Inputs) -> dict[str, Any]:
  schema, limits = inputs.mechanism.participation, inputs.mechanism.limits
  assumed, cap_enforced_by = limits.assumed_at_most, None
  if assumed is not None:
    cap_enforced_by = inputs.cap_enforced_by or inputs_lib.NOT_STATED
  return {
    **schemas.to_json(schema),
    'assumption': schemas.kind_of(schema).assumption(schema),
    'min_separation': limits.min_separation,
    'rounds_between': limits.min_separation - 1,
    'max_participations': limits.max_participations,
    'possible_by_separation': limits.possible_by_separation,
    'assumed_at_most': assumed,
    'enforced_by': inputs.enforced_by,
    'cap_enforced_by': cap_enforced_by,
    'source': inputs.participation_source,
  }


def _small(strategy: strategies.Strategy) -> Optional[dict[str, Any]]:
  """The strategy as JSON-ready values, unless it has too many numbers."""
  numbers = sum(
    np.size(value) for value in strategy.parameters().values() if value is not None
  )
  return json.loads(strategy.to_json()) if numbers <= _MAX_NUMBERS else None


def _run(inputs: inputs_lib.Inputs, ledger: ledger_lib.Ledger) -> dict[str, Any]:
  return {
    'rounds_completed': len(ledger.entries),
    'rounds_released_again': list(ledger.repeated),
    'bytes_cut_off': ledger.cut,
    'aborted_attempts': _aborted(inputs, ledger),
    'simulation': inputs.simulation,
    'reporting': inputs.reporting,
    'before_clipping': inputs.before_clipping,
    'ledger_head': ledger.head._asdict(),
    'clip_norms': _clip_norms(ledger.entries),
    'noise_generators': _generators(ledger.entries),
    'rounds_planned': inputs.mechanism.participation.num_rounds,
    'epsilon_planned': _finite(_epsilon_planned(inputs, ledger)),
  }


def _aborted(inputs: inputs_lib.Inputs, ledger: ledger_lib.Ledger) -> dict[str, Any]:
  """Attempts that were aborted, with what they spent together."""
  return {
    'count': len(ledger.aborted),
    'rounds': list(dict.fromkeys(attempt.round for attempt in ledger.aborted)),
    'epsilon': _finite(
      accountants.epsilon(
        _aborted_event(inputs.mechanism, ledger),
        inputs.delta,
        relation=inputs.mechanism.relation,
      )
    ),
  }


def _aborted_event(
  mechanism: joint_lib.AnyMechanism, ledger: ledger_lib.Ledger
) -> dp_accounting.DpEvent:
  """What aborted attempts spent together.

  Nothing, for nothing of them was released; but whom noise of its own hides has sent a
  report in each, at most, and the server has it.
  """
  attempts = [each for each in ledger.aborted if each.cohort_reported]
  if not (mechanism.site.is_of_client and attempts):
    return ledger_lib.total_event(ledger.aborted)
  report = mechanism.round_events[0]  # Of a client who has its first turn there.
  return dp_accounting.SelfComposedDpEvent(report, len(attempts))


def _event_of(
  inputs: inputs_lib.Inputs, ledger: ledger_lib.Ledger
) -> dp_accounting.DpEvent:
  """What all rounds and attempts of a ledger spent together."""
  mechanism = inputs.mechanism
  attempts = _aborted_event(mechanism, ledger)
  if isinstance(attempts, dp_accounting.NoOpDpEvent):
    spent = ledger.total_event
    planned = mechanism.event
    if not isinstance(planned, events.MixtureDpEvent):
      return spent
    # It is the one that was planned (`ledger_checks`), which has its strategy as well;
    # or a bound that others have, too, and then no more is known.
    known = isinstance(spent, events.MixtureDpEvent)
    return planned if known else dataclasses.replace(planned, strategy=None)
  return events.simplify(dp_accounting.ComposedDpEvent([ledger.total_event, attempts]))


def _epsilon_planned(inputs: inputs_lib.Inputs, ledger: ledger_lib.Ledger) -> float:
  """Epsilon of all rounds planned, with the attempts that were aborted so far."""
  mechanism = inputs.mechanism
  attempts = _aborted_event(mechanism, ledger)
  if isinstance(attempts, dp_accounting.NoOpDpEvent):
    return inputs.epsilon_planned
  return accountants.epsilon(
    dp_accounting.ComposedDpEvent([mechanism.event, attempts]),
    inputs.delta,
    inputs.accountant,
    mechanism.relation,
  )


def _clip_norms(entries: Sequence[ledger_lib.LedgerEntry]) -> dict[str, Any]:
  """Between which numbers the clip norms of the rounds are; `None` if one has none."""
  found = [entry.clip_norm for entry in entries]
  norms = [norm for norm in found if norm is not None]
  if len(norms) < len(found):
    return {'smallest': None, 'largest': None}
  return {'smallest': min(norms), 'largest': max(norms)}


def _only_clip_norm(entries: Sequence[ledger_lib.LedgerEntry]) -> Optional[float]:
  """The clip norm of all rounds; `None` if they have different ones, or none."""
  norms = _clip_norms(entries)
  return norms['largest'] if norms['smallest'] == norms['largest'] else None


def _generators(entries: Sequence[ledger_lib.LedgerEntry]) -> list[Optional[str]]:
  """What drew the noise, in the order of the first round of each."""
  return list(dict.fromkeys(entry.noise_generator for entry in entries))


def _check_target(inputs: inputs_lib.Inputs) -> None:
  if inputs.target_epsilon is None:
    return
  gaussian.check_epsilon(inputs.target_epsilon, 'target_epsilon')
  spent = inputs.epsilon_planned
  if not spent <= inputs.target_epsilon:
    raise ValueError(
      f'the mechanism spends epsilon = {rounding.up(spent)}, more than target_epsilon='
      f'{inputs.target_epsilon:g}.'
    )


# Of what is imported, which stays what it was. Reading it takes a third of a statement.
_version_of = functools.cache(importlib.metadata.version)


def _software() -> dict[str, Any]:
  return {
    **version.current().to_json(),
    'dp-accounting': _version_of('dp-accounting'),
    'numpy': _version_of('numpy'),
    'scipy': _version_of('scipy'),
    'python': platform.python_version(),
  }


def _union(lists: Any) -> list[str]:
  return list(dict.fromkeys(each for items in lists for each in items))


def _finite(value: float) -> Optional[float]:
  return float(value) if math.isfinite(value) else None

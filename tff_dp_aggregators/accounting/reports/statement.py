"""Builds the privacy statement: a guarantee with everything it rests on, as data.

`build` makes it from `Inputs`: a mechanism, a delta and the ledger of a run. Headings
follow section 5.3 of "How to DP-fy ML" (arXiv:2303.00654): setting, definition (unit,
adjacency, outputs, data accesses), accounting, verification. `model` has the types.
"""

import collections
import dataclasses
import importlib.metadata
import itertools
import json
import math
import platform
from collections.abc import Iterator
from typing import Any, Optional, Union

import dp_accounting
import msgspec
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import canaries as canaries_lib
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism as joint_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import guarantees
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

_TEXTS = terms.sentences('statement.j2')
_SAME = 1e-9  # Smaller relative differences of epsilons are round-off.
# Numbers of points of curves: over rounds, over rounds with a composition for each,
# over delta, and over delta with outcomes drawn for each.
_POINTS, _SAMPLED_POINTS, _DELTAS, _DRAWN_DELTAS = 200, 20, 33, 7
_LAGS, _MAX_DENSE = 64, 2048  # Number of lags; maximum rounds of a dense matrix.
_MAX_NUMBERS = 10_000  # The maximum size of a strategy that is part of the report.
# Bounds of a ledger's figures relative to the planned ones. More noise than planned
# would be privacy for which there is no evidence.
_BELOW, _ABOVE = 1 - 1e-6, 1 + 1e-9
# Facts that ledgers record as well as configurations; the first two are always stated.
_MECHANISM_FACTS = ('mechanism', 'noise_multiplier')
_IN_LEDGERS = (*_MECHANISM_FACTS, 'clip_norm')
_REMEDY = (
  'State mechanism, parts, rounds, noise, clip norm, limits or sampling as the run was '
  'planned with (the events of a sampled mechanism are its round_events); to compose '
  'runs of several mechanisms, give each as its JSON report, --report.'
)


def build(inputs: sources.Inputs, *, with_curves: bool = True) -> dict[str, Any]:
  """Builds the JSON-ready statement of a mechanism and a run of it.

  Infinite numbers are `None`, and without `with_curves` so are the points of plots.
  """
  mechanism, delta = inputs.mechanism, inputs.delta
  if mechanism is None:
    return _without_privacy(inputs, None)
  gaussian.check_delta(delta)
  if inputs.rounds_fixed_by is None:
    inputs.check_target(mechanism.event)
  if inputs.nbafl is not None:
    sources.check_nbafl(
      inputs.nbafl, mechanism, delta=delta, clip_norm=inputs.clip_norm
    )
  if inputs.simulated_cohort is not None:
    if inputs.rounds_fixed_by is not None:
      raise ValueError('rounds_fixed_by is for a guarantee, and this run has none.')
    return _without_privacy(inputs, _simulated_cohort(inputs))
  event, run, clip_norm = mechanism.event, None, inputs.clip_norm
  if inputs.ledger is None:
    spent, completed = _spent_in_log(inputs)
  else:
    _check_ledger(inputs, inputs.ledger)
    spent, event, run = _spent_in_ledger(inputs, inputs.ledger)
    completed = run.rounds_completed
    norms = run.clip_norms
    if mechanism.clipped_count_stddev is None:
      clip_norm = norms.largest if norms.smallest == norms.largest else None
  stopped = _stopped_early(inputs, completed, spent, event)
  is_complete = completed == mechanism.participation.num_rounds
  if is_complete or inputs.rounds_fixed_by is not None:
    event = spent
  if inputs.rounds_fixed_by is not None:
    inputs.check_target(event)
  curves = _curves(inputs, event, run) if with_curves else None
  target_rho = msgspec.UNSET if inputs.target_rho is None else inputs.target_rho
  target = model.Target.of(inputs, epsilon=inputs.target_epsilon, rho=target_rho)
  guarantee = guarantees.of_event(
    event, delta, mechanism.relation, inputs.accountant, mechanism.sensitivity_kind
  )
  adjacency: Any = mechanism.adjacency
  is_adaptive = mechanism.clipped_count_stddev is not None
  may_be_absent = adjacency == 'add_or_remove'
  placement = terms.PLACEMENTS[mechanism.noise_site]
  definition = model.Definition(
    privacy_unit=_TEXTS.privacy_unit,
    adjacency=model.NamedAdjacency(
      name=adjacency, meaning=_TEXTS.adjacencies[adjacency]
    ),
    outputs=placement.outputs + (_TEXTS.secret if mechanism.is_sampled else ''),
    covered=_TEXTS.covered + (_TEXTS.covered_if_adaptive if is_adaptive else []),
    not_covered=_TEXTS.not_covered
    + (_TEXTS.not_covered_if_counted if may_be_absent else [])
    + list(inputs.not_covered),
  )
  warnings = _warnings(inputs)
  canaries: Any = msgspec.UNSET
  if inputs.canary_record is not None:
    canaries = _canaries(inputs, guarantee, run)
    if shown := [each.epsilon for each in canaries.bounds if each.contradicts]:
      warning = _TEXTS.contradicted(
        rounding.down(max(shown), 4),
        rounding.up(guarantee.epsilon),
        rounding.exact(delta),
        rounding.exact(canaries.confidence),
      )
      warnings.insert(0, terms.in_a_line(warning))
  return model.to_json(
    model.Private.of(
      inputs,
      warnings=warnings,
      setting=placement.setting,
      definition=definition,
      mechanism=_mechanisms(inputs, clip_norm),
      participation=_participation(inputs),
      run=run,
      stopped=stopped,
      target=target if target.epsilon is not None or target_rho else None,
      guarantee=guarantee,
      canaries=canaries,
      other_guarantees=guarantees.others(inputs),
      nbafl=inputs.nbafl and _nbafl_of_run(inputs.nbafl),
      curves=curves,
      provenance=_provenance(inputs),
      software=software(),
      verification=model.Verification(
        command=inputs.command,
        files=[model.File(**file) for file in inputs.files],
        inputs=model.VerificationInputs.of(
          inputs,
          mechanism=mechanism.to_json(),
          strategy=_strategy(mechanism),
          event=events.to_json(event),
          target_rho=target_rho,
          clip_norm=clip_norm,
          with_curves=with_curves,
        ),
      ),
    )
  )


def _warnings(inputs: sources.Inputs) -> list[str]:
  mechanism, ledger, texts = inputs.mechanism, inputs.ledger, []
  entries = () if ledger is None else ledger.entries
  source = inputs.participation_source or {}
  planned, observed = source.get('planned') or {}, source.get('observed') or {}
  if planned.get('broken'):
    texts.append(_TEXTS.broken_limits(planned))
  clients = inputs.num_clients or observed.get('num_clients')
  clients = getattr(mechanism.participation, 'num_clients', clients)
  doubt = clients and gaussian.doubt_of_delta(inputs.delta, clients)
  if doubt and mechanism.has_noise:
    texts.append(doubt[0].upper() + doubt[1:])
  is_seeded = sources.noise_source_of(ledger) == sources.SEEDED_NOISE
  if mechanism.has_noise and (is_seeded or inputs.noise_source == sources.SEEDED_NOISE):
    texts.append(_TEXTS.known_noise)
  if mechanism.is_sampled:
    if any(entry.sampling_source == ledger_lib.SEED for entry in entries):
      texts.append(_TEXTS.known_draws(_without_sampling(inputs)))
    are_sizes_known = any(entry.cohort_requested is not None for entry in entries)
    if are_sizes_known and not sampling.of(mechanism.participation).has_public_sizes:
      texts.append(_TEXTS.known_sizes)
  return [terms.in_a_line(each) for each in texts]


def _without_sampling(inputs: sources.Inputs) -> str:
  """Epsilon of all planned rounds against whoever knows the draws; '' if infinite."""
  mechanism = inputs.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism):
    return ''  # Each part has its own event.
  # In a cohort of limited size, a client that is added takes the place of another one.
  is_capped = sampling.of(mechanism.participation).largest_cohort is not None
  moves_two = mechanism.adjacency == 'replace_one' or (
    mechanism.adjacency == 'add_or_remove' and is_capped
  )
  adjacency = 'replace_one' if moves_two else 'zero_out'
  epsilon = dataclasses.replace(
    mechanism, participation=mechanism.limits, adjacency=adjacency
  ).epsilon(inputs.delta)
  return '' if math.isinf(epsilon) else rounding.up(epsilon)


def _provenance(inputs: sources.Inputs) -> model.Provenance:
  """The origin of each fact that computing a report again does not confirm."""
  names = model.Provenance.__struct_fields__
  origins: Any = {name: _origin(name, inputs) for name in names}
  return model.Provenance(**origins)


def _origin(name: str, inputs: sources.Inputs) -> str:
  is_configured = any(file['role'] == 'config' for file in inputs.files)
  if name in _IN_LEDGERS and inputs.ledger is not None:
    return 'recorded'
  if name in _MECHANISM_FACTS:
    return 'recorded' if is_configured else 'stated'
  value = getattr(inputs, name)
  if name == 'clip_norm' and inputs.mechanism.parts:
    value = [part.clip_norm for part in inputs.mechanism.parts]
  if name == 'noise_source' and value == sources.noise_source_of(inputs.ledger):
    return 'recorded'
  if value in (getattr(sources.Inputs, name), sources.NOT_STATED):
    return 'not_stated'
  if name == 'cap_enforced_by' and inputs.mechanism.limits.assumed_at_most is None:
    return 'not_stated'  # There is no such assumption.
  if is_configured:
    return 'recorded'
  source = inputs.participation_source or {}
  if name in ('enforced_by', 'cap_enforced_by') and 'basis' in source:
    if value == sources.enforced_by_log(source, inputs.ledger is not None):
      return 'recorded'
  return 'stated'


def is_bound(*statements: dict[str, Any]) -> bool:
  """Whether the sensitivity of any run in the statements is only an upper bound."""
  return any(
    run['mechanism']['sensitivity_kind'] != 'exact'
    for each in statements
    for _, run in model.runs(each)
  )


def build_nbafl(plan: nbafl.Nbafl, *, command: Optional[str] = None) -> dict[str, Any]:
  """Builds the statement of an NbAFL plan: what its formulas claim, and what holds."""
  of_plan = _nbafl_of_run(plan)
  # The guarantee of a client against whoever sees the models. The adjacency is zero-out
  # if all clients take part in every round, and otherwise replace-one.
  central = next(
    row for row in of_plan.guarantees if (row.seen, row.unit) == ('downlink', 'client')
  )
  is_private = central.epsilon is not None and math.isfinite(central.epsilon)
  return model.to_json(
    model.Nbafl(
      mechanism=of_plan.plan,
      guarantee=model.GuaranteeOfPlan.of(central, is_private=is_private),
      guarantees=of_plan.guarantees,
      software=software(),
      verification=model.OtherVerification(
        command=command, inputs={'plan': dataclasses.asdict(plan)}
      ),
    )
  )


def _nbafl_of_run(plan: nbafl.Nbafl) -> model.NbaflOfRun:
  return model.NbaflOfRun(
    plan=model.NbaflPlan.of(plan, name='nbafl'),
    guarantees=[model.NbaflGuarantee.of(each) for each in plan.guarantees()],
  )


def _without_privacy(
  run: sources.Inputs, cohort: Optional[model.SimulatedCohort]
) -> dict[str, Any]:
  verification = None
  if run.files or cohort is not None:
    verification = model.OtherVerification(
      command=run.command,
      files=[model.File(**file) for file in run.files],
      inputs={'accountant': run.accountant},
    )
  return model.to_json(
    model.WithoutPrivacy.of(
      run,
      mechanism=None,
      simulated_cohort=cohort,
      not_covered=list(run.not_covered),
      verification=verification,
    )
  )


def _simulated_cohort(inputs: sources.Inputs) -> model.SimulatedCohort:
  mechanism, cohort, ledger = inputs.mechanism, inputs.simulated_cohort, inputs.ledger
  if mechanism.parts or ledger is None or cohort is None:
    raise ValueError(
      'a larger cohort is simulated with one mechanism for all weights, and has a '
      'ledger; something was altered.'
    )
  _compare(inputs, ledger)
  rounds, accountant, epsilon = len(ledger.entries), None, None
  if mechanism.noise_multiplier:
    event = event_of_rounds(mechanism, rounds)
    accountant = inputs.accountant or accountants.tightest(event, mechanism.relation)
    epsilon = inputs.epsilon_of(event)
  stddev = mechanism.clipped_count_stddev
  return model.SimulatedCohort.of(
    cohort,
    inputs,
    mechanism=mechanism.name,
    strategy_checksum=mechanism.strategy.checksum,
    noise_multiplier=mechanism.noise_multiplier / cohort.scale,
    simulated_noise_multiplier=mechanism.noise_multiplier,
    clipped_count_stddev=None if stddev is None else stddev / cohort.scale,
    simulated_clipped_count_stddev=stddev,
    participation=terms.of_scheme('sentence', mechanism.participation),
    rounds_completed=rounds,
    rounds_planned=mechanism.participation.num_rounds,
    ledger_head=model.LedgerHead.of(ledger.head),
    simulated_epsilon=epsilon,
    accountant=accountant,
    adjacency=mechanism.adjacency,
  )


def event_of_rounds(
  mechanism: mechanism_lib.Mechanism, rounds: int
) -> dp_accounting.DpEvent:
  """The event of the first `rounds` rounds, as it would be in a ledger of them."""
  if rounds == mechanism.participation.num_rounds:
    return mechanism.event
  counted = collections.Counter(mechanism.round_events[:rounds])
  return events.simplify(
    dp_accounting.ComposedDpEvent(
      [dp_accounting.SelfComposedDpEvent(*each) for each in counted.items()]
    )
  )


def _mechanisms(inputs: sources.Inputs, clip_norm: Optional[float]) -> Any:
  if not inputs.mechanism.parts:
    return _mechanism(inputs, clip_norm)
  joint, parts = inputs.mechanism, []
  for part in joint.parts:
    weights = (inputs.weights_of_parts or {}).get(part.name)
    shapes = None if weights is None else list(weights.values())
    parts.append(
      _mechanism(
        dataclasses.replace(inputs, mechanism=part.mechanism, ledger=None),
        part.clip_norm,
        model.Part,
        part=part.name,
        patterns=list(part.weights),
        weights=None if weights is None else list(weights),
        shapes=shapes,
        num_parameters=None if shapes is None else sum(map(math.prod, shapes)),
        share=joint.shares[part.name],
        share_of_mu_squared=joint.shares_of_mu_squared.get(part.name),
      )
    )
  return model.JointMechanism.of(
    joint,
    inputs,
    num_rounds=joint.participation.num_rounds,
    strategy_checksum=joint.strategy.checksum,
    parts=parts,
  )


def _mechanism(
  inputs: sources.Inputs,
  clip_norm: Optional[float],
  struct: type[model.Mechanism] = model.Mechanism,
  **of_part: Any,
) -> Any:
  mechanism = inputs.mechanism
  strategy, placement = mechanism.strategy, mechanism.placement
  integers = _integer_noise(mechanism, inputs.ledger)
  factor = 1.0 if integers is None else integers.rounding_factor
  sensitivity = factor * mechanism.sensitivity
  simulated_epsilon = None
  if placement.is_simulation:
    simulated = mechanism.event_with(mechanism.noise_multiplier)
    simulated_epsilon = inputs.epsilon_of(simulated)
  is_adaptive = mechanism.clipped_count_stddev is not None
  error, noise = strategy.per_query_error(), error_multiplier(mechanism)
  in_sum = noises.MIN_CLIENTS in dict(mechanism.options) or not placement.is_of_client
  return struct.of(
    mechanism,
    strategy,
    inputs,
    strategy=strategy.kind,
    strategy_checksum=strategy.checksum,
    registered={
      **dict.fromkeys(mechanism_lib.options()),
      **dict(mechanism.options),
      **registry.options_of(strategy),
    },
    clip_norm=clip_norm,
    adaptive_clipping=model.AdaptiveClipping.of(mechanism) if is_adaptive else None,
    sensitivity=sensitivity,
    sensitivity_squared=factor**2 * mechanism.sensitivity_squared,
    effective_noise_multiplier=mechanism.noise_multiplier / sensitivity,
    integer_noise=integers,
    simulated_epsilon=simulated_epsilon,
    # Errors are of the noise in prefix sums, in clip norms.
    error_of='sum' if in_sum else 'client',
    rmse=noise * math.sqrt(float(error.mean())),
    max_error=noise * math.sqrt(float(error.max())),
    **of_part,
  )


def error_multiplier(mechanism: mechanism_lib.Mechanism) -> float:
  """Stddev of the noise of a sum, in clip norms, with the fewest clients (or one)."""
  min_clients = dict(mechanism.options).get(noises.MIN_CLIENTS, 1)
  return mechanism.sum_noise_multiplier(min_clients)


def _integer_noise(
  mechanism: mechanism_lib.Mechanism, ledger: Optional[ledger_lib.Ledger]
) -> Optional[model.IntegerNoise]:
  noise = mechanism.noise
  if not noise.is_integer:
    return None
  grid = distributed_noise.design(
    noise.name,
    clip_norm=1.0,
    noise_multiplier=mechanism.noise_multiplier,
    **dict(noise.numbers),
  )
  entries = () if ledger is None else ledger.entries
  # The rounds of a ledger may have had more clients than the grid was planned for.
  clients = max([grid.max_clients, *(each.cohort_reported or 0 for each in entries)])
  return model.IntegerNoise.of(
    grid,
    padded_dimension=grid.dimension,
    steps=grid.scaled_clip_norm,
    rounding_factor=grid.l2_sensitivity / grid.scaled_clip_norm,
    rounding_error=math.sqrt(clients) / 2 / grid.scaled_clip_norm,
    clients=clients,
    wrap_probability=grid.wrap_probability_with(clients),
  )


def _participation(inputs: sources.Inputs) -> model.Participation:
  schema, limits = inputs.mechanism.participation, inputs.mechanism.limits
  has_cap = limits.assumed_at_most is not None
  return model.Participation.of(
    limits,
    inputs,
    schema=sampling.of(schema).name,
    registered=sampling.to_json(schema),
    assumption=terms.of_scheme('assumption', schema),
    rounds_between=limits.min_separation - 1,
    cap_enforced_by=(inputs.cap_enforced_by or sources.NOT_STATED) if has_cap else None,
    source=inputs.participation_source,
  )


def _strategy(mechanism: joint_lib.AnyMechanism) -> Optional[dict[str, Any]]:
  """The strategy as JSON, or those of parts by name; `None` if one is large."""
  parts: Any = mechanism.parts
  by_part = {part.name: part.mechanism.strategy for part in parts}
  single: Any = mechanism.strategy
  for strategy in by_part.values() or [single]:
    values = strategy.parameters().values()
    if sum(np.size(value) for value in values if value is not None) > _MAX_NUMBERS:
      return None
  written = {name: json.loads(each.to_json()) for name, each in by_part.items()}
  return written or json.loads(single.to_json())


def _spent_in_log(inputs: sources.Inputs) -> tuple[dp_accounting.DpEvent, int]:
  """The event of a round log's rounds, and their number; without a log, of all."""
  mechanism, in_log = inputs.mechanism, inputs.limits_in_log
  num_rounds = mechanism.participation.num_rounds
  if in_log is None or in_log.num_rounds == num_rounds:
    return mechanism.event, num_rounds
  # The strategy is for all planned rounds; nobody took part in those after the log.
  shown = strategies.Participation(
    num_rounds, in_log.min_separation, in_log.possible_participations
  )
  event = dataclasses.replace(mechanism, participation=shown).event
  return event, in_log.num_rounds


def _stopped_early(
  inputs: sources.Inputs,
  completed: int,
  spent: dp_accounting.DpEvent,
  planned: dp_accounting.DpEvent,
) -> Union[model.Stopped, msgspec.UnsetType]:
  """A run that ended early; UNSET for other runs."""
  rounds = inputs.mechanism.participation.num_rounds
  spent_epsilon, full_epsilon = math.inf, math.inf
  if completed != rounds and inputs.mechanism.is_private:
    spent_epsilon, full_epsilon = inputs.epsilon_of(spent), inputs.epsilon_of(planned)
  # Equal if, for example, the rounds of each client were drawn in advance.
  if spent_epsilon >= full_epsilon * (1 - _SAME):
    if inputs.rounds_fixed_by is not None:
      raise ValueError(
        f'rounds_fixed_by={inputs.rounds_fixed_by!r} is for a private run that ended '
        f'early and spent less than its {rounds} planned rounds would have; leave it '
        'out.'
      )
    return msgspec.UNSET
  return model.Stopped.of(
    inputs,
    rounds_completed=completed,
    rounds_planned=rounds,
    epsilon_completed=spent_epsilon,
    epsilon_planned=full_epsilon,
  )


def _spent_in_ledger(
  inputs: sources.Inputs, ledger: ledger_lib.Ledger
) -> tuple[dp_accounting.DpEvent, dp_accounting.DpEvent, model.Run]:
  """Events of the ledger and of all planned rounds, with aborted attempts; the run."""
  mechanism, planned = inputs.mechanism, inputs.mechanism.event
  spent, attempts = ledger.total_event, ledger_lib.total_event(ledger.aborted)
  reported = sum(1 for each in ledger.aborted if each.cohort_reported)
  if mechanism.placement.is_of_client and reported:
    # Nothing was released of aborted attempts, but the server has such reports. The
    # event is of a client that takes part for the first time in the attempt.
    attempts = dp_accounting.SelfComposedDpEvent(mechanism.round_events[0], reported)
  if not isinstance(attempts, dp_accounting.NoOpDpEvent):
    spent = events.simplify(dp_accounting.ComposedDpEvent([spent, attempts]))
    planned = events.simplify(dp_accounting.ComposedDpEvent([planned, attempts]))
  elif isinstance(planned, events.MixtureDpEvent):
    # By `_check_ledger` it is the planned event, which has the strategy as well; or it
    # is a bound that other mixtures have too, and then the strategy is not known.
    is_mixture = isinstance(spent, events.MixtureDpEvent)
    spent = planned if is_mixture else dataclasses.replace(planned, strategy=None)
    planned = spent  # The first round spends all of it.
  norms: list[Any] = [entry.clip_norm for entry in ledger.entries]
  norms = [None] if None in norms else norms
  generators = dict.fromkeys(entry.noise_generator for entry in ledger.entries)
  run = model.Run.of(
    inputs,
    rounds_completed=len(ledger.entries),
    rounds_released_again=list(ledger.repeated),
    bytes_cut_off=ledger.cut,
    aborted_attempts=model.AbortedAttempts(
      count=len(ledger.aborted),
      rounds=list(dict.fromkeys(attempt.round for attempt in ledger.aborted)),
      epsilon=accountants.epsilon(attempts, inputs.delta, None, mechanism.relation),
    ),
    ledger_head=model.LedgerHead.of(ledger.head),
    clip_norms=model.ClipNorms(smallest=min(norms), largest=max(norms)),
    noise_generators=list(generators),
    rounds_planned=mechanism.participation.num_rounds,
    epsilon_planned=inputs.epsilon_of(planned),
  )
  return spent, planned, run


def _canaries(
  inputs: sources.Inputs, guarantee: model.Guarantee, run: Any
) -> model.Canaries:
  record: Any = inputs.canary_record
  audit = canaries_lib.audit(
    record,
    delta=inputs.delta,
    planned_epsilon=run.epsilon_planned,
    is_gaussian=inputs.mechanism.is_one_gaussian,
  )
  claimed: Any = guarantee.epsilon
  return model.Canaries.of(
    audit,
    bounds=[
      model.CanaryBound.of(each, contradicts=each.epsilon > claimed)
      for each in audit.bounds
    ],
  )


def software() -> model.Software:
  """Versions of the software; commit and modified files where they are known."""
  return model.Software(
    **version.current().to_json(),
    dp_accounting=importlib.metadata.version('dp-accounting'),
    numpy=importlib.metadata.version('numpy'),
    scipy=importlib.metadata.version('scipy'),
    python=platform.python_version(),
  )


def _curves(
  inputs: sources.Inputs, event: dp_accounting.DpEvent, run: Optional[model.Run]
) -> model.Curves:
  mechanism, delta = inputs.mechanism, inputs.delta
  num_rounds, relation = mechanism.participation.num_rounds, mechanism.relation
  rounds = np.unique(np.linspace(0, num_rounds - 1, _POINTS).astype(int))
  completed, by = num_rounds, accountants.EXACT
  if not mechanism.is_one_gaussian:
    by = accountants.quick_bound(mechanism.event, relation) or accountants.tightest(
      mechanism.event, relation
    )
  is_shown = mechanism.is_private
  if run is not None:
    completed = run.rounds_completed
    # Aborted attempts may spend privacy between rounds.
    is_shown &= not (mechanism.placement.is_of_client and run.aborted_attempts.count)
  spent: list[list[float]] = []
  if is_shown and mechanism.is_one_gaussian:
    multipliers = mechanism.noise_multipliers_so_far
    spent = [
      [int(each) + 1, gaussian.epsilon_of(1 / float(multipliers[each]), delta)]
      for each in rounds[rounds < completed]
    ]
  elif is_shown:  # At the rounds in which the first group of clients takes part.
    limits = mechanism.limits
    last = min(-(-completed // limits.min_separation), limits.possible_participations)
    spent = [
      [
        (turns - 1) * limits.min_separation + 1,
        accountants.epsilon(mechanism.event_of_turns(turns), delta, by, relation),
      ]
      for turns in np.unique(np.linspace(1, last, _SAMPLED_POINTS).astype(int)).tolist()
    ]
  error: list[list[float]] = []
  correlation: list[list[float]] = []
  if not mechanism.parts:  # Each part would have its own.
    strategy = mechanism.strategy
    errors = error_multiplier(mechanism) * np.sqrt(strategy.per_query_error())
    error = [[int(each) + 1, float(errors[each])] for each in rounds]
    if strategy.num_rounds <= _MAX_DENSE or strategy.needs_no_matrix:
      by_lag = enumerate(strategy.noise_correlation(_LAGS))
      correlation = [[lag, float(value)] for lag, value in by_lag]
  return model.Curves(
    epsilon_by_delta=by_delta(event, delta, relation, inputs.accountant),
    epsilon_by_round=[point for point in spent if math.isfinite(point[1])],
    epsilon_by_round_accountant=by,
    error_by_round=error,
    noise_correlation=correlation,
  )


def by_delta(
  event: dp_accounting.DpEvent,
  delta: float,
  relation: Relation,
  accountant: Optional[str],
) -> list[list[float]]:
  """Points of epsilon over delta, including `delta`."""
  name = accountant or accountants.tightest(event, relation)
  if accountants.ACCOUNTANTS[name].is_drawn:
    powers = np.linspace(math.log10(delta) - 1, -2, _DRAWN_DELTAS)
  else:
    powers = np.linspace(math.log10(min(1e-12, delta)), -2, _DELTAS)
  deltas = sorted({delta, *(float(10.0**power) for power in powers)}, reverse=True)
  composed = accountants.composed(event, name, relation)
  points = [[each, float(composed.get_epsilon(each))] for each in deltas]
  return [point for point in points if math.isfinite(point[1])]


# Comparison of each line of a ledger with the line that the mechanism plans.


def _check_ledger(inputs: sources.Inputs, ledger: ledger_lib.Ledger) -> None:
  """Raises ValueError if rounds of a ledger are not the mechanism's, by its schema."""
  mechanism = inputs.mechanism
  if not mechanism.is_sampled and mechanism.relation is not Relation.REPLACE_SPECIAL:
    raise ValueError(
      'ledgers of rounds without sampling hold events for zero-out adjacency; state '
      f'the mechanism with it, not with {mechanism.adjacency}.'
    )
  if ledger.aborted and mechanism.is_sampled and mechanism.has_noise:
    raise ValueError(
      f'the ledger has an aborted attempt at round {ledger.aborted[0].round}, and '
      'a second one makes clients likelier to be in it than the sampling says. State '
      'the mechanism with limits on participation, without sampling.'
    )
  _compare(inputs, ledger)
  needed = dict(mechanism.options).get(noises.MIN_CLIENTS, 0)
  for entry in ledger.entries:
    if needed and (entry.cohort_reported or 0) < needed:
      raise ValueError(
        f'round {entry.round} of the ledger was released with {entry.cohort_reported} '
        f'clients, and min_clients={needed} counts the noise of as many. State the '
        'mechanism with as many clients as reported in every round.'
      )


def _planned_lines(inputs: sources.Inputs) -> Iterator[dict[str, Any]]:
  mechanism, clip_norm = inputs.mechanism, inputs.clip_norm
  line: dict[str, Any] = {'parts': None, **mechanism.line(None), 'clip_norm': clip_norm}
  if clip_norm is None or mechanism.clipped_count_stddev is not None:
    del line['clip_norm']  # It is not stated, or not constant.
  if inputs.simulated_cohort is not None:
    line['noise_multiplier'] /= inputs.simulated_cohort.scale
    line['dp_event'] = dp_accounting.NonPrivateDpEvent()
    yield from itertools.repeat(line, mechanism.participation.num_rounds)
  elif mechanism.has_noise and mechanism.is_private and mechanism.is_one_gaussian:
    for multiplier in mechanism.noise_multipliers_so_far:
      yield {**line, 'effective_noise_multiplier': float(multiplier)}
  else:
    for event in mechanism.round_events:
      yield {**line, 'dp_event': event} if mechanism.has_noise else line


def _compare(inputs: sources.Inputs, ledger: ledger_lib.Ledger) -> None:
  entries, num_rounds = ledger.entries, inputs.mechanism.participation.num_rounds
  if not 1 <= len(entries) <= num_rounds:
    raise ValueError(
      f'the ledger lists {len(entries)} complete rounds; the mechanism is for 1 to '
      f'{num_rounds}.'
    )
  cohort, remedy = inputs.simulated_cohort, _REMEDY
  if cohort is not None:
    remedy = f'The run simulates a cohort {cohort.scale:g} times as large.'
  for entry, line in zip(entries, _planned_lines(inputs)):
    for name, value in line.items():
      stated = getattr(entry, name)
      if not _is_as_planned(stated, value, name):
        raise ValueError(
          f'round {entry.round} of the ledger has the '
          f'{name.removeprefix("dp_").replace("_", " ")} {stated}, but by the '
          f'mechanism it is {value}. {remedy}'
        )


def _is_as_planned(stated: Any, planned: Any, name: str) -> bool:
  """Whether a value is as planned, up to round-off in noise multipliers of events."""
  if isinstance(planned, dp_accounting.DpEvent):
    # Older ledgers have bounds instead of mixtures.
    accepted = map(events.to_json, (planned, events.with_bounds(planned)))
    stated = events.to_json(stated)
    return any(_is_as_planned(stated, each, name) for each in accepted)
  if isinstance(planned, dict) and isinstance(stated, dict):
    return set(stated) == set(planned) and all(
      _is_as_planned(stated[key], planned[key], f'{name}.{key}') for key in planned
    )
  if isinstance(planned, list) and isinstance(stated, list):
    return len(stated) == len(planned) and all(
      _is_as_planned(*pair, name) for pair in zip(stated, planned)
    )
  if name == 'effective_noise_multiplier' or (
    name.startswith('dp_event') and name.endswith('.noise_multiplier')
  ):
    return stated is not None and bool(planned * _BELOW <= stated <= planned * _ABOVE)
  return bool(stated == planned)

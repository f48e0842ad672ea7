"""Computes the guarantees of a mechanism: epsilon by all accountants, and others.

Where clients make the noise, one epsilon is not enough: a client of the round knows its
own share of it, a server that sees each report sees only a single share, and where the
noise hides each report, the sum has more of it. `accounting.local` has the reasons.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import terms

_ADDED = '; with what other releases state added to it, an upper bound'
_STATED_DELTAS = tuple(10.0**-power for power in range(4, 11, 2))
FALSE_ALARMS = 0.01  # The false positive rate for which the largest power is stated.
# Deltas at which the privacy curve is evaluated; the larger ones are for small epsilon.
_DELTAS = (*np.logspace(-12, -1, 23), *np.linspace(0.15, 0.95, 17), 0.99)
# For accountants that draw outcomes for each delta: few, none of which takes millions.
_DRAWN_DELTAS = (*np.logspace(-4, -1, 4), *np.linspace(0.2, 0.9, 8))
# Observers; each sees everything that those before it see.
_OBSERVERS = ('released', 'other_client', 'server', 'everybody')
# Observers against whom the guarantee itself holds, by the place of the noise.
_HOLDS_AGAINST = {
  noises.SERVER.name: ('released', 'other_client'),
  noises.CLIENTS.name: ('released',),
  noises.LOCAL.name: ('everybody',),
  noises.CLIENTS_AND_SERVER.name: ('everybody',),
  noises.LOCAL_APPROXIMATE.name: (),
}
_OTHER = {'zero_out': 'replace_one', 'replace_one': 'zero_out'}


def of_event(
  event: dp_accounting.DpEvent,
  delta: float,
  relation: Relation,
  accountant: Optional[str] = None,
  sensitivity_kind: str = 'exact',
) -> model.Guarantee:
  """The guarantee of an event; every epsilon is a bound if the sensitivity is one."""
  gaussian.check_delta(delta)
  chosen = accountant or accountants.tightest(event, relation)
  names = dict.fromkeys((chosen, *terms.BESIDE.get(chosen, terms.BESIDE_OTHERS)))
  composed, listed = {}, []
  for name in names:
    try:
      composed[name] = accountants.composed(event, name, relation)
      value = composed[name].get_epsilon(delta)
    except (dp_accounting.UnsupportedEventError, ValueError):
      if name == chosen:
        raise
      continue
    instead = composed[name].instead(delta)
    by = instead.accountant if instead else name
    kind = terms.of_accountant(by, sensitivity_kind).what
    listed.append(
      model.AccountantsEpsilon(
        name=name,
        epsilon=value,
        kind=kind + (_ADDED if accountants.has_stated(event) else ''),
        instead=None if instead is None else model.Instead.of(instead),
      )
    )
  by_name: dict[str, Any] = {each.name: each.epsilon for each in listed}
  try:
    mu = accountants.gdp_mu(event)
  except dp_accounting.UnsupportedEventError:
    mu = None
  pure = accountants.pure_epsilon(event, relation)
  return model.Guarantee(
    epsilon=by_name[chosen],
    delta=delta,
    is_private=math.isfinite(by_name[chosen]),
    accountant=chosen,
    registered={f'epsilon_{name}': by_name.get(name) for name in terms.IN_GUARANTEE},
    zcdp_rho=None if mu is None else mu * mu / 2,
    gdp_mu=mu,
    pure_epsilon=pure,
    recognised=model.Recognised(
      false_alarms=FALSE_ALARMS, share=max_power(composed, event, relation, mu, pure)
    ),
    accountants=listed,
    epsilon_by_delta=[
      model.DeltasEpsilon(
        delta=each,
        epsilon=composed[chosen].get_epsilon(each),
        accountant=getattr(composed[chosen].instead(each), 'accountant', chosen),
      )
      for each in sorted({delta, *_STATED_DELTAS}, reverse=True)
    ],
  )


def max_power_by(accountant: Any, pure_epsilon: float) -> float:
  """The largest power of a test with `FALSE_ALARMS`, by one accountant."""
  # It is the minimum over points of the privacy curve, so all of them have to be right:
  # where they are drawn, the probabilities that they are wrong are added to it.
  points, rate, failure = [(pure_epsilon, 0.0)], 1.0, 0.0
  for delta in map(float, _DRAWN_DELTAS if accountant.is_drawn else _DELTAS):
    try:
      points.append((accountant.get_epsilon(delta), delta))
    except ValueError:
      continue  # The accountant has no answer; fewer points are a bound as well.
    if accountant.is_drawn:
      failure += accountant.failure_probability(delta)
  for epsilon, delta in points:
    first = math.exp(min(epsilon, 100.0)) * FALSE_ALARMS + delta  # Above 1 at the cap.
    second = 1 - math.exp(-epsilon) * (1 - delta - FALSE_ALARMS)
    rate = min(rate, first, second)
  return min(rate + failure, 1.0)


def max_power(
  composed: dict[str, Any],
  event: dp_accounting.DpEvent,
  relation: dp_accounting.NeighboringRelation,
  mu: Optional[float],
  pure_epsilon: float,
) -> float:
  """The largest power of a test with `FALSE_ALARMS` (arXiv:1905.02383, equation 6).

  Of what is no Gaussian, by the tightest accountant, or one that draws outcomes.
  """
  if mu is not None:
    normal = statistics.NormalDist()
    return normal.cdf(mu + normal.inv_cdf(FALSE_ALARMS))
  drawn = [name for name, each in composed.items() if each.is_drawn]
  return min(
    max_power_by(
      composed.get(name) or accountants.composed(event, name, relation), pure_epsilon
    )
    for name in {accountants.tightest(event, relation), *drawn}
  )


def others(inputs: sources.Inputs) -> list[model.OtherGuarantee]:
  """Other guarantees of a mechanism or its run; none if the server makes the noise."""
  if not inputs.mechanism.placement.is_on_clients or not inputs.mechanism.is_private:
    return []
  mechanism, placement = inputs.mechanism, inputs.mechanism.placement
  own, other = mechanism.adjacency, _OTHER[mechanism.adjacency]
  fewest = dict(mechanism.options).get(noises.MIN_CLIENTS)
  # With another client there are two or more; it can subtract its own noise.
  other_clients = None if fewest is None else max(fewest - 1, 1)
  # Observer, adjacency, and the least number of clients whose noise protects.
  rows: list[tuple[str, str, Optional[int]]] = [
    ('other_client', own, other_clients),
    ('released', other, fewest),
    ('server', own, 1),
  ]
  if placement.is_of_client:
    # For a sum of Laplace noise nothing better is known.
    has_sum_bound = fewest is not None and mechanism.noise.is_gaussian
    rows = [('everybody', other, 1)]
    if placement.adds_on_server or has_sum_bound:
      rows.append(('released', own, fewest))
    if placement.adds_on_server:
      rows.append(('released', other, fewest))
    if has_sum_bound:
      rows.append(('other_client', own, other_clients))
  rounds, ledger = mechanism.participation.num_rounds, inputs.ledger
  if ledger is not None and inputs.rounds_fixed_by is not None:
    rounds = len(ledger.entries)
  # How often a client is in a released sum, and how often it reports, aborted or not.
  released = sum(
    not isinstance(event, dp_accounting.NoOpDpEvent)
    for event in mechanism.round_events[:rounds]
  )
  attempts = () if ledger is None else ledger.aborted
  reports = released + sum(each.cohort_reported > 0 for each in attempts)
  stated = []
  for against, adjacency, clients in rows:
    if against == 'everybody':
      event = local.local_event(
        mechanism.noise_multiplier,
        noise=mechanism.noise.name,
        adjacency=adjacency,
        participations=reports,
      )
    else:
      times = reports if against == 'server' else released
      event = _event_of_sums(mechanism, clients, adjacency, times)
    words = terms.sentences('statement.j2').rests_on(against, placement.name, clients)
    rests_on, asked = terms.in_a_line(words), (inputs.delta, inputs.accountant)
    stated.append(_build((against, adjacency), event, rests_on, *asked))
  return stated


def _event_of_sums(
  mechanism: mechanism_lib.Mechanism,
  clients: Optional[int],
  adjacency: str,
  rounds: int,
) -> dp_accounting.DpEvent:
  """The event of `rounds` sums with the noise of `clients` clients, one if `None`."""
  noise = mechanism.noise_multiplier
  if mechanism.noise.is_gaussian:
    if not mechanism.placement.is_of_client:
      noise = local.share(noise, dict(mechanism.options)[noises.MIN_CLIENTS])
    return local.central_event(
      noise,
      min_clients=clients or 1,
      server_noise_multiplier=mechanism.server_noise_multiplier or 0.0,
      adjacency=adjacency,
      participations=rounds,
    )
  noise_event: Any = mechanism.noise.event(noise)
  factor = 2.0 if adjacency == 'replace_one' else 1.0
  event = dataclasses.replace(
    noise_event,
    num_clients=clients,
    l2_sensitivity=noise_event.l2_sensitivity * factor,
    l1_sensitivity=noise_event.l1_sensitivity * factor,
  )
  return dp_accounting.SelfComposedDpEvent(event, rounds)


def others_composed(
  parts: Sequence[dict[str, Any]], accountant: Optional[str]
) -> list[model.OtherGuarantee]:
  """Other guarantees of several runs together, each towards one observer of all."""
  runs = [run for part in parts for _, run in model.runs(part)]
  stated = [each for run in runs for each in run['other_guarantees']]
  found = []
  for row in dict.fromkeys((each['against'], each['adjacency']) for each in stated):
    known = [_event_against(run, *row) for run in runs]
    if None not in known:
      by_run, reasons = zip(*known)
      event = dp_accounting.ComposedDpEvent(list(map(events.from_json, by_run)))
      rests_on = '; '.join(dict.fromkeys(reasons))
      found.append(_build(row, event, rests_on, stated[0]['delta'], accountant))
  return found


def _event_against(run: dict[str, Any], against: str, adjacency: str) -> Any:
  """Event and assumptions of a run for an observer, or for one who sees more."""
  for observer in _OBSERVERS[_OBSERVERS.index(against) :]:
    for row in run['other_guarantees']:
      if (row['against'], row['adjacency']) == (observer, adjacency):
        return row['event'], row['rests_on']
    if observer in _HOLDS_AGAINST[run['mechanism']['noise_site']]:
      if run['definition']['adjacency']['name'] == adjacency:
        return run['verification']['inputs']['event'], 'what the guarantee rests on'
  return None


def _build(
  row: Any,
  event: dp_accounting.DpEvent,
  rests_on: str,
  delta: float,
  accountant: Optional[str],
) -> model.OtherGuarantee:
  (against, adjacency), event = row, events.simplify(event)
  relation = sampling.ADJACENCIES[adjacency]
  return model.OtherGuarantee(
    against=against,
    adjacency=adjacency,
    event=events.to_json(event),
    epsilon=accountants.epsilon(event, delta, accountant, relation),
    delta=delta,
    accountant=accountant or accountants.tightest(event, relation),
    rests_on=rests_on,
  )

"""What a mechanism guarantees: epsilon by all accountants, and what else holds.

Who tells two neighbouring data sets apart is wrong at times. Whoever suspects a part
alpha of those in one wrongly catches at most a part of the other, by the trade-off
function of the mechanism (arXiv:1905.02383).

Where clients make the noise, one epsilon is not the whole answer: a client of the round
knows its own share, a server that sees more than the sum sees one share alone, and of
noise that hides each report the sum has more. `accounting.local` has the reasons.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Optional, cast

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
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import terms

_ADDED = '; with what other releases state added to it, an upper bound'
# Deltas at which every report states epsilon.
_STATED_DELTAS = tuple(10.0**-power for power in range(4, 11, 2))
# Wrong suspicions for which it is stated.
FALSE_ALARMS = 0.01
# Where the privacy curve is looked at; the larger deltas serve where epsilon is small.
_DELTAS = (*np.logspace(-12, -1, 23), *np.linspace(0.15, 0.95, 17), 0.99)
# The same, where outcomes are drawn for each: few, of which none takes millions.
_DRAWN_DELTAS = (*np.logspace(-4, -1, 4), *np.linspace(0.2, 0.9, 8))
# Who looks; each sees all that those before see.
_OBSERVERS = ('released', 'other_client', 'server', 'everybody')
# Whom the guarantee itself holds against, by where the noise is made.
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
  """What an event guarantees; a 'bound' of the sensitivity makes every epsilon one."""
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
    other = composed[name].instead(delta)
    said = terms.of_accountant(other.accountant if other else name)
    what = said.of_sensitivity(sensitivity_kind).what
    listed.append(
      model.AccountantsEpsilon(
        name=name,
        epsilon=value,
        kind=what + (_ADDED if accountants.has_stated(event) else ''),
        instead=None if other is None else model.Instead.of(other),
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
      false_alarms=FALSE_ALARMS, share=caught(composed, event, relation, mu, pure)
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


def caught_by(accountant: Any, pure_epsilon: float, is_drawn: bool = False) -> float:
  """The largest part that is caught with `FALSE_ALARMS`; 1 without a guarantee.

  It is the least that any point of the privacy curve gives, so all of them have to be
  right: where they are drawn, the probabilities that one is not are added to it.
  """
  points, least, doubt = [(pure_epsilon, 0.0)], 1.0, 0.0
  for delta in map(float, _DRAWN_DELTAS if is_drawn else _DELTAS):
    try:
      points.append((accountant.get_epsilon(delta), delta))
    except ValueError:
      continue  # Where it has no answer; fewer points are a bound as well.
    if is_drawn:
      doubt += accountant.failure_probability(delta)
  for epsilon, delta in points:
    few = math.exp(min(epsilon, 100.0)) * FALSE_ALARMS + delta  # Above 1 long before.
    most = 1 - math.exp(-epsilon) * (1 - delta - FALSE_ALARMS)
    least = min(least, few, most)
  return min(least + doubt, 1.0)


def caught(
  composed: dict[str, Any],
  event: dp_accounting.DpEvent,
  relation: dp_accounting.NeighboringRelation,
  mu: Optional[float],
  pure_epsilon: float,
) -> float:
  """By the tightest accountant, or a drawn one; of a Gaussian, by equation 6."""
  if mu == math.inf:
    return 1.0
  if mu is not None:
    normal = statistics.NormalDist()
    return normal.cdf(mu + normal.inv_cdf(FALSE_ALARMS))
  drawn = [name for name in composed if accountants.ACCOUNTANTS[name].is_drawn]
  shares = []
  for name in dict.fromkeys([accountants.tightest(event, relation), *drawn]):
    accountant = composed.get(name) or accountants.composed(event, name, relation)
    is_drawn = accountants.ACCOUNTANTS[name].is_drawn
    shares.append(caught_by(accountant, pure_epsilon, is_drawn))
  return min(shares)


def others(inputs: inputs_lib.Inputs) -> list[model.OtherGuarantee]:
  """What else holds of a mechanism or its run; nothing with the server's noise."""
  if not inputs.mechanism.placement.is_on_clients or not inputs.mechanism.is_private:
    return []
  mechanism = cast(mechanism_lib.Mechanism, inputs.mechanism)
  placement = mechanism.placement
  honest, other = mechanism.adjacency, _OTHER[mechanism.adjacency]
  fewest = dict(mechanism.options).get(noises.MIN_CLIENTS)
  # With another client in the round there are two; it takes its own noise away.
  left = None if fewest is None else max(fewest - 1, 1)
  # Against whom, for which adjacency, and with the noise of at least how many clients.
  rows: list[tuple[str, str, Optional[int]]] = [
    ('other_client', honest, left),
    ('released', other, fewest),
    ('server', honest, 1),
  ]
  if placement.is_of_client:
    # Nothing better is known of the sum of Laplace noise.
    is_known = fewest is not None and mechanism.noise.is_gaussian
    rows = [('everybody', other, 1)]
    if placement.adds_on_server or is_known:
      rows.append(('released', honest, fewest))
    if placement.adds_on_server:
      rows.append(('released', other, fewest))
    if is_known:
      rows.append(('other_client', honest, left))
  released, reports = _reports(inputs)
  found = []
  for against, adjacency, clients in rows:
    if against == 'everybody':
      event = local.local_event(
        mechanism.noise_multiplier,
        noise=mechanism.noise.name,
        adjacency=adjacency,
        participations=reports,
      )
    else:
      rounds = reports if against == 'server' else released
      event = _of_sums(mechanism, clients, adjacency, rounds)
    said = terms.sentences('statement.j2').rests_on(against, placement.name, clients)
    rests_on = terms.in_a_line(said)
    found.append(
      _stated(against, adjacency, event, rests_on, inputs.delta, inputs.accountant)
    )
  return found


def _of_sums(
  mechanism: mechanism_lib.Mechanism,
  clients: Optional[int],
  adjacency: str,
  rounds: int,
) -> dp_accounting.DpEvent:
  """The event of so many sums with the noise of so many clients, one if not known."""
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
  one: Any = mechanism.noise.event(noise)
  moved = 2.0 if adjacency == 'replace_one' else 1.0
  event = dataclasses.replace(
    one,
    num_clients=clients,
    l2_sensitivity=one.l2_sensitivity * moved,
    l1_sensitivity=one.l1_sensitivity * moved,
  )
  return dp_accounting.SelfComposedDpEvent(event, rounds)


def others_composed(
  parts: Sequence[dict[str, Any]], accountant: Optional[str]
) -> list[model.OtherGuarantee]:
  """What else holds of several runs together: towards somebody who looks at all.

  Of a run where nothing is stated for that observer, what is stated for one who sees
  more holds. Where nothing holds of one run, nothing does of all.
  """
  runs = [run for part in parts for _, run in model.runs(part)]
  stated = [each for run in runs for each in run['other_guarantees']]
  found = []
  for against, adjacency in dict.fromkeys(
    (each['against'], each['adjacency']) for each in stated
  ):
    towards = [_towards(run, against, adjacency) for run in runs]
    held = [each for each in towards if each is not None]
    if len(held) == len(runs):
      event = dp_accounting.ComposedDpEvent([events.from_json(e) for e, _ in held])
      rests_on = '; '.join(dict.fromkeys(said for _, said in held))
      delta = stated[0]['delta']
      found.append(_stated(against, adjacency, event, rests_on, delta, accountant))
  return found


def _towards(
  run: dict[str, Any], against: str, adjacency: str
) -> Optional[tuple[Any, str]]:
  """Event of a run for an observer, or one who sees more, and what that rests on."""
  for each in _OBSERVERS[_OBSERVERS.index(against) :]:
    for row in run['other_guarantees']:
      if (row['against'], row['adjacency']) == (each, adjacency):
        return row['event'], row['rests_on']
    if each in _HOLDS_AGAINST[run['mechanism']['noise_site']]:
      if run['definition']['adjacency']['name'] == adjacency:
        return run['verification']['inputs']['event'], 'what the guarantee rests on'
  return None


def _reports(inputs: inputs_lib.Inputs) -> tuple[int, int]:
  """How often a client is in a released sum, and reports, in aborted attempts too."""
  mechanism, ledger = inputs.mechanism, inputs.ledger
  rounds = mechanism.participation.num_rounds
  if ledger is not None and inputs.rounds_fixed_by is not None:
    rounds = len(ledger.entries)
  released = sum(
    not isinstance(event, dp_accounting.NoOpDpEvent)
    for event in mechanism.round_events[:rounds]
  )
  attempts = () if ledger is None else ledger.aborted
  return released, released + sum(each.cohort_reported > 0 for each in attempts)


def _stated(
  against: Any,
  adjacency: Any,
  event: dp_accounting.DpEvent,
  rests_on: str,
  delta: float,
  accountant: Optional[str],
) -> model.OtherGuarantee:
  relation, event = sampling.ADJACENCIES[adjacency], events.simplify(event)
  return model.OtherGuarantee(
    against=against,
    adjacency=adjacency,
    event=events.to_json(event),
    epsilon=accountants.epsilon(event, delta, accountant, relation),
    delta=delta,
    accountant=accountant or accountants.tightest(event, relation),
    rests_on=rests_on,
  )

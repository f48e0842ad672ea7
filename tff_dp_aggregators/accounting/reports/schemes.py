"""Words for the schemes of participation: what reports and comparisons say of each.

`WORDS` has them by scheme, with the scheme's numbers as fields of format strings. A
scheme without words is reported by its name and numbers.
"""

import string
from typing import Any, Callable, NamedTuple, Union

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies


class Fact(NamedTuple):
  """A line of a report about a scheme.

  Attributes:
    term: What it is.
    value: Its value; a number is written with all its digits.
    meaning: What that means, in a few words; may be empty.
  """

  term: str
  value: Union[str, float]
  meaning: str = ''


class Words(NamedTuple):
  """What is said of a scheme with sampling; `{}` in texts are its attributes.

  Attributes:
    assumption: What is assumed, for the statement and the report.
    heading: What the rows of a comparison assume, and what their epsilon is for.
    selection: What the client selection of a simulation does.
    facts: Terms, values and meanings; a value without `{}` is the attribute itself,
      which is then written with all its digits.
  """

  assumption: str
  heading: str
  selection: str
  facts: tuple[tuple[str, str, str], ...]


WORDS: dict[type[sampling.Scheme], Words] = {
  sampling.PoissonSampling: Words(
    'Poisson sampling: each round draws from {group}, each client independently with '
    'probability {sampling_probability!r}, and keeps secret who was drawn',
    'If {drawn} is drawn by itself with probability {sampling_probability:.4g}, in '
    'secret; epsilon is for adding or removing one:',
    'draws each client by itself{in_groups}',
    (
      ('sampling probability', 'sampling_probability', ''),
      ('groups that take turns', 'num_groups', ''),
      ('rounds that one client may be drawn for', '{rounds_of_a_client}', ''),
    ),
  ),
  sampling.FixedSizeSampling: Words(
    'sampling of fixed size: each round draws {clients_per_round} of {num_clients} '
    'clients uniformly without replacement, and keeps secret who was drawn',
    'If {clients_per_round:,} of {num_clients:,} clients are drawn each round, without '
    'replacement and in secret; epsilon is for replacing one:',
    'draws each cohort uniformly without replacement',
    (
      ('population', 'num_clients', ''),
      ('cohort', 'clients_per_round', ''),
      ('rounds that one client may be drawn for', '{num_rounds}', ''),
    ),
  ),
  sampling.BallsInBins: Words(
    'balls in bins: each client draws, independently of data and of other clients, one '
    'of {cycle_length} places in a cycle, takes part in the round at that place in '
    'every cycle, and it is kept secret who is where',
    'If each client draws one place in a cycle of {cycle_length:,} rounds, in secret, '
    'and keeps it; epsilon is for adding or removing one:',
    'draws the place of each client in the cycle by itself, once',
    (
      ('rounds of a cycle', 'cycle_length', ''),
      (
        'rounds that one client is in',
        '{rounds_of_a_client}',
        'at most; which ones depends on its place alone',
      ),
    ),
  ),
  sampling.RandomAllocation: Words(
    'random allocation: each client draws, independently of data and of other clients, '
    '{rounds_of_a_client} of {num_rounds} rounds, all sets of {rounds_of_a_client} '
    'being equally likely, takes part in these, and it is kept secret who is where',
    'If each client draws {rounds_of_a_client} of {num_rounds:,} rounds, in secret; '
    'epsilon is for adding or removing one:',
    'draws the rounds of each client by itself, once',
    (
      (
        'rounds that one client is in',
        '{rounds_of_a_client}',
        'drawn uniformly from all {num_rounds}',
      ),
    ),
  ),
  sampling.BMinSepSampling: Words(
    'b-min-sep sampling: each round has each client that was in none of the {breaks} '
    'rounds before it, independently with probability {sampling_probability!r}, and '
    'keeps secret who was drawn; in the first {min_separation} rounds a client is free '
    'from a random one on, such that each round has the same expected number of '
    'clients',
    'If each client is drawn by itself with probability {sampling_probability:.4g} '
    'where it was in none of {breaks:,} rounds before, in secret; epsilon is for '
    'adding or removing one:',
    'draws each free client by itself and then gives it its break',
    (
      ('probability of a free client', 'sampling_probability', ''),
      ('min separation', 'min_separation', ''),
      ('probability of a client in a round', 'rate', ''),
    ),
  ),
}
# What the client selection of a simulation does that keeps limits.
_KEEPS_LIMITS: dict[type[sampling.Schedule], str] = {
  sampling.RandomEligible: 'draws a client again only within these limits',
  sampling.ShuffledEpochs: 'gives each client the same place in every epoch',
}


def assumption(schema: sampling.Schema) -> str:
  """What is assumed, for the statement and as a fact of the report."""
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return _told(scheme, _words(scheme).assumption)
  limits = scheme.limits
  if limits.max_participations == 1:
    return 'no sampling; a client takes part in at most one round'
  if limits.fixed_epoch:
    return (
      'no sampling, but fixed epochs: rounds of a client differ by multiples of '
      f'exactly {limits.min_separation}'
    )
  return 'no sampling; the rounds of a client are chosen in any way within the limits'


def sentence(schema: sampling.Schema) -> str:
  """What is assumed, for the report's list of assumptions."""
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return assumption(schema)
  limits = scheme.limits
  possible, assumed = limits.possible_by_separation, limits.assumed_at_most
  if possible == 1 or assumed == 1:  # Whichever it is, there is no more to say.
    return 'a client takes part in at most one round'
  if limits.fixed_epoch:
    apart = f'rounds of a client differ by multiples of exactly {limits.min_separation}'
  else:
    apart = (
      f'any two rounds of a client are at least {limits.min_separation} apart '
      f'({_rounds_between(limits)} them)'
    )
  if assumed is None:
    return f'{apart}, which leaves at most {possible} of them possible'
  return (
    f'{apart}, which leaves {possible} of them possible; and, an assumption of its '
    f'own, a client takes part in at most {assumed}'
  )


def facts(schema: sampling.Schema) -> tuple[Fact, ...]:
  """A scheme's numbers, for the report's section on participation."""
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return tuple(
      Fact(
        term,
        _told(scheme, value) if '{' in value else getattr(scheme, value),
        _told(scheme, meaning),
      )
      for term, value, meaning in _words(scheme).facts
    )
  limits = scheme.limits
  possible, assumed = limits.possible_by_separation, limits.assumed_at_most
  distance = 'a multiple of' if limits.fixed_epoch else 'at least'
  return (
    Fact(
      'min separation',
      f'{limits.min_separation} ({_rounds_between(limits)})',
      f'any two rounds of one client differ by {distance} this',
    ),
    Fact(
      'possible by separation',
      f'{possible}',
      f'the most of {limits.num_rounds} rounds that are so far apart',
    ),
    Fact(
      'assumed besides',
      'nothing' if assumed is None else f'at most {assumed}',
      'the most rounds of one client as far as it does not follow from the separation: '
      'an assumption of its own, and who breaks it has less privacy',
    ),
  )


def heading(schema: sampling.Schema) -> str:
  """What the rows of a comparison under a scheme assume, and what epsilon is for."""
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return _told(scheme, _words(scheme).heading)
  return 'Without sampling; epsilon is for zeroing out one client:'


def enforced_by(schedule: sampling.Schedule) -> str:
  """What makes sure that a schedule keeps its scheme."""
  if isinstance(schedule, sampling.Replay):
    # Not by its hash, which whoever knows all clients but one could try.
    checked = 'a schedule made beforehand, which was checked'
    if sampling.is_sampled(schedule.schema):
      return (
        f'{checked} for the rounds of each client; that it was drawn so, and is kept '
        'secret, is assumed'
      )
    return checked
  which = "the simulation's client selection (sampling.{}), which {}"
  if isinstance(schedule, sampling.SampledSchedule):
    scheme = schedule.sampling
    does = _told(scheme, _words(scheme).selection)
    drawn = which.format(type(scheme).__name__, does)
    return f'{drawn}; the guarantee is towards those who do not know its seed'
  if type(schedule) in _KEEPS_LIMITS:
    return which.format(type(schedule).__name__, _KEEPS_LIMITS[type(schedule)])
  return f'the schedule that the run was given ({type(schedule).__name__})'


def _words(scheme: Any) -> Words:
  own = [name for name in scheme.to_json() if name not in ('schema', 'num_rounds')]
  fallback = Words(
    str(scheme).replace('{', '{{').replace('}', '}}'),
    f'With {scheme.flag} sampling:',
    f'draws clients by {scheme.flag} sampling',
    tuple((name.replace('_', ' '), name, '') for name in own),
  )
  return WORDS.get(type(scheme), fallback)


def _told(scheme: Any, text: str) -> str:
  """A text with the scheme's numbers in it."""
  names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
  made = {name: _MADE[name](scheme) for name in names if name in _MADE}
  given = {name: getattr(scheme, name) for name in names if name not in _MADE}
  return text.format(**made, **given)


# What texts have besides attributes.
_MADE: dict[str, Callable[[Any], Any]] = {
  'breaks': lambda scheme: scheme.min_separation - 1,
  'group': lambda scheme: (
    f'the clients of one of {scheme.num_groups} groups, which take turns; the group of '
    'a client depends neither on data nor on which others there are'
    if scheme.num_groups > 1
    else 'all clients'
  ),
  'drawn': lambda scheme: (
    f'{scheme.num_groups} groups take turns and each client of the group'
    if scheme.num_groups > 1
    else 'each client'
  ),
  'in_groups': lambda scheme: (
    f', in one of {scheme.num_groups} groups, drawn once'
    if scheme.num_groups > 1
    else ''
  ),
}


def _rounds_between(limits: strategies.Participation) -> str:
  between = limits.min_separation - 1
  return f'{between} {"round" if between == 1 else "rounds"} between'

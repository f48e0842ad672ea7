"""What reports and programs call accountants, noises, placements of noise and schemes.

What is said of each, by name, stands in `templates/terms.j2` and `schemes.j2`.
"""

import functools
from typing import Any, NamedTuple, Optional

import jinja2

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import monte_carlo


def environment(package: str, **options: Any) -> jinja2.Environment:
  """Templates of 'reports' or 'planning', in which all names have to be known."""
  return jinja2.Environment(
    loader=jinja2.PackageLoader(f'tff_dp_aggregators.accounting.{package}'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    **options,
  )


@functools.cache
def sentences(name: str) -> Any:
  """What a template of plain text has, as attributes: texts, tables and macros."""
  templates = environment('reports')
  templates.globals['monte_carlo'] = monte_carlo
  return templates.get_template(name).module


def in_a_line(text: Any) -> str:
  """What a macro says, whose sentences stand in lines of their own."""
  return ' '.join(str(text).split())


class AccountantTerms(NamedTuple):
  """What is said of an accountant."""

  what: str  # What its epsilon is: exact or a bound, numerical or not; the citation.
  keeps: str  # What it keeps of a mechanism, beginning with the name.
  title: str  # The method in a few words.
  # The same where the sensitivity, by which the event is made, is known by a bound.
  what_of_bound: Optional[str] = None
  keeps_of_bound: Optional[str] = None

  def of_sensitivity(self, known_by: str) -> 'AccountantTerms':
    """With the words for a sensitivity that is known so: 'exact' or 'bound'."""
    if known_by == 'exact':
      return self
    return self._replace(
      what=self.what_of_bound or self.what, keeps=self.keeps_of_bound or self.keeps
    )


class OptionTerms(NamedTuple):
  """What is said of a number that noise or its placement takes."""

  help: str  # What it is and its default, to stand after 'For skellam: '.
  title: str
  meaning: str


class PlacementTerms(NamedTuple):
  """What is said of a place where noise is made."""

  help: str  # What that is, for the help of `--noise_site`.
  setting: str  # Who has to be trusted with what.
  outputs: str  # What the adversary sees.
  privacy: str = ''  # Of differential privacy, if it is not that of the server's noise.


_WORDS = sentences('terms.j2')
ACCOUNTANTS = {k: AccountantTerms(**said) for k, said in _WORDS.accountants.items()}
OPTIONS = {name: OptionTerms(**said) for name, said in _WORDS.options.items()}
PLACEMENTS = {name: PlacementTerms(**said) for name, said in _WORDS.placements.items()}
# Accountants whose epsilons a report lists beside that of another one, where they read
# the event, by its name; zCDP says nothing of samples.
BESIDE = {'pld': (accountants.QUICK_BOUND,), 'monte_carlo': ()}
BESIDE_OTHERS = (accountants.EXACT, accountants.QUICK_BOUND, 'zcdp')
# Those that every guarantee has a field `epsilon_<name>` for.
IN_GUARANTEE = (accountants.EXACT, 'pld', accountants.QUICK_BOUND, 'zcdp')


def of_accountant(name: str) -> AccountantTerms:
  """What is said of an accountant; its name, if it was registered from outside."""
  return ACCOUNTANTS.get(name) or AccountantTerms(f'by {name}', name, name)


def label(name: str, other: Optional[accountants.Instead]) -> str:
  """An accountant's name for a table, with whose bound it states if not its own."""
  if other is None:
    return name
  return f"{name} ({other.accountant}'s bound, as {other.reason})"


def describe(option: str) -> str:
  """What is said of an option of noise or its placement, for the help of its flag."""
  return f'For {noises.having(option, " and ")}: {OPTIONS[option].help}.'


# Schemes of participation.


def assumption(schema: sampling.Schema) -> str:
  """What is assumed, for the statement and as a fact of the report."""
  return _of_scheme('assumption', sampling.of(schema))


def sentence(schema: sampling.Schema) -> str:
  """What is assumed, for the report's list of assumptions."""
  return _of_scheme('sentence', sampling.of(schema))


def heading(schema: sampling.Schema) -> str:
  """What the rows of a comparison under a scheme assume, and what epsilon is for."""
  return _of_scheme('heading', sampling.of(schema))


def enforced_by(schedule: sampling.Schedule) -> str:
  """What makes sure that a schedule keeps its scheme."""
  way, scheme = 'own', None
  if isinstance(schedule, sampling.Replay):
    way, scheme = 'replay', sampling.of(schedule.schema)
  elif isinstance(schedule, sampling.SampledSchedule):
    way, scheme = 'sampled', schedule.sampling
  elif type(schedule) in (sampling.RandomEligible, sampling.ShuffledEpochs):
    way = 'limits'
  return _of_scheme('enforced_by', type(schedule).__name__, scheme, way)


def _of_scheme(macro: str, *about: object) -> str:
  return in_a_line(getattr(sentences('schemes.j2'), macro)(*about))

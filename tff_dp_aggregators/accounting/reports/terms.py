"""Texts on accountants, noises, placements of noise and schemes, for all programs.

The texts are in `templates/terms.j2` and `templates/schemes.j2`, by name.
"""

import functools
import types
from typing import Any

import jinja2

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import monte_carlo


def environment(package: str, **options: Any) -> jinja2.Environment:
  """The templates of 'reports' or 'planning'; undefined names are errors."""
  return jinja2.Environment(
    loader=jinja2.PackageLoader(f'tff_dp_aggregators.accounting.{package}'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    **options,
  )


@functools.cache
def sentences(name: str) -> Any:
  """A plain-text template with its texts, tables and macros as attributes."""
  templates = environment('reports')
  templates.globals['monte_carlo'] = monte_carlo
  return templates.get_template(name).module


def in_a_line(text: Any) -> str:
  """Joins the lines of a macro's text."""
  return ' '.join(str(text).split())


_WORDS = sentences('terms.j2')
# The templates explain the fields.
ACCOUNTANTS, OPTIONS, PLACEMENTS = (
  {name: types.SimpleNamespace(**each) for name, each in texts.items()}
  for texts in (_WORDS.accountants, _WORDS.options, _WORDS.placements)
)
label = _WORDS.label
# Accountants whose epsilons a report lists beside that of the accountant in the key, if
# they can read the event; zCDP cannot read sampled events.
BESIDE = {'pld': (accountants.QUICK_BOUND,), 'monte_carlo': ()}
BESIDE_OTHERS = (accountants.EXACT, accountants.QUICK_BOUND, 'zcdp')
# Accountants for which every guarantee has a field `epsilon_<name>`.
IN_GUARANTEE = (accountants.EXACT, 'pld', accountants.QUICK_BOUND, 'zcdp')


def of_accountant(name: str, sensitivity_kind: str = 'exact') -> Any:
  """The texts on an accountant; its name, if it was registered from outside."""
  unknown = types.SimpleNamespace(what=f'by {name}', keeps=name, title=name)
  named = ACCOUNTANTS.get(name, unknown)
  return ACCOUNTANTS.get(f'{name} of a {sensitivity_kind}', named)


def describe(option: str) -> str:
  """The help of the flag for an option of a noise or of its placement."""
  return f'For {noises.having(option, " and ")}: {OPTIONS[option].help}.'


def of_scheme(macro: str, schema: sampling.Schema) -> str:
  """The assumptions of a scheme, by a macro of `schemes.j2`, which says for what."""
  return in_a_line(getattr(sentences('schemes.j2'), macro)(sampling.of(schema)))


def enforced_by(schedule: sampling.Schedule) -> str:
  """The text on what enforces the scheme of a schedule."""
  way, scheme = 'own', None
  if isinstance(schedule, sampling.Replay):
    way, scheme = 'replay', sampling.of(schedule.schema)
  elif isinstance(schedule, sampling.SampledSchedule):
    way, scheme = 'sampled', schedule.sampling
  elif type(schedule) in (sampling.RandomEligible, sampling.ShuffledEpochs):
    way = 'limits'
  texts = sentences('schemes.j2')
  return in_a_line(texts.enforced_by(type(schedule).__name__, scheme, way))

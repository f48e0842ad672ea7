"""Statements written out: Markdown, one HTML page of the same, or JSON.

Every sentence stands in `templates/`. Here is what they ask of a statement, and how
their text becomes Markdown and a page. Nothing is computed that a guarantee rests on:
the numbers are the statement's.
"""

import base64
import functools
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import jinja2
import markdown
import markupsafe
import numpy as np

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import plots as plots_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

# What `render` can make of a statement; the text for terminals is the Markdown.
FORMATS = ('text', 'markdown', 'html', 'json')
_POINTS = 400  # Of a curve of what was learned.
# What Markdown reads as markup wherever it stands in a line, and at the start of one.
_MARKUP = re.compile(r'([\\`*<>|\[\]&~$]|(?<!\w)_|_(?!\w)|^[-+#](?=\s))')


def render(
  statement: dict[str, Any],
  output_format: str,
  learned: Optional[learning_curves.Curves] = None,
) -> str:
  """A statement in one of `FORMATS`; HTML is one file, with nothing to load.

  For plots the statement needs its curves, and `learned`, if a run is known to have
  learned something.
  """
  if output_format == 'json':
    return json.dumps(statement, indent=2, allow_nan=False) + '\n'
  if output_format not in FORMATS:
    raise ValueError(f'unknown format {output_format!r}; known: {", ".join(FORMATS)}.')
  if output_format == 'html':
    return _page(statement, learned)
  return _markdown(statement)


def plots_of(
  statement: dict[str, Any], learned: Optional[learning_curves.Curves] = None
) -> list[plots_lib.Plot]:
  """The plots of a page."""
  found: list[plots_lib.Plot] = []
  _markdown(statement, learned, found)
  return found


def _markdown(
  statement: dict[str, Any],
  learned: Optional[learning_curves.Curves] = None,
  plots: Optional[list[plots_lib.Plot]] = None,
) -> str:
  """A report as Markdown; plots are collected where a list of them is given."""
  if statement['mechanism'] is None:
    name = 'without_guarantee.md.j2'
  elif nbafl_report.is_one(statement):
    name = 'nbafl_plan.md.j2'
  else:
    name = 'report.md.j2'

  def plot(
    points: Sequence[Sequence[float]], mark: Any = None, **options: Any
  ) -> markupsafe.Markup:
    if plots is None or not points:
      return markupsafe.Markup('')
    mark = points[-1] if mark == 'last' else mark
    pairs = _thinned([(x, y) for x, y in points])
    plots.append(plots_lib.Plot(points=pairs, mark=mark and tuple(mark), **options))
    drawn = plots[-1]
    place = markupsafe.Markup(f'plot:{len(plots) - 1}')
    return markupsafe.Markup('**{}** {}\n![{}]({})').format(
      *map(_escaped, (drawn.title, drawn.caption, drawn.alternative)), place
    )

  if learned is not None and not _has_curves(learned):
    learned = None
  return _tidy(template(name).render(s=statement, learned=learned, plot=plot))


def template(name: str) -> jinja2.Template:
  """A file of `templates/`."""
  return _environment().get_template(name)


def _tidy(text: str) -> str:
  """Text of templates with each paragraph and each item in a line of its own."""
  blocks = []
  for block in re.split(r'\n\s*\n(?!- )', text.strip('\n')):
    lines: list[str] = []
    for line in filter(str.strip, block.splitlines()):
      begins = line.startswith(('- ', '|', '#', '    ', '!['))
      if lines and not begins and not lines[-1].startswith(('|', '#', '    ')):
        lines[-1] += f' {line.strip()}'
      elif lines and line.startswith('- ') and not lines[-1].startswith('- '):
        lines += ['', line]  # A list is a block of its own.
      else:
        lines.append(line.rstrip())
    blocks.append('\n'.join(lines))
  return '\n\n'.join(filter(None, blocks)) + '\n'


def _escaped(value: Any) -> Any:
  """A value of a template as Markdown shows it as it is, in one line."""
  if isinstance(value, jinja2.Undefined) or hasattr(value, '__html__'):
    return value
  if value is None:
    raise TypeError('a template prints a value that is not there.')
  line = messages.visible(re.sub(r'\s+', ' ', str(value)))
  return markupsafe.Markup(_MARKUP.sub(r'\\\1', line))


def _code(text: str) -> markupsafe.Markup:
  """Text in which every letter counts: a command, a path, a checksum."""
  line = messages.visible(' '.join(text.split()))
  if line and not set('`|') & set(line):
    return markupsafe.Markup(f'`{line}`')
  escaped: markupsafe.Markup = _escaped(text)
  return escaped


def _verbatim(text: str) -> markupsafe.Markup:
  """Lines to be copied as they are, of a block that is indented."""
  return markupsafe.Markup('\n    '.join(map(messages.visible, text.splitlines())))


@functools.cache
def _environment() -> jinja2.Environment:
  """Templates in which values are text, never markup."""
  environment = terms.environment('reports', autoescape=True, finalize=_escaped)
  environment.filters.update(
    down=rounding.down,
    exact=rounding.exact,
    measure=_measure,
    noise=_noise,
    number=_number,
    scheme=_scheme,
    up=rounding.up,
  )
  environment.globals.update(
    bought=_bought,
    by_part=_by_part,
    code=_code,
    command_of=sources.command_of,
    dirname=posixpath.dirname,
    is_bound=statement_lib.is_bound,
    is_one_gaussian=_is_one_gaussian,
    is_simulation=_is_simulation,
    keeps=_keeps,
    kind_of_strategy=_kind_of_strategy,
    label=_label,
    local_or_distributed=_local_or_distributed,
    measured=_measured,
    noise=_noise,
    noises=_noises,
    options=_options,
    other_releases=_other_releases,
    parts_by_noise=_parts_by_noise,
    placement=_placement,
    principles=_principles,
    runs=model.runs,
    scheme=_scheme,
    seen=_seen,
    software=version.in_words,
    source_values=_source_values,
    verbatim=_verbatim,
    what_is_unstated=_what_is_unstated,
  )
  return environment


# The page.


def _page(statement: dict[str, Any], learned: Optional[learning_curves.Curves]) -> str:
  plots: list[plots_lib.Plot] = []
  text = _markdown(statement, learned, plots)
  reader = markdown.Markdown(extensions=['tables'], output_format='html')
  # A report is text: nothing in it is HTML, whoever wrote it.
  reader.preprocessors.deregister('html_block')
  reader.inlinePatterns.deregister('html')
  reader.ESCAPED_CHARS = [*reader.ESCAPED_CHARS, *'<&~$|']
  body = reader.convert(text)
  status = ''
  if statement.get('warnings') or statement['guarantee']['epsilon'] is None:
    status = ' none'
  elif _what_is_unstated(statement):
    status = ' open'
  banner = f'<p class="guarantee{status}"><strong>'
  head, _, rest = body.partition('<h2>')
  body = head.replace('<p><strong>', banner) + (f'<h2>{rest}' if rest else '')
  for number, plot in enumerate(plots):
    body = body.replace(f'src="plot:{number}"', f'src="{_image(plot)}"')
  title = re.sub(r'\\(.)', r'\1', re.search(r'\*\*(Guarantee: .*?)\*\*', text)[1])  # type: ignore[index]
  return (
    _environment()
    .get_template('page.html.j2')
    .render(
      body=markupsafe.Markup(body),
      title=markupsafe.escape(f'Privacy report: {title}'),
    )
  )


# Runs of one mechanism, in one process, share most of their plots, and drawing those of
# a page takes longer than many a run's rounds.
@functools.lru_cache(maxsize=64)
def _image(plot: plots_lib.Plot) -> str:
  """A plot as the address of a picture, with nothing to load."""
  data = base64.b64encode(plots_lib.to_svg(plot).encode()).decode()
  return f'data:image/svg+xml;base64,{data}'


# What templates ask of a statement.


def _by_part(statement: dict[str, Any]) -> list[dict[str, Any]]:
  """The statement, or with a joint mechanism what it says of each part."""
  parts = statement['mechanism'].get('parts')
  if parts is None:
    return [statement]
  return [{**statement, 'run': None, 'mechanism': part} for part in parts]


def _placement(statement: dict[str, Any]) -> noises.Placement:
  return noises.PLACEMENTS[statement['mechanism']['noise_site']]


def _noise(statement: dict[str, Any]) -> noises.Noise:
  return noises.of_mechanism(statement['mechanism']['name'])


def _noises(runs: Sequence[dict[str, Any]]) -> list[str]:
  """The noises of runs, each once."""
  return list(
    dict.fromkeys(_noise(part).name for run in runs for part in _by_part(run))
  )


def _scheme(statement: dict[str, Any]) -> sampling.Scheme:
  return sampling.of(sampling.of_report(statement['participation']))


def _is_simulation(statement: dict[str, Any]) -> bool:
  """Whether the noise is one that is made elsewhere, without the guarantee of that."""
  return any(_placement(part).is_simulation for _, part in model.runs(statement))


def _is_one_gaussian(statement: dict[str, Any]) -> bool:
  """Whether epsilon after each round of a run is exact."""
  gaussian = [_noise(part).is_gaussian for part in _by_part(statement)]
  return all(gaussian) and not _scheme(statement).is_sampled


def _what_is_unstated(statement: dict[str, Any]) -> str:
  """What keeps the limits that a guarantee needs, where nobody states it, or ''.

  That is what keeps the 'limits', or their 'cap' alone; what makes devices 'wait' so
  that they follow; or, where the log names clients that broke a 'plan', what keeps
  others to more than that.
  """
  if statement['guarantee']['epsilon'] is None or nbafl_report.is_one(statement):
    return ''
  for _, run in model.runs(statement):
    limits, unstated = run['participation'], {inputs_lib.NOT_STATED}
    source = limits['source'] or {}
    by_wait = source.get('basis') == 'min_wait'
    if (source.get('planned') or {}).get('broken') and not by_wait:
      return 'plan'
    if 'basis' in source:
      unstated.add(inputs_lib.enforced_by_log(source, run['run'] is not None))
    if unstated & {limits['enforced_by'], limits['cap_enforced_by']}:
      if by_wait:
        return 'wait'
      return 'limits' if limits['enforced_by'] in unstated else 'cap'
  return ''


def _local_or_distributed(statement: dict[str, Any]) -> str:
  """Local or distributed, if it is."""
  if any(_other_releases(statement)):
    return ''  # Who is trusted with those, nobody states.
  found = {
    terms.PLACEMENTS[part['mechanism']['noise_site']].privacy
    for _, part in model.runs(statement)
  }
  (privacy,) = found if len(found) == 1 else ('',)
  return privacy and f'{privacy} '


def _seen(statement: dict[str, Any], words: dict[str, str]) -> str:
  """What an adversary sees of all runs, from words for each place of noise."""
  runs: dict[str, list[str]] = {}
  for number, part in model.runs(statement):
    seen = words[part['mechanism']['noise_site']]
    if _scheme(part).is_sampled:
      seen = f'{seen}, but not who was drawn'
    runs.setdefault(seen, []).append(number)
  if len(runs) == 1:
    return next(iter(runs))
  # Who sees what a client sends in one run need not see it in another.
  return '; and '.join(
    f'of run {" and ".join(numbers)} {seen}' for seen, numbers in runs.items()
  )


def _other_releases(statement: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """What is composed as it is stated, in the parts of a composition as well."""
  yield from statement.get('other_releases', ())
  for part in statement['parts']:
    yield from _other_releases(part)


def _principles(
  principle: Callable[[dict[str, Any]], str], statement: dict[str, Any]
) -> list[str]:
  """What a template says of the mechanisms of all runs, each once."""
  return list(dict.fromkeys(principle(part) for _, part in model.runs(statement)))


def _parts_by_noise(parts: Sequence[dict[str, Any]]) -> list[tuple[noises.Noise, str]]:
  """Noises, each with the names of the parts that have it."""
  by_noise: dict[noises.Noise, list[str]] = {}
  for part in parts:
    by_noise.setdefault(noises.of_mechanism(part['name']), []).append(part['part'])
  return [
    (noise, ' and '.join(filter(None, (', '.join(names[:-1]), names[-1]))))
    for noise, names in by_noise.items()
  ]


def _kind_of_strategy(name: str) -> str:
  """What a kind of strategy is, with its papers; '' for a matrix of a file."""
  kind = registry.KINDS.get(name)
  if kind is None:
    return ''
  papers = ', '.join(kind.citations)
  return f'{kind.words} ({papers})' if papers else kind.words


def _options(mechanism: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
  """Options of a mechanism: what each is called, its value and what that means."""
  kind = registry.kind_of(mechanism['strategy'])
  for option in () if kind is None else kind.options:
    value = mechanism.get(option.name)
    if value is not None:
      yield option.title, option.written.format(value), option.meaning
  for name, each in terms.OPTIONS.items():
    if mechanism.get(name) is not None:
      yield each.title, f'{mechanism[name]}', each.meaning


def _label(listed: dict[str, Any]) -> str:
  """An accountant's name, and whose bound it states if not its own."""
  other = listed['instead']
  return terms.label(listed['name'], other and accountants.Instead(**other))


def _keeps(name: str, statement: dict[str, Any]) -> str:
  """What an accountant keeps of a mechanism."""
  known_by = 'bound' if statement_lib.is_bound(statement) else 'exact'
  return terms.of_accountant(name).of_sensitivity(known_by).keeps


def _source_values(participation: dict[str, Any]) -> Iterator[tuple[str, str]]:
  """What a round log says, but for what stands above already."""
  source = dict(participation['source'])
  source.update(source.pop('waiting', None) or {})
  for name, value in _flat(source):
    if participation.get(name) != value:
      yield name.replace('_', ' '), _written(value)


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
  """The values of a nested dict, without those that say nothing."""
  for key, value in values.items():
    if key in ('planned', 'occurred'):
      continue
    if isinstance(value, dict):
      yield from ((f'{key}: {name}', each) for name, each in _flat(value))
    elif value is not None and value != []:
      yield key, value


def _written(value: Any) -> str:
  if isinstance(value, list):
    sentences = all(isinstance(each, str) for each in value)
    return (' ' if sentences else ', ').join(_written(each) for each in value)
  return rounding.exact(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
  """With all its digits, and numbers of clients as people write them."""
  return f'{int(value)}' if float(value).is_integer() else rounding.exact(value)


# What a run learned.


def _has_curves(learned: learning_curves.Curves) -> bool:
  spent = learned.epsilon.points or learned.simulated_epsilon.points
  return bool(spent or _measured(learned))


def _measured(
  learned: learning_curves.Curves,
) -> list[tuple[str, learning_curves.Curve]]:
  """Measures with points, as the file has them, the loss last."""
  ordered = sorted(learned.test.items(), key=lambda item: item[0] == 'loss')
  return [(name.replace('_', ' '), curve) for name, curve in ordered if curve.points]


def _bought(
  measures: Sequence[tuple[str, learning_curves.Curve]], spent: learning_curves.Curve
) -> Sequence[tuple[float, float]]:
  """The first measure over epsilon; nothing if epsilon stays the same."""
  by_round = dict(spent.points)
  points = [
    (by_round[rounds], value)
    for _, curve in measures[:1]
    for rounds, value in curve.points
    if rounds in by_round
  ]
  return points if len({epsilon for epsilon, _ in points}) > 1 else []


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
  """So many of the points that pictures stay small, the first and the last of them."""
  chosen = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
  return tuple(points[index] for index in chosen)


def _measure(value: float) -> str:
  """A measure with four digits; it claims no privacy, and is rounded to the nearest."""
  return f'{value:.4f}' if 1e-3 <= abs(value) < 1e6 else f'{value:.4g}'

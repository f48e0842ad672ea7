"""Statements written out: Markdown, one HTML page of the same, or JSON.

Every sentence stands in `templates/`. Here is what they ask of a statement, and how
their text becomes Markdown and a page. No number of a guarantee is computed here.
"""

import base64
import dataclasses
import functools
import inspect
import io
import json
import posixpath
import re
import textwrap
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
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

# What `render` can make of a statement; the text for terminals is the Markdown.
FORMATS = ('text', 'markdown', 'html', 'json')
_POINTS = 400  # Of a plot at most.
# The y axis of bars reaches at least to this, so that rounding errors look like zero.
_LEAST_HEIGHT = 0.2
_LINE, _MARK = '#1f5fa8', '#c0392b'
# What Markdown reads as markup wherever it stands in a line, and at the start of one.
_MARKUP = re.compile(r'([\\`*<>|\[\]&~$]|(?<!\w)_|_(?!\w)|^[-+#](?=\s))')


@dataclasses.dataclass(frozen=True)
class Plot:
  """One curve; only pages show it."""

  title: str
  caption: str  # How to read it, in a sentence or two.
  x_label: str  # With the unit, as the next.
  y_label: str
  points: tuple[tuple[float, float], ...]  # At least one.
  log_x: bool = False
  is_bars: bool = False  # For values that belong to whole numbers.
  mark: Optional[tuple[float, float]] = None  # Where the report's own number is.
  mark_text: Optional[str] = None  # By default its y, rounded up.


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


def _markdown(
  statement: dict[str, Any],
  learned: Optional[learning_curves.Curves] = None,
  plots: Optional[list[Plot]] = None,
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
    # So many that pictures stay small, the first and the last of them.
    chosen = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
    pairs = tuple((points[index][0], points[index][1]) for index in chosen)
    drawn = Plot(points=pairs, mark=mark and tuple(mark), **options)
    plots.append(drawn)
    alternative = f'{drawn.title}: {drawn.y_label} over {drawn.x_label}'
    place = markupsafe.Markup(f'plot:{len(plots) - 1}')
    return markupsafe.Markup('**{}** {}\n![{}]({})').format(
      *map(_escaped, (drawn.title, drawn.caption, alternative)), place
    )

  if learned is not None:
    spent = learned.epsilon.points or learned.simulated_epsilon.points
    learned = learned if spent or _measured(learned) else None
  template = _environment().get_template(name)
  return _tidy(template.render(s=statement, learned=learned, plot=plot))


def _tidy(text: str) -> str:
  """Text of templates with each paragraph and each item in a line of its own."""
  blocks = []
  for block in re.split(r'\n\s*\n(?!\s*- )', text.strip('\n')):
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
  """Templates in which values are text, never markup, and know what stands here."""
  known: dict[str, Any] = {
    name.lstrip('_'): function
    for name, function in globals().items()
    if inspect.isfunction(function)
  }
  known.update(
    command_of=sources.command_of,
    dirname=posixpath.dirname,
    down=rounding.down,
    exact=rounding.exact,
    is_bound=statement_lib.is_bound,
    runs=model.runs,
    software=version.in_words,
    up=rounding.up,
  )
  templates = terms.environment('reports', autoescape=True, finalize=_escaped)
  templates.filters.update(known)
  templates.globals.update(known)
  return templates


def _page(statement: dict[str, Any], learned: Optional[learning_curves.Curves]) -> str:
  plots: list[Plot] = []
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
  template = _environment().get_template('page.html.j2')
  title = markupsafe.escape(f'Privacy report: {title}')
  return template.render(body=markupsafe.Markup(body), title=title)


# Runs of one mechanism, in one process, share most of their plots, and drawing those of
# a page takes longer than many a run's rounds.
@functools.lru_cache(maxsize=64)
def _image(plot: Plot) -> str:
  """A plot as the address of an SVG, with nothing to load; the same for the same."""
  # Matplotlib takes longer to import than all the rest of a report.
  import matplotlib
  from matplotlib import figure

  colored = ('text.color', 'axes.labelcolor', 'xtick.color', 'ytick.color')
  settings = {
    **dict.fromkeys(colored, '#333333'),
    'svg.hashsalt': plot.title,
    'svg.fonttype': 'path',  # Looks the same wherever it is opened.
    'font.family': 'DejaVu Sans',  # Matplotlib's own.
    'font.size': 10,
    'axes.edgecolor': '#999999',
  }
  with matplotlib.rc_context(settings):
    picture = figure.Figure(figsize=(5.2, 3.3))
    # Laying out by itself would take as long as drawing.
    _draw(picture.add_axes((0.175, 0.15, 0.795, 0.81)), plot)
    file = io.StringIO()
    picture.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  data = base64.b64encode(file.getvalue().encode()).decode()
  return f'data:image/svg+xml;base64,{data}'


def _draw(axes: Any, plot: Plot) -> None:
  x, y = zip(*plot.points)
  if plot.is_bars:
    axes.bar(x, y, width=0.8, color=_LINE)
    axes.axhline(0, color='#666666', linewidth=0.8)
    low, high = axes.get_ylim()
    if high - low < _LEAST_HEIGHT:
      axes.set_ylim(-_LEAST_HEIGHT / 2, _LEAST_HEIGHT / 2)
  else:
    axes.plot(x, y, color=_LINE, linewidth=1.8)
    # What may be negative, such as a loss, is shown whole.
    axes.set_ylim(bottom=None if min(y) < 0 else 0)
  if plot.log_x:
    axes.set_xscale('log')
  else:
    axes.set_xlim(left=0)
  if all(float(each).is_integer() for each in x):
    axes.xaxis.get_major_locator().set_params(integer=True)
  axes.set_xlabel(_plain(plot.x_label))
  # So many letters fit beside the axis.
  axes.set_ylabel('\n'.join(textwrap.wrap(_plain(plot.y_label), 32)))
  axes.grid(color='#dddddd', linewidth=0.7)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  if plot.mark is not None and plot.mark[1] is not None:
    text = plot.mark_text or rounding.up(plot.mark[1])
    axes.plot(*plot.mark, 'o', color=_MARK, markersize=6, clip_on=False, label=text)
    # Where it covers the least of the curve.
    axes.legend(loc='best', labelcolor=_MARK, frameon=False, handletextpad=0.2)


def _plain(text: str) -> str:
  """Text in which Matplotlib finds no formula."""
  return text.replace('$', r'\$')


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
  """What nobody states that keeps 'limits', or a 'cap', 'wait' or 'plan'; or ''."""
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
  return f'{found.pop()} '.lstrip() if len(found) == 1 else ''


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


def _measure(value: float) -> str:
  """A measure with four digits; it claims no privacy, and is rounded to the nearest."""
  return f'{value:.4f}' if 1e-3 <= abs(value) < 1e6 else f'{value:.4g}'

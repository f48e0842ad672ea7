"""Renders statements as Markdown, as one HTML page with the same text, or as JSON.

All sentences are in `templates/`. This module has the functions that templates call,
and turns their text into Markdown and HTML. It computes no number of a guarantee.
"""

import base64
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
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

# Formats of `render`; 'text', for terminals, is the same as 'markdown'.
FORMATS = ('text', 'markdown', 'html', 'json')
_POINTS = 400  # The maximum number of points of a plot.
_LINE, _MARK = '#1f5fa8', '#c0392b'
# What Markdown reads as markup anywhere in a line, or at the start of one.
_MARKUP = re.compile(r'([\\`*<>|\[\]&~$]|(?<!\w)_|_(?!\w)|^[-+#](?=\s))')


def render(
  statement: dict[str, Any],
  output_format: str,
  learned: Optional[learning_curves.Curves] = None,
) -> str:
  """Renders a statement in one of `FORMATS`; HTML is one file that loads nothing.

  Plots are those of the statement's curves and of `learned`, a run's learning curves.
  """
  if output_format == 'json':
    return json.dumps(statement, indent=2, allow_nan=False) + '\n'
  if output_format not in FORMATS:
    raise ValueError(f'unknown format {output_format!r}; known: {", ".join(FORMATS)}.')
  if output_format == 'html':
    return _page(statement, _markdown(statement, learned, draws=True))
  return _markdown(statement, None, draws=False)


def _markdown(
  statement: dict[str, Any], learned: Optional[learning_curves.Curves], draws: bool
) -> str:
  if statement['mechanism'] is None:
    name = 'without_guarantee.md.j2'
  elif model.is_plan(statement):
    name = 'nbafl_plan.md.j2'
  else:
    name = 'report.md.j2'

  def plot(
    points: Any, title: str, caption: str, x_label: str, y_label: str, **options: Any
  ) -> markupsafe.Markup:
    if not draws or not points:
      return markupsafe.Markup('')
    mark = options.pop('mark', None)
    mark = points[-1] if mark == 'last' else mark
    # At most `_POINTS`, to keep pictures small; the first and the last are included.
    chosen = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
    pairs = tuple((points[index][0], points[index][1]) for index in chosen)
    url = _image(title, x_label, y_label, pairs, mark and tuple(mark), **options)
    texts = map(_escaped, (title, caption, f'{title}: {y_label} over {x_label}'))
    return markupsafe.Markup('**{}** {}\n![{}]({})').format(
      *texts, markupsafe.Markup(url)
    )

  template = _environment().get_template(name)
  return _tidy(template.render(s=statement, learned=learned, plot=plot))


def _tidy(text: str) -> str:
  """Puts each paragraph and each list item of a template's text on one line."""
  blocks = []
  for block in re.split(r'\n\s*\n(?!\s*- )', text.strip('\n')):
    lines: list[str] = []
    for line in filter(str.strip, block.splitlines()):
      begins = line.startswith(('- ', '|', '#', '    ', '!['))
      if lines and not begins and not lines[-1].startswith(('|', '#', '    ')):
        lines[-1] += f' {line.strip()}'
      elif lines and line.startswith('- ') and not lines[-1].startswith('- '):
        lines += ['', line]  # Markdown needs an empty line before a list.
      else:
        lines.append(line.rstrip())
    blocks.append('\n'.join(lines))
  return '\n\n'.join(filter(None, blocks)) + '\n'


def _escaped(value: Any) -> Any:
  """Escapes a value of a template, in one line, so that Markdown shows it unchanged."""
  if isinstance(value, jinja2.Undefined) or hasattr(value, '__html__'):
    return value
  if value is None:
    raise TypeError('a template prints a value that is not there.')
  line = messages.visible(re.sub(r'\s+', ' ', str(value)))
  return markupsafe.Markup(_MARKUP.sub(r'\\\1', line))


def _code(text: str) -> markupsafe.Markup:
  """Formats text, such as a command, a path or a checksum, as code."""
  line = messages.visible(' '.join(text.split()))
  if line and not set('`|') & set(line):
    return markupsafe.Markup(f'`{line}`')
  escaped: markupsafe.Markup = _escaped(text)
  return escaped


def _verbatim(text: str) -> markupsafe.Markup:
  return markupsafe.Markup('\n    '.join(map(messages.visible, text.splitlines())))


@functools.cache
def _environment() -> jinja2.Environment:
  """Templates that escape all values and can call the functions of this module."""
  functions: dict[str, Any] = {
    name.lstrip('_'): function
    for name, function in globals().items()
    if inspect.isfunction(function)
  }
  functions.update(
    command_of=sources.command_of,
    dirname=posixpath.dirname,
    down=rounding.down,
    exact=rounding.exact,
    is_bound=statement_lib.is_bound,
    label=terms.label,
    of_accountant=terms.of_accountant,
    runs=model.runs,
    software=version.in_words,
    up=rounding.up,
  )
  templates = terms.environment('reports', autoescape=True, finalize=_escaped)
  templates.filters.update(functions)
  templates.globals.update(functions)
  return templates


def _page(statement: dict[str, Any], text: str) -> str:
  reader = markdown.Markdown(extensions=['tables'], output_format='html')
  # Nothing in a report is HTML, whoever wrote its texts.
  reader.preprocessors.deregister('html_block')
  reader.inlinePatterns.deregister('html')
  reader.ESCAPED_CHARS = [*reader.ESCAPED_CHARS, *'<&~$|']
  body = reader.convert(text)
  status = ''
  if statement.get('warnings') or statement['guarantee']['epsilon'] is None:
    status = ' none'
  elif _what_is_unstated(statement):
    status = ' open'
  head, *rest = body.partition('<h2>')
  body = head.replace('<p><strong>', f'<p class="guarantee{status}"><strong>')
  title = re.sub(r'\\(.)', r'\1', re.search(r'\*\*(Guarantee: .*?)\*\*', text)[1])  # type: ignore[index]
  template = _environment().get_template('page.html.j2')
  return template.render(
    body=markupsafe.Markup(body + ''.join(rest)),
    title=markupsafe.escape(f'Privacy report: {title}'),
  )


# Runs of one mechanism in one process share most plots, and drawing the plots of a page
# can take longer than the rounds of a run.
@functools.lru_cache(maxsize=64)
def _image(
  title: str,
  x_label: str,
  y_label: str,
  points: Sequence[tuple[float, float]],
  mark: Optional[tuple[float, Optional[float]]],
  mark_text: Optional[str] = None,
  log_x: bool = False,
  is_bars: bool = False,
) -> str:
  """A plot as a data URL of an SVG; by default, the text is the y of the mark."""
  # Importing Matplotlib takes longer than all the rest of a report.
  import matplotlib
  from matplotlib import figure

  x, y = zip(*points)
  file = io.StringIO()
  # Letters are paths, so that plots look the same on any machine.
  settings = {'svg.hashsalt': title, 'svg.fonttype': 'path'}
  with matplotlib.rc_context({**settings, 'font.family': 'DejaVu Sans'}):
    picture = figure.Figure(figsize=(5.2, 3.3))
    # Automatic layout would take as long as drawing.
    axes: Any = picture.add_axes((0.175, 0.15, 0.795, 0.81))
    if is_bars:
      axes.bar(x, y, color=_LINE)
      # Rounding errors look like zero.
      axes.set_ylim(min(*y, -0.1), max(*y, 0.1))
    else:
      axes.plot(x, y, color=_LINE)
      # Negative values, as of a loss, are shown.
      axes.set_ylim(bottom=None if min(y) < 0 else 0)
    if log_x:
      axes.set_xscale('log')
    else:
      axes.set_xlim(left=0)
      axes.xaxis.get_major_locator().set_params(integer=max(x) > 1)
    axes.set_xlabel(x_label, parse_math=False)
    # 32 characters fit beside the axis.
    axes.set_ylabel('\n'.join(textwrap.wrap(y_label, 32)), parse_math=False)
    axes.grid(color='#dddddd')
    axes.set_axisbelow(True)
    if mark is not None and mark[1] is not None:
      text = mark_text or rounding.up(mark[1])
      axes.plot(*mark, 'o', color=_MARK, clip_on=False, label=text)
      axes.legend(loc='best', labelcolor=_MARK, frameon=False)
    picture.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  data = base64.b64encode(file.getvalue().encode()).decode()
  return f'data:image/svg+xml;base64,{data}'


# Functions that templates call.


def _by_part(statement: dict[str, Any]) -> list[dict[str, Any]]:
  """One statement for each part of a joint mechanism, or the statement itself."""
  parts = statement['mechanism'].get('parts')
  if parts is None:
    return [statement]
  return [{**statement, 'run': None, 'mechanism': part} for part in parts]


def _placement(statement: dict[str, Any]) -> noises.Placement:
  return noises.PLACEMENTS[statement['mechanism']['noise_site']]


def _noise(statement: dict[str, Any]) -> noises.Noise:
  return noises.of_mechanism(statement['mechanism']['name'])


def _scheme(statement: dict[str, Any]) -> sampling.Scheme:
  return sampling.of(sampling.of_report(statement['participation']))


def _is_simulation(statement: dict[str, Any]) -> bool:
  """Whether a run only simulates the noise of clients, whose guarantee it lacks."""
  return any(_placement(part).is_simulation for _, part in model.runs(statement))


def _is_one_gaussian(statement: dict[str, Any]) -> bool:
  """Whether epsilon after each round of a run is exact."""
  gaussian = [_noise(part).is_gaussian for part in _by_part(statement)]
  return all(gaussian) and not _scheme(statement).is_sampled


def _what_is_unstated(statement: dict[str, Any]) -> str:
  """Which enforcement is not stated: of 'limits', 'cap', 'wait' or 'plan'; or ''."""
  if statement['guarantee']['epsilon'] is None or model.is_plan(statement):
    return ''
  for _, run in model.runs(statement):
    limits, unstated = run['participation'], {sources.NOT_STATED}
    source = limits['source'] or {}
    by_wait = source.get('basis') == 'min_wait'
    if (source.get('planned') or {}).get('broken') and not by_wait:
      return 'plan'
    if 'basis' in source:
      unstated.add(sources.enforced_by_log(source, run['run'] is not None))
    if unstated & {limits['enforced_by'], limits['cap_enforced_by']}:
      if by_wait:
        return 'wait'
      return 'limits' if limits['enforced_by'] in unstated else 'cap'
  return ''


def _local_or_distributed(statement: dict[str, Any]) -> str:
  """'local ' or 'distributed ' for such differential privacy, and '' otherwise."""
  if any(_other_releases(statement)):
    return ''  # It is not stated who is trusted with those.
  kinds = {
    terms.PLACEMENTS[part['mechanism']['noise_site']].privacy
    for _, part in model.runs(statement)
  }
  return f'{kinds.pop()} '.lstrip() if len(kinds) == 1 else ''


def _seen(statement: dict[str, Any], words: dict[str, str]) -> str:
  """What an adversary sees of all runs; `words` has a text for each place of noise."""
  runs: dict[str, list[str]] = {}
  for number, part in model.runs(statement):
    seen = words[part['mechanism']['noise_site']]
    if _scheme(part).is_sampled:
      seen = f'{seen}, but not who was drawn'
    runs.setdefault(seen, []).append(number)
  if len(runs) == 1:
    return next(iter(runs))
  # An adversary that sees what a client sends in one run may not see it in another.
  return '; and '.join(
    f'of run {" and ".join(numbers)} {seen}' for seen, numbers in runs.items()
  )


def _other_releases(statement: dict[str, Any]) -> Iterator[dict[str, Any]]:
  yield from statement.get('other_releases', ())
  for part in statement['parts']:
    yield from _other_releases(part)


def _principles(
  principle: Callable[[dict[str, Any]], str], statement: dict[str, Any]
) -> list[str]:
  """A template's texts on the mechanisms of all runs, each once."""
  return list(dict.fromkeys(principle(part) for _, part in model.runs(statement)))


def _parts_by_noise(parts: Sequence[dict[str, Any]]) -> list[tuple[noises.Noise, str]]:
  by_noise: dict[noises.Noise, list[str]] = {}
  for part in parts:
    by_noise.setdefault(noises.of_mechanism(part['name']), []).append(part['part'])
  return [
    (noise, ' and '.join(filter(None, (', '.join(names[:-1]), names[-1]))))
    for noise, names in by_noise.items()
  ]


def _kind_of_strategy(name: str) -> str:
  """A description of a kind of strategy, with papers; '' for a matrix from a file."""
  kind = registry.KINDS.get(name)
  if kind is None:
    return ''
  papers = ', '.join(kind.citations)
  return f'{kind.words} ({papers})' if papers else kind.words


def _options(mechanism: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
  """Options of a mechanism: the title, value and meaning of each."""
  kind = registry.kind_of(mechanism['strategy'])
  for option in () if kind is None else kind.options:
    value = mechanism.get(option.name)
    if value is not None:
      yield option.title, option.written.format(value), option.meaning
  for name, each in terms.OPTIONS.items():
    if mechanism.get(name) is not None:
      yield each.title, f'{mechanism[name]}', each.meaning


def _number(value: float) -> str:
  """A number with all its digits, and without a fraction if it is whole."""
  return f'{int(value)}' if float(value).is_integer() else rounding.exact(value)


def _measured(
  learned: learning_curves.Curves,
) -> list[tuple[str, learning_curves.Curve]]:
  """Measures with points, in the order of the file but with the loss last."""
  ordered = sorted(learned.test.items(), key=lambda item: item[0] == 'loss')
  return [(name.replace('_', ' '), curve) for name, curve in ordered if curve.points]


def _bought(
  measures: Sequence[tuple[str, learning_curves.Curve]], spent: learning_curves.Curve
) -> Sequence[tuple[float, float]]:
  """Points of the first measure over epsilon; none if epsilon is constant."""
  by_round = dict(spent.points)
  of_first = measures[0][1].points if measures else ()
  points = [(by_round[each], value) for each, value in of_first if each in by_round]
  return points if len({epsilon for epsilon, _ in points}) > 1 else []


def _measure(value: float) -> str:
  """A measure with four digits, rounded to nearest, as it is no claim of privacy."""
  return f'{value:.4f}' if 1e-3 <= abs(value) < 1e6 else f'{value:.4g}'

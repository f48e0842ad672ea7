"""What readers of a report rely on, in whichever format they read it.

* Every format states the same guarantee, and all that section 5.3 of "How to DP-fy ML"
  (arXiv:2303.00654) asks for.
* No number shown claims more privacy than there is.
* Values from users are shown as they are: they break no table and no page.
* Text is plain and fits a terminal; a page loads nothing and shows its plots.
* Every kind of statement can be written, and says what is particular to it.
"""

import base64
import dataclasses
import decimal
import html.parser
import itertools
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib import figure
from matplotlib.backends import backend_agg

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.reports import inputs
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import plots
from tff_dp_aggregators.accounting.reports.rendering import rounding
from tff_dp_aggregators.accounting.reports.rendering import sections

PEOPLE = ('text', 'markdown', 'html')
DELTA = 1e-6
PARTICIPATION = strategies.Participation(20, min_separation=5)
MECHANISM = accounting.Mechanism('banded', PARTICIPATION, noise_multiplier=2.0)
HOSTILE = '<script>alert(1)</script> | a *b* _c_ `d` [e](f) \\ &amp;\n| # g'
POISSON = accounting.Mechanism(
  'gaussian', schemas.PoissonSampling(20, sampling_probability=0.01), 1.0
)
FIXED_SIZE = accounting.Mechanism(
  'gaussian', schemas.FixedSizeSampling(2, population=1000, cohort=10), 2.0
)


def _build(mechanism=MECHANISM, *, cut=False, with_curves=False, **options):
  built = statement.build(
    reports.Inputs(mechanism, DELTA, **options), with_curves=with_curves
  )
  if cut:  # As if a ledger said so.
    built['run'] = {
      'rounds_completed': 7,
      'rounds_planned': 20,
      'rounds_released_again': [3],
      'bytes_cut_off': 17,
      'aborted_attempts': {'count': 5, 'rounds': [2, 6], 'epsilon': 0.0},
      'simulation': 'packed',
      'reporting': {'dropout_rate': 0.125, 'reporting_goal': 8, 'denominator': 20},
      'before_clipping': {'zeroing_norm': 62.5, 'coordinate_bound': 0.375},
      'ledger_head': {'lines': 8, 'sha256': 32 * 'c4'},
      'clip_norms': {'smallest': 0.25, 'largest': 0.75},
      'noise_generators': ['chacha20', None],
      'epsilon_planned': built['guarantee']['epsilon'] + 1,
    }
  return built


def _composition():
  return statement.compose([_build(), _build(cut=True)], command='program --twice')


class _Page(html.parser.HTMLParser):
  """The text, tags and images of a page; tags must be closed in order."""

  VOID = ('meta', 'br', 'img')

  def __init__(self, page):
    super().__init__()
    self.open, self.words, self.tags, self.attributes = [], [], [], []
    self.feed(page)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if 'style' not in self.open:
      self.words.append(data)


def _plain(text):
  """Text without white space, for lines break where a format wants them."""
  return ''.join(text.split())


def _read(built, output_format):
  """What a reader of a format sees, without white space."""
  text = rendering.render(built, output_format)
  if output_format == 'html':
    text = ''.join(_Page(text).words)
  elif output_format == 'markdown':
    text = re.sub(r'\\([\\`*_<>|\[\]&~$])', r'\1', re.sub(r'(?<!\\)`', '', text))
  return _plain(text)


def _says(built, output_format, *claims):
  seen = _read(built, output_format)
  for claim in claims:
    assert _plain(claim) in seen, claim


@pytest.mark.parametrize('output_format', PEOPLE)
def test_every_format_says_what_a_reviewer_asks_for(output_format):
  built = _build(
    clip_norm=0.5,
    enforced_by='the scheduler',
    noise_source='a secret seed',
    command='program --rounds=20',
    files=[{'role': 'ledger', 'path': 'runs/a_b/ledger.jsonl', 'sha256': '0f' * 32}],
  )
  _says(
    built,
    output_format,
    'entral differential privacy',  # Setting.
    'one client with all its data',  # Unit.
    'zeroing out: two data sets are neighbours if',  # Adjacency.
    'all intermediate models',  # What the adversary sees.
    'client updates (model deltas)',  # Data accesses, covered and not.
    'choosing hyperparameters',
    'banded: noise correlated over rounds by a banded matrix',  # Mechanism.
    MECHANISM.strategy.checksum,
    'noise relative to the clip norm',
    'noise relative to the sensitivity',
    'any two rounds of one client differ by at least',  # Participation.
    'the scheduler',
    'a secret seed',
    'upper bound: Renyi DP',  # Accounting.
    'mu',
    'rho',
    'dp-accounting 0.4.3',
    'program --rounds=20',  # Verification.
    'runs/a_b/ledger.jsonl',
    '0f' * 32,
    '--verify=report.json',
  )


@pytest.mark.parametrize('output_format', PEOPLE)
def test_every_format_shows_every_value(output_format):
  built = _build(dataclasses.replace(MECHANISM, clipped_count_stddev=5.0))
  seen = _read(built, output_format)
  report = sections.of_statement(built)
  texts = [report.guarantee]
  for block in itertools.chain(report.summary, *(s.blocks for s in report.sections)):
    if isinstance(block, document.Facts):
      texts += [text for fact in block.facts for text in dataclasses.astuple(fact)]
    elif isinstance(block, document.Items):
      texts += [block.intro, *block.items]
    elif isinstance(block, document.Table):
      texts += list(block.header)
      texts += [cell for row in block.rows for cell in row]
    else:
      texts.append(block.text)
  assert len(texts) > 80
  if output_format == 'text':  # Lines of cells beside each other are mixed.
    texts = [each for each in texts if len(each) < 20]
  for text in texts:
    assert _plain(text) in seen, text


@pytest.mark.parametrize('output_format', PEOPLE)
def test_the_published_gboard_run_shows_both_epsilons(output_format):
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = statement.build(reports.Inputs(gboard, 1e-10), with_curves=False)
  _says(
    built,
    output_format,
    '(epsilon, delta) = (8.5261, 1e-10)',
    '8.8986',
    'rdp (Renyi differential privacy): moments',
    '314 (313 rounds between)',
    '(squared: 79.000000), exact',
    '0.787561',
  )


def test_rounding_is_never_to_the_favourable_side():
  rng = np.random.default_rng(0)
  values = 10 ** rng.uniform(-12, 12, 2000)
  close = [np.nextafter(8.5261, up) for up in (0, 9)] + [8.5261, 1.0, 1e-3, 9.9999999]
  for value in (*values, *close):
    value = float(value)
    for decimals in (1, 4, 6):
      up, down = rounding.up(value, decimals), rounding.down(value, decimals)
      true = decimal.Decimal(value)
      assert decimal.Decimal(down) <= true <= decimal.Decimal(up)
      unit = max(decimal.Decimal(10) ** -decimals, true * decimal.Decimal('0.00101'))
      assert decimal.Decimal(up) - decimal.Decimal(down) <= unit


@pytest.mark.parametrize('output_format', PEOPLE)
def test_an_epsilon_just_above_a_round_number_is_not_shown_as_that(output_format):
  built = _build()
  built['guarantee']['epsilon'] = 2.0000000001
  built['mechanism']['noise_multiplier'] = 1.9999999
  _says(built, output_format, '(epsilon, delta) = (2.0001, 1e-06)', '1.999999')


def test_delta_is_shown_exactly():
  for value in (1e-10, 1e-5, 1 / 3, 1.2345678e-7):
    assert float(rounding.exact(value)) == value


def test_the_share_recognised_is_that_of_the_best_test():
  # The best test of N(0, 1) against N(mu, 1) is a threshold.
  rng = np.random.default_rng(1)
  mu = _build()['guarantee']['gdp_mu']
  draws = rng.standard_normal(1_000_000)
  recognised = np.mean(draws + mu > np.quantile(draws, 0.99))
  exact = _recognised(_build())
  assert exact == pytest.approx(100 * recognised, abs=0.3)
  # Epsilon and delta alone say less.
  built = _build()
  built['guarantee']['gdp_mu'] = None
  assert _recognised(built) >= exact


def _recognised(built):
  text = ' '.join(rendering.render(built, 'text').split())
  return float(re.search(r'recognise at most ([\d.]+)%', text).group(1))


def _hostile():
  return _build(
    enforced_by=HOSTILE,
    cap_enforced_by=HOSTILE,
    noise_source=HOSTILE,
    command=f'program {HOSTILE}',
    participation_source={'note': HOSTILE, 'waiting': {'assumptions': [HOSTILE]}},
    files=[{'role': HOSTILE, 'path': HOSTILE, 'sha256': '0' * 64}],
  )


def test_values_break_no_markdown_table():
  text = rendering.render(_hostile(), 'markdown')
  tables = re.findall(r'(?:^\|.*\n)+', text, flags=re.MULTILINE)
  assert len(tables) > 5
  for table in tables:
    columns = {len(re.findall(r'(?<!\\)\|', line)) for line in table.splitlines()}
    assert len(columns) == 1, table
  assert '<script>' not in re.sub(r'^    .*$', '', text, flags=re.MULTILINE)


def test_values_are_text_in_a_page():
  page = rendering.render(_hostile(), 'html')
  assert '<script' not in page
  assert _plain(HOSTILE) in _plain(''.join(_Page(page).words))


def test_a_page_loads_nothing_and_shows_its_plots():
  page = rendering.render(_build(with_curves=True), 'html')
  parsed = _Page(page)
  assert not {'script', 'link', 'iframe', 'object', 'base', 'form'} & set(parsed.tags)
  assert '@import' not in page
  assert 'url(' not in page
  links = [value for name, value in parsed.attributes if name in ('src', 'href')]
  assert len(links) == 4
  for link in links:
    head, data = link.split(',')
    assert head == 'data:image/svg+xml;base64'
    image = base64.b64decode(data).decode()
    assert xml.etree.ElementTree.fromstring(image).tag.endswith('svg')
  assert ('name', 'viewport') in parsed.attributes


def test_plots_have_titles_and_labelled_axes_and_are_the_same_each_time():
  report = sections.of_statement(_build(with_curves=True))
  blocks = [block for section in report.sections for block in section.blocks]
  (drawn,) = [block.plots for block in blocks if isinstance(block, document.Plots)]
  assert [plot.title for plot in drawn] == [
    'Epsilon against delta',
    'Epsilon against rounds',
    'Error against rounds',
    'Noise correlation',
  ]
  for plot in drawn:
    svg = plots.to_svg(plot)
    assert f'<!-- {plot.x_label} -->' in svg
    assert f'<!-- {plot.y_label} -->' in svg
    assert svg == plots.to_svg(plot)
  assert drawn[0].log_x
  assert drawn[0].mark == (DELTA, _build()['guarantee']['epsilon'])
  assert 'clip norms' in drawn[2].y_label


def _overlaps(axes):
  """Whether a plot's label lies on its curve or mark, or leaves the frame."""
  canvas = backend_agg.FigureCanvasAgg(axes.figure)
  canvas.draw()
  (label,) = axes.texts
  box = label.get_window_extent(canvas.get_renderer())
  curve, mark = axes.lines[:2]
  at = axes.transData.transform(curve.get_xydata())
  steps = [np.linspace(start, end, 500) for start, end in zip(at, at[1:])]
  mark = axes.transData.transform(mark.get_xydata())
  points = np.concatenate([at, mark, *steps])
  inside = (points > box.min - 1).all(axis=1) & (points < box.max + 1).all(axis=1)
  frame = axes.bbox.padded(4)
  leaves = (box.min < frame.min).any() or (box.max > frame.max).any()
  return bool(inside.any()) or leaves


_X = np.linspace(1, 100, 200)
_SHAPES = {
  'straight': _X,
  'early': np.sqrt(_X),
  'late': _X**8 / 1e12,
  'steps': np.floor(_X / 20) + 1,
  'flat': np.full(200, 3.0),
  'falling': 100 / _X,
  'valley': np.abs(_X - 50) + 5,
}


@pytest.mark.parametrize('at', [0, 50, 199])
@pytest.mark.parametrize('log_x', [False, True])
@pytest.mark.parametrize('shape', _SHAPES)
def test_no_label_lies_on_a_curve(shape, log_x, at):
  points = tuple(zip(_X.tolist(), _SHAPES[shape].tolist()))
  plot = document.Plot('', '', '', '', points, log_x, mark=points[at])
  axes = figure.Figure(figsize=(5.2, 3.3)).add_axes((0.155, 0.15, 0.815, 0.81))
  plots._draw(axes, plot)
  assert not _overlaps(axes)


@pytest.mark.parametrize('noise_multiplier', [0.2, 1.0, 30.0, 1e4])
def test_no_label_of_a_report_lies_on_its_curve(noise_multiplier):
  mechanism = accounting.Mechanism(
    'tree', strategies.Participation(300, 7), noise_multiplier
  )
  built = statement.build(inputs.Inputs(mechanism, DELTA))
  blocks = [b for s in sections.of_statement(built).sections for b in s.blocks]
  (drawn,) = [block.plots for block in blocks if isinstance(block, document.Plots)]
  marked = [plot for plot in drawn if plot.mark is not None]
  assert len(marked) == 2
  for plot in marked:
    axes = figure.Figure(figsize=(5.2, 3.3)).add_axes((0.155, 0.15, 0.815, 0.81))
    plots._draw(axes, plot)
    assert not _overlaps(axes), plot.title


def test_no_line_of_a_page_ends_within_a_number():
  page = rendering.render(_build(with_curves=True), 'html')
  (style,) = re.findall(r'\.number \{([^}]*)\}', page)
  assert 'white-space: nowrap' in style
  body = page[page.index('<body>') :]
  kept = re.compile(r'<span class="number">[^<]*</span>')
  assert f'<span class="number">{DELTA:g}' in body
  # What is left has no digit but in names and checksums, which may be broken.
  for text in re.findall(r'>([^<]+)<', kept.sub('<i></i>', body)):
    assert not re.search(r'(?<![\w#])[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?!\w)', text), text


def test_without_curves_there_is_a_page_without_plots():
  assert 'img' not in _Page(rendering.render(_build(), 'html')).tags


@pytest.mark.parametrize('built', [_build(), _composition()])
def test_text_is_plain_and_fits_a_terminal(built):
  text = rendering.render(built, 'text')
  assert not set('#*|`') & set(text)
  for line in text.splitlines():
    unbroken = 'sha256:' in line or 'python -m' in line
    assert len(line) <= 88 or unbroken, line
    assert line == line.rstrip()


@pytest.mark.parametrize('output_format', PEOPLE)
def test_a_run_cut_short_says_so(output_format):
  built = _build(cut=True)
  planned = rounding.up(built['run']['epsilon_planned'])
  _says(
    built,
    output_format,
    'This run stopped after 7 of 20 rounds.',
    'rounds 3',
    'a half line of 17 bytes',
    f'sha256:{32 * "c4"}',
    'chacha20, not stated in some rounds',
    f'In any case epsilon = {planned}, that of the whole plan, holds.',
    'The decision to stop early did not depend',
    'in the 7 rounds that ran',
  )
  assert 'stoppedafter' not in _read(_build(), output_format)


@pytest.mark.parametrize('output_format', PEOPLE)
def test_aborted_attempts_and_what_they_spent_are_told(output_format):
  built = _build(cut=True)
  _says(
    built,
    output_format,
    '5, at 2 of the rounds, which spent epsilon = 0',
    'what is not released spends nothing',
  )
  built['run']['aborted_attempts'] = {'count': 0, 'rounds': [], 'epsilon': 0.0}
  assert 'spendsnothing' not in _read(built, output_format)


@pytest.mark.parametrize('output_format', PEOPLE)
def test_drop_outs_and_the_goal_are_told_with_what_the_mean_makes_of_them(
  output_format,
):
  built = _build(cut=True)
  _says(
    built,
    output_format,
    'each that is asked drops out with probability 0.125; '
    'with fewer than 8 reports an attempt is aborted',
    "the mean's denominator stays 20 (clients_per_round), however many report",
  )
  built['run']['reporting']['reporting_goal'] = None
  assert 'reportsanattempt' not in _read(built, output_format)
  built['run']['reporting'] = None
  assert 'dropsout' not in _read(built, output_format)


@pytest.mark.parametrize('output_format', PEOPLE)
def test_what_is_done_before_clipping_is_told(output_format):
  built = _build(cut=True)
  zeroed, cut = 'one that is longer counts as zeros', 'larger ones are cut to it'
  _says(built, output_format, 'of L2 norm 62.5', zeroed, '0.375', cut)
  built['run']['before_clipping']['zeroing_norm'] = None
  assert _plain(zeroed) not in _read(built, output_format)
  _says(built, output_format, cut)
  built['run']['before_clipping'] = None
  assert _plain(cut) not in _read(built, output_format)


@pytest.mark.parametrize('output_format', PEOPLE)
def test_packed_simulation_is_marked_as_that(output_format):
  with_privacy, without = _build(cut=True), statement.build_without_privacy('packed')
  for built in (with_privacy, without):
    _says(built, output_format, 'packed', 'a technique of simulation')
  with_privacy['run']['simulation'] = None
  one_by_one = statement.build_without_privacy('one_by_one')
  for built in (with_privacy, one_by_one):
    assert 'techniqueofsimulation' not in _read(built, output_format)
  _says(one_by_one, output_format, 'one by one', 'simulated', 'no security')


@pytest.mark.parametrize('output_format', PEOPLE)
def test_one_round_is_not_called_rounds(output_format):
  built = _build(cut=True)
  built['run']['rounds_completed'] = 1
  _says(built, output_format, 'in the one round that ran.')
  only = strategies.Participation(1)
  _says(
    _build(accounting.Mechanism('gaussian', only, 1.0)),
    output_format,
    'in the one round that is planned.',
  )


@pytest.mark.parametrize('output_format', PEOPLE)
def test_the_report_of_a_run_names_the_json_report_beside_it(output_format):
  path = 'runs/my run/config.json'
  files = ({'role': 'config', 'path': path, 'sha256': 32 * '0f'},)
  built = _build(command='program --run_dir', files=files)
  _says(
    built,
    output_format,
    "report.json in the run's directory is this report",
    shlex.join(['--verify=runs/my run/report.json']),
  )
  assert 'Savedasreport.json' not in _read(built, output_format)
  _says(_composition(), output_format, 'Saved as report.json', '--verify=report.json')


@pytest.mark.parametrize('output_format', PEOPLE)
@pytest.mark.parametrize(
  'norms, says',
  [
    ((0.5, 0.5), '0.5 in all rounds that ran'),
    ((0.25, 0.75), '0.25 to 0.75 in the rounds that ran'),
    ((None, None), 'none in some rounds: contributions were not clipped'),
  ],
)
def test_the_clip_norms_of_a_ledger_are_stated(output_format, norms, says):
  pays = 'the mechanism is not one that pays for adaptive clipping'
  for stddev in (None, 5.0):
    built = _build(
      dataclasses.replace(MECHANISM, clipped_count_stddev=stddev), cut=True
    )
    built['run']['clip_norms'] = dict(zip(('smallest', 'largest'), norms))
    _says(built, output_format, says)
    varies = norms[0] != norms[1] and stddev is None
    assert (_plain(pays) in _read(built, output_format)) == varies


@pytest.mark.parametrize('output_format', PEOPLE)
def test_what_is_assumed_is_told_from_what_is_possible(output_format):
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = _build(gboard, enforced_by='a timer', cap_enforced_by='a counter')
  _says(
    built,
    output_format,
    'which leaves 7 of them possible; and, an assumption of its own, a client takes '
    'part in at most 6. What enforces the separation: a timer (stated, not verified). '
    'What enforces the limit of 6: a counter (stated, not verified).',
    'possible by separation',
    'the most of 2000 rounds that are so far apart',
    'assumed at most',
    'separation enforced by',
    'at most 6 enforced by',
  )
  built = _build(enforced_by='a timer', cap_enforced_by='a counter')
  assert _plain('nothing more') in _read(built, output_format)
  assert 'acounter' not in _read(built, output_format)


@pytest.mark.parametrize('output_format', PEOPLE)
def test_without_noise_there_is_no_guarantee(output_format):
  built = _build(accounting.Mechanism('tree', PARTICIPATION, 0.0))
  _says(built, output_format, 'Guarantee: none (the noise is zero)', 'infinite')
  seen = _read(built, output_format)
  assert 'differentialprivacyforeachclient' not in seen
  assert 'Itcovers' not in seen
  assert 'None' not in seen


@pytest.mark.parametrize('output_format', PEOPLE)
def test_without_a_mechanism_there_is_no_guarantee(output_format):
  built = statement.build_without_privacy()
  _says(built, output_format, 'Guarantee: none.', 'epsilon is infinite')


@pytest.mark.parametrize('output_format', PEOPLE)
def test_an_infinite_epsilon_with_noise_is_not_said_to_be_without(output_format):
  built = _build()
  built['guarantee']['epsilon'] = None
  _says(built, output_format, 'Guarantee: none (epsilon is infinite at delta = 1e-06)')


@pytest.mark.parametrize('output_format', PEOPLE)
def test_the_sensitivity_is_exact_or_a_bound(output_format):
  built = _build()
  _says(built, output_format, '(squared: 4.000000), exact')
  assert 'upperbound,soepsilon' not in _read(built, output_format)
  built['mechanism']['sensitivity_kind'] = 'bound'
  _says(
    built,
    output_format,
    '(squared: 4.000000), an upper bound',
    'known by an upper bound, so epsilon is one as well',
  )


@pytest.mark.parametrize('output_format', PEOPLE)
def test_adaptive_clipping_shows_its_share_of_the_noise(output_format):
  mechanism = dataclasses.replace(MECHANISM, clipped_count_stddev=5.0)
  _says(
    _build(mechanism),
    output_format,
    'noise multiplier of the updates',
    rounding.down(mechanism.values_noise_multiplier),
    '5 clients',
    'the norms of client updates',
  )


@pytest.mark.parametrize('output_format', PEOPLE)
def test_sampled_schemas_say_what_they_assume(output_format):
  _says(
    _build(POISSON),
    output_format,
    'add or remove',
    'Poisson sampling: each round draws',
    'sampling probability',
    'was among those that trained',
    'on a random sample of the clients',
    'who took part in which round',
  )
  _says(
    _build(FIXED_SIZE),
    output_format,
    'replace one',
    'draws 10 of 1000 clients',
    'which of two sets of data one client had',
    'Twice that of C',
  )


@pytest.mark.parametrize('output_format', PEOPLE)
def test_a_composition_states_all_together_and_each_run(output_format):
  built = _composition()
  together, alone = built['guarantee'], built['parts'][0]['guarantee']
  assert together['epsilon'] > alone['epsilon']
  _says(
    built,
    output_format,
    f'({rounding.up(together["epsilon"])}, 1e-06) differential privacy for each '
    'client, in all 2 runs together',
    rounding.up(alone['epsilon'], 6),
    'The decision to stop early in run 2 did not depend',
    'program --twice',
  )
  text = rendering.render(built, 'text')
  for number in (1, 2):
    for title in ('MECHANISM', 'PARTICIPATION', 'ACCOUNTING'):
      assert f'\nRUN {number}: {title}\n' in text
  assert text.count('HOW TO VERIFY') == 1
  nested = statement.compose([built, _build()])
  assert 'RUN 1.2: MECHANISM' in rendering.render(nested, 'text')


@pytest.mark.parametrize('output_format', PEOPLE)
def test_target_and_round_log_are_shown(output_format):
  built = _build(
    target_epsilon=5.0,
    found='noise_multiplier',
    participation_source={
      'num_rounds': 20,
      'first_completion': '2024-01-01T00:00:00',
      'waiting': {
        'min_wait_hours': 24.0,
        'closest': [3, 8],
        'assumptions': ['A.', 'B.'],
      },
      'notes': [],
      'observed': None,
    },
  )
  _says(
    built,
    output_format,
    'epsilon 5; the least noise that keeps it was found',
    'round log: first',  # The name goes on beside the value.
    '2024-01-01T00:00:00',
    '24',
    '3, 8',
    'A. B.',
  )
  seen = _read(built, output_format)
  assert 'roundlog:numrounds' not in seen  # Stands above.
  assert 'observed' not in seen


@pytest.mark.parametrize('output_format', PEOPLE)
def test_the_commit_is_shown_and_whether_files_were_changed(output_format):
  built = _build()
  built['software'] = {
    'tff_dp_aggregators': '0.1.0',
    'commit': 10 * '0123',
    'modified': True,
    'numpy': '1.25.2',
  }
  shown = 'by tff_dp_aggregators 0.1.0 (commit ' + 10 * '0123'
  _says(built, output_format, f'{shown}, with uncommitted changes), numpy 1.25.2.')
  built['software']['modified'] = False
  _says(built, output_format, f'{shown}), numpy 1.25.2.')


@pytest.mark.parametrize('name', accounting.mechanism.names())
def test_every_mechanism_is_described(name):
  built = _build(statements.mechanism_of(name, PARTICIPATION, 1.0))
  for output_format in PEOPLE:
    _says(built, output_format, f'{name}: ', '(arXiv:')


def test_json_is_the_statement():
  built = _build()
  assert json.loads(rendering.render(built, 'json')) == built


def test_unknown_formats_are_refused():
  with pytest.raises(ValueError, match="unknown format 'pdf'; known: text"):
    rendering.render(_build(), 'pdf')


def test_text_waits_for_neither_jinja2_nor_matplotlib():
  program = """
import sys
from tff_dp_aggregators.accounting.reports import rendering, statement
for output_format in ('text', 'markdown', 'json'):
  rendering.render(statement.build_without_privacy(), output_format)
assert not {'jinja2', 'matplotlib', 'tensorflow'} & set(sys.modules)
"""
  subprocess.run([sys.executable, '-c', program], check=True, timeout=60)

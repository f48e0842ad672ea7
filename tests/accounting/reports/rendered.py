"""Builds statements for tests of rendering, and reads the rendered text."""

import html.parser
import re

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import rendering

READABLE_FORMATS = ('text', 'markdown', 'html')
DELTA = 1e-6
PARTICIPATION = strategies.Participation(20, min_separation=5)
MECHANISM = accounting.Mechanism('banded', PARTICIPATION, noise_multiplier=2.0)


def build(mechanism=MECHANISM, *, cut=False, with_curves=False, **options):
  """Returns the statement of a mechanism; with `cut`, like that of a stopped run."""
  built = statements.build(mechanism, DELTA, **options, with_curves=with_curves)
  if cut:  # Sets the fields that a ledger would.
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
      'epsilon_planned': built['guarantee']['epsilon'],
    }
    built['stopped'] = {
      'rounds_completed': 7,
      'rounds_planned': 20,
      'epsilon_completed': built['guarantee']['epsilon'] - 1,
      'epsilon_planned': built['guarantee']['epsilon'],
      'rounds_fixed_by': None,
    }
  return built


def cut():
  """Returns a statement like that of a run that ended early."""
  return build(cut=True)


def composition():
  """Returns the statement of two runs together."""
  return statements.compose([build(), build(cut=True)], command='program --twice')


class Page(html.parser.HTMLParser):
  """Parses text, tags and attributes of a page; tags must be closed in order."""

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


def plain(text):
  """Returns text without white space, since formats break lines differently."""
  return ''.join(text.split())


def unescaped(text):
  """Returns Markdown as a reader sees it, except lists and tables."""
  text = re.sub(r'(?<!\\)(`|\*\*)', '', text)
  return re.sub(r'\\([\\`*_<>|\[\]&~$-])', r'\1', text)


def read(built, output_format='markdown'):
  """Returns what a reader of a format sees, without white space."""
  text = rendering.render(built, output_format)
  if output_format == 'html':
    text = ''.join(Page(text).words)
  else:
    text = unescaped(text)
  return plain(text)


def assert_says(built, *claims, output_format='markdown'):
  """Asserts that a reader of a format sees each claim."""
  seen = read(built, output_format)
  for claim in claims:
    assert plain(claim) in seen, claim

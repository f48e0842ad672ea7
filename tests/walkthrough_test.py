"""A reader who does what a document says, from top to bottom, sees what it shows.

What takes long is left out but in slow tests: sections of the tutorial that train once
more, with what the tests of these programs run in small. The rest does not need them.
"""

import pathlib
import re

import pytest

from tests import walkthroughs

DOCS = pathlib.Path(__file__).resolve().parent.parent / 'docs'
WALKTHROUGHS = {
  path.stem: path.read_text(encoding='utf-8')
  for path in sorted(DOCS.glob('*.md'))
  if walkthroughs.is_walkthrough(path)
}
# With what tests of predictions and of reports run in small.
SLOW = ('after_training', 'production')
LONG = {'tutorial': ('Stop, and go on', 'Compare', 'A model of your own')}


def _without(document, headings):
  for heading in headings:
    section = re.compile(rf'^## {heading}\n.*?(?=^## )', re.MULTILINE | re.DOTALL)
    document, found = section.subn('', document)
    assert found == 1, heading
  return document


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(each, marks=[pytest.mark.slow] if each in (*LONG, *SLOW) else [])
    for each in WALKTHROUGHS
  ],
)
def test_each_step_prints_what_stands_below_it(name, tmp_path):
  walkthroughs.follow(WALKTHROUGHS[name], tmp_path)


@pytest.mark.parametrize('name', LONG)
def test_each_step_that_is_not_long_prints_what_stands_below_it(name, tmp_path):
  walkthroughs.follow(_without(WALKTHROUGHS[name], LONG[name]), tmp_path)

"""Each walkthrough in docs/, followed from top to bottom, prints what it shows.

Sections of the tutorial that train again take long, and run only in slow tests. The
other sections do not need them, and tests of these programs cover them on small data.
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
# Slow; tests of predictions and reports cover the same on small data.
SLOW = ('after_training', 'production')
LONG = {'tutorial': ('Stop, and go on', 'Compare', 'A model of your own')}


def _without(document, headings):
  for heading in headings:
    section = re.compile(rf'^## {heading}\n.*?(?=^## )', re.MULTILINE | re.DOTALL)
    document, count = section.subn('', document)
    assert count == 1, heading
  return document


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(each, marks=[pytest.mark.slow] if each in (*LONG, *SLOW) else [])
    for each in WALKTHROUGHS
  ],
)
def test_walkthrough_prints_its_documented_output(name, tmp_path):
  walkthroughs.follow(WALKTHROUGHS[name], tmp_path)


@pytest.mark.parametrize('name', LONG)
def test_walkthrough_without_long_sections_prints_its_documented_output(name, tmp_path):
  walkthroughs.follow(_without(WALKTHROUGHS[name], LONG[name]), tmp_path)

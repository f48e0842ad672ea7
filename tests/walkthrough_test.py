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
  if walkthroughs.is_one(path)
}
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
    pytest.param(each, marks=[pytest.mark.slow] if each in LONG else [])
    for each in WALKTHROUGHS
  ],
)
def test_each_step_prints_what_stands_below_it(name, tmp_path):
  walkthroughs.follow(WALKTHROUGHS[name], tmp_path)


@pytest.mark.parametrize('name', LONG)
def test_each_step_that_is_not_long_prints_what_stands_below_it(name, tmp_path):
  walkthroughs.follow(_without(WALKTHROUGHS[name], LONG[name]), tmp_path)


def test_a_step_that_prints_something_else_is_found(tmp_path):
  document = '```console\n$ echo one; echo two\none\n...\n```\n'
  walkthroughs.follow(document, tmp_path)
  with pytest.raises(AssertionError, match='should print\n\nthree'):
    walkthroughs.follow(document.replace('one\n...', 'three'), tmp_path)


def test_steps_are_in_order_and_see_what_those_before_left(tmp_path):
  document = (
    '```console\n$ echo 7 \\\n  > file\n$ cat file\n7\n```\nand\n'
    '```python\nprint(int(open("file").read()) + 1)\n```\n\n```text\n8\n```\n'
  )
  assert [step.kind for step in walkthroughs.steps(document)] == [
    'command',
    'command',
    'python',
  ]
  walkthroughs.follow(document, tmp_path)

"""A reader who does what a document says, from top to bottom, sees what it shows."""

import pathlib

import pytest

from tests import walkthroughs

DOCS = pathlib.Path(__file__).resolve().parent.parent / 'docs'
WALKTHROUGHS = [path for path in sorted(DOCS.glob('*.md')) if walkthroughs.is_one(path)]


@pytest.mark.parametrize('path', WALKTHROUGHS, ids=lambda path: path.stem)
def test_each_step_prints_what_stands_below_it(path, tmp_path):
  walkthroughs.follow(path.read_text(encoding='utf-8'), tmp_path)


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

"""Turns texts into sequences of tokens, in the layout of TFF's baselines.

Tokens are numbered as in `tff.simulation.baselines.shakespeare` and `stackoverflow`: 0
is padding, then come the vocabulary, one token for everything out of vocabulary,
beginning of text and end of text. A sequence has one token more than an example, whose
inputs are all tokens but the last, and whose labels are all but the first. A longer
text continues in further sequences, the last of which is padded, as in the Shakespeare
baseline; the StackOverflow baseline truncates a sentence instead.
"""

import collections
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import population
from . import problems
from .formats import lines

PADDING = 0
SEQUENCE_LENGTHS = {'character': 80, 'word': 20}
VOCABULARY_SIZES = {'character': 256, 'word': 10_000}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The known characters or words."""

  unit: str  # `character` or `word`.
  # Characters or words in the order of their tokens, the first of which is 1.
  entries: tuple[str, ...]

  def __post_init__(self) -> None:
    if len(self._tokens) != len(self.entries):
      raise ValueError('the vocabulary has an entry twice.')

  @functools.cached_property
  def _tokens(self) -> Mapping[str, int]:
    return {entry: token for token, entry in enumerate(self.entries, start=1)}

  @property
  def unknown(self) -> int:
    return len(self.entries) + 1

  @property
  def begin(self) -> int:
    return len(self.entries) + 2

  @property
  def end(self) -> int:
    return len(self.entries) + 3

  @property
  def names(self) -> tuple[str, ...]:
    """Names of all tokens, special ones included."""
    return ('<pad>', *self.entries, '<oov>', '<bos>', '<eos>')

  def shape(self, length: int, **unscored: Any) -> population.Shape:
    """Returns the shape of examples of so many tokens."""
    return population.Shape(
      (length,),
      'int32',
      (length,),
      'tokens',
      len(self.names),
      self.names,
      ignored_labels=(PADDING,),
      **unscored,
    )

  def tokens(self, text: Sequence[str]) -> np.ndarray:
    """Returns the tokens of a text or its words, of beginning and end; int32."""
    is_whole = isinstance(text, str) and self.unit == 'word'
    units = str(text).split() if is_whole else text
    tokens = map(self._tokens.get, units, itertools.repeat(self.unknown))
    return np.array([self.begin, *tokens, self.end], np.int32)

  def sequences(self, text: Sequence[str], length: int) -> np.ndarray:
    """Returns a text's tokens as int32 [sequences, length + 1], the last one padded."""
    tokens = self.tokens(text)
    count = -(-len(tokens) // (length + 1))
    padded = np.full(count * (length + 1), PADDING, np.int32)
    padded[: len(tokens)] = tokens
    return padded.reshape(count, length + 1)


def examples(sequences: np.ndarray) -> dict[str, np.ndarray]:
  """Returns inputs and labels of sequences: each token's label is the next one."""
  return {
    'x': np.ascontiguousarray(sequences[:, :-1]),
    'y': np.ascontiguousarray(sequences[:, 1:]),
  }


def most_frequent(texts: Iterable[str], unit: str, size: int) -> Vocabulary:
  """Returns the vocabulary of the most frequent entries, ties in sorted order."""
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(text if unit == 'character' else text.split())
  ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
  return Vocabulary(unit, tuple(entry for entry, _ in ordered[:size]))


def from_file(path: str, unit: str) -> Vocabulary:
  """Reads a public vocabulary from a file."""
  seen: set[str] = set()
  with lines.opened(path) as file:
    content = file.read()
  if unit == 'character':
    entries = list(dict.fromkeys(content))
  else:
    entries = content.splitlines()
    for number, entry in enumerate(entries, start=1):
      if entry.split() != [entry] or entry in seen:
        raise problems.DataError(
          f'{path}, line {number}: {problems.shown(entry)} is not a single word, or '
          'in a line before.'
        )
      seen.add(entry)
  if not entries:
    raise problems.DataError(f'{os.path.abspath(path)} is empty; it must have entries.')
  return Vocabulary(unit, tuple(entries))

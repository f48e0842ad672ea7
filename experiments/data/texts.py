"""Sequences of tokens made of texts, in the layout of TFF's baselines.

Tokens are numbered as `tff.simulation.baselines.shakespeare` and `stackoverflow` do: 0
is padding, then the vocabulary, then one for all that is not in it, beginning of text
and end of text. An example is `tokens[:-1]`, whose labels are `tokens[1:]`.

A text goes on, where it is longer, in a further sequence, so nothing of it is lost;
the last sequence is padded. That is what the baseline of Shakespeare does, with 80
characters and a fixed vocabulary of 86. The baseline of StackOverflow cuts a sentence
after 20 words instead, and knows the 10,000 most frequent ones.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable
from typing import Optional

import numpy as np

from . import problems
from .formats import lines

PADDING = 0
SEQUENCE_LENGTHS = {'character': 80, 'word': 20}
VOCABULARY_SIZES = {'character': 256, 'word': 10_000}
_SPECIAL = ('<pad>', '<oov>', '<bos>', '<eos>')
_NUM_CHARACTERS = 0x110000


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Characters or words that are known.

  Attributes:
    unit: `character` or `word`.
    entries: The known ones, in the order of their tokens, the first of which is 1.

  Example:
    >>> vocabulary = Vocabulary('word', ('to', 'be'))
    >>> vocabulary.sequences('to be or', 4).tolist()
    [[4, 1, 2, 3, 5]]
    >>> vocabulary.sequences('to be or', 3).tolist()
    [[4, 1, 2, 3], [5, 0, 0, 0]]
  """

  unit: str
  entries: tuple[str, ...]

  def __post_init__(self) -> None:
    places = {entry: place for place, entry in enumerate(self.entries, start=1)}
    object.__setattr__(self, '_places', places)
    if self.unit == 'character':
      by_character = np.full(_NUM_CHARACTERS, self.unknown, np.int32)
      for entry, place in places.items():
        by_character[ord(entry)] = place
      object.__setattr__(self, '_by_character', by_character)

  @property
  def unknown(self) -> int:
    """The token of all that is not in the vocabulary."""
    return len(self.entries) + 1

  @property
  def num_tokens(self) -> int:
    """How many tokens there are, special ones included."""
    return len(self.entries) + len(_SPECIAL)

  @property
  def names(self) -> tuple[str, ...]:
    """What tokens are called."""
    return (_SPECIAL[0], *self.entries, *_SPECIAL[1:])

  def tokens(self, text: str) -> np.ndarray:
    """Tokens of a text with those of its beginning and end; int32."""
    if self.unit == 'character':
      found = self._by_character[_code_points(text)]  # type: ignore[attr-defined]
    else:
      places = self._places  # type: ignore[attr-defined]
      found = [places.get(word, self.unknown) for word in text.split()]
    begin, end = self.unknown + 1, self.unknown + 2
    return np.concatenate([[begin], found, [end]]).astype(np.int32)

  def sequences(self, text: str, length: int) -> np.ndarray:
    """Tokens of a text cut into sequences, the last one padded.

    Returns int32 of shape [sequences, length + 1].
    """
    tokens = self.tokens(text)
    count = -(-len(tokens) // (length + 1))
    found = np.full(count * (length + 1), PADDING, np.int32)
    found[: len(tokens)] = tokens
    return found.reshape(count, length + 1)


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)


def most_frequent(texts: Iterable[str], unit: str, size: int) -> Vocabulary:
  """A vocabulary of what is most frequent; of equals, what is first in order."""
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(text if unit == 'character' else text.split())
  ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
  return Vocabulary(unit, tuple(entry for entry, _ in ordered[:size]))


def from_file(path: str, unit: str) -> Vocabulary:
  """A public vocabulary."""
  where: dict[str, int] = {}
  with lines.opened(path) as file:
    content = file.read()
  if unit == 'character':
    entries = list(dict.fromkeys(content))
  else:
    entries = content.splitlines()
    for number, entry in enumerate(entries, start=1):
      if entry.split() != [entry]:
        raise problems.DataError(
          f'{path}, line {number}: {problems.shown(entry)} is no single word.'
        )
      if entry in where:
        raise problems.DataError(
          f'{path}, line {number}: {entry!r} is in line {where[entry]} already.'
        )
      where[entry] = number
  if not entries:
    raise problems.DataError(f'{os.path.abspath(path)} is empty; it must have entries.')
  return Vocabulary(unit, tuple(entries))


def sequence_length(unit: str, given: Optional[int]) -> int:
  """Tokens of an example."""
  return SEQUENCE_LENGTHS[unit] if given is None else given

"""Texts as numbers, in the layout of TFF's baselines.

0 is padding; then comes the vocabulary, from 1; then a token for all that is not in it,
one for the beginning and one for the end of a text. As in
`tff.simulation.baselines.shakespeare` and `stackoverflow`, with one token for what is
out of vocabulary. A sequence has one token more than an example: its inputs are all but
the last, its labels all but the first.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PADDING = 0


class Vocabulary:
  """Characters or words that have tokens of their own.

  Attributes:
    entries: The known ones; the first has token 1.

  Example:
    >>> vocabulary = Vocabulary(['to', 'be'])
    >>> vocabulary.sentence(['to', 'be', 'or'], length=5).tolist()
    [4, 1, 2, 3, 5, 0]
    >>> vocabulary.sentence(['to', 'be', 'or'], length=2).tolist()
    [4, 1, 2]
    >>> vocabulary.sequences(['to', 'be', 'or'], length=3).tolist()
    [[4, 1, 2, 3], [5, 0, 0, 0]]
  """

  def __init__(self, entries: Iterable[str]):
    self.entries = tuple(entries)
    if len(self._tokens) != len(self.entries):
      raise ValueError('an entry of the vocabulary is there twice.')

  @functools.cached_property
  def _tokens(self) -> Mapping[str, int]:
    return {entry: number for number, entry in enumerate(self.entries, start=1)}

  @property
  def unknown(self) -> int:
    """The token of what is not in the vocabulary."""
    return len(self.entries) + 1

  @property
  def begin(self) -> int:
    """The token before a text."""
    return len(self.entries) + 2

  @property
  def end(self) -> int:
    """The token after a text."""
    return len(self.entries) + 3

  @property
  def num_tokens(self) -> int:
    """How many tokens there are, special ones included."""
    return len(self.entries) + 4

  @property
  def names(self) -> tuple[str, ...]:
    """What tokens are called, by number."""
    return ('<pad>', *self.entries, '<oov>', '<bos>', '<eos>')

  def sentence(self, units: Sequence[str], length: int) -> np.ndarray:
    """A sentence as one sequence; what is longer is cut, and then has no end.

    Returns int32 of shape [length + 1].
    """
    found = np.full(length + 1, PADDING, np.int32)
    tokens = [self._tokens.get(each, self.unknown) for each in units[:length]]
    if len(tokens) < length:
      tokens.append(self.end)
    found[0], found[1 : len(tokens) + 1] = self.begin, tokens
    return found

  def sequences(self, units: Sequence[str], length: int) -> np.ndarray:
    """A text as sequences one after the other, the last one padded.

    Returns int32 of shape [sequences, length + 1].
    """
    tokens = [self._tokens.get(each, self.unknown) for each in units]
    tokens = [self.begin, *tokens, self.end]
    count = -(-len(tokens) // (length + 1))
    found = np.full(count * (length + 1), PADDING, np.int32)
    found[: len(tokens)] = tokens
    return found.reshape(count, length + 1)


def examples(sequences: np.ndarray) -> dict[str, np.ndarray]:
  """Inputs and labels of sequences: each token's label is the next."""
  return {
    'x': np.ascontiguousarray(sequences[:, :-1]),
    'y': np.ascontiguousarray(sequences[:, 1:]),
  }

"""The next-character model of Shakespeare: two LSTMs over embedded characters.

Embedding of 8, two LSTMs of 256 units, and logits: arXiv:1602.05629, and
arXiv:2003.00295 with the preprocessing of TFF's baselines, where it has 820,522 weights
(90 tokens). The embedding is not tied to the output.
"""

from typing import Any

from ..data import population
from . import kind


def build(shape: population.Shape, options: kind.Options) -> Any:
  """The model, for sequences of any length."""
  from .parts import functional  # Flags are checked without TensorFlow.
  from .parts import initial
  from .parts import layers

  units = KIND.width(options, 'hidden_units')
  size = KIND.width(options, 'embedding_size')
  num_tokens = shape.num_classes
  assert num_tokens is not None
  rng = initial.generator(options.seed)
  weights = [
    initial.embedding(rng, num_tokens, size),
    *initial.lstm(rng, size, units, initial.he_normal),
    *initial.lstm(rng, units, units, initial.he_normal),
    *initial.dense(rng, units, num_tokens),
  ]

  def predict(w: Any, x: Any) -> Any:
    states = layers.lstm(layers.embedding(w[0], x), *w[1:4])
    return layers.dense(layers.lstm(states, *w[4:7]), *w[7:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'char_lstm',
  'two LSTMs that predict the next character, as for Shakespeare',
  kind.why_not_tokens,
  build,
  widths={'hidden_units': 256, 'embedding_size': 8},
)

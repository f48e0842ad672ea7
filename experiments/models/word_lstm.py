"""The next-word model of StackOverflow: an LSTM over embedded words.

Embedding of 96, an LSTM of 670 units, a dense layer back to 96, and logits:
arXiv:2003.00295, arXiv:2103.00039 and the papers on matrix factorization, where it has
4,050,748 weights (10,000 words and 4 special tokens). The embedding is not tied to the
output: `shared_embedding` is off in google-research/federated, dp_ftrl and
dp_matrix_factorization.
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
    *initial.lstm(rng, size, units),
    *initial.dense(rng, units, size),
    *initial.dense(rng, size, num_tokens),
  ]

  def predict(w: Any, x: Any) -> Any:
    states = layers.lstm(layers.embedding(w[0], x), *w[1:4])
    return layers.dense(layers.dense(states, *w[4:6]), *w[6:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'word_lstm',
  'LSTM that predicts the next word, as for StackOverflow',
  kind.why_not_tokens,
  build,
  widths={'hidden_units': 670, 'embedding_size': 96},
)

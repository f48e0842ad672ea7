"""Models by name: what `--model` takes.

Knows nothing of TensorFlow until a model is made, so that flags are checked at once.
"""

from . import kind as _kind

_EMBEDDING = 8  # Of a value of a column.
KINDS: dict[str, _kind.Kind] = {
  each.name: each
  for each in (
    _kind.Kind(
      'logistic',
      'logistic regression',
      _kind.why_not_logits,
      {'embedding_size': _EMBEDDING},
      embeds_columns=True,
    ),
    _kind.Kind(
      'char_lstm',
      'two LSTMs that predict the next character, as for Shakespeare',
      _kind.why_not_tokens,
      {'hidden_units': 256, 'embedding_size': 8},
    ),
    _kind.Kind(
      'cnn',
      'convolutional network of federated averaging and of DP-FTRL on EMNIST',
      _kind.why_not_images,
      {'hidden_units': 512},
    ),
    _kind.Kind(
      'linear',
      'linear regression of numbers',
      _kind.why_not_numbers,
      {'embedding_size': _EMBEDDING},
      embeds_columns=True,
    ),
    _kind.Kind(
      'mlp',
      'perceptron with two hidden layers',
      _kind.why_not_outputs,
      {'hidden_units': 200, 'embedding_size': _EMBEDDING},
      embeds_columns=True,
    ),
    _kind.Kind(
      'simple_cnn',
      "convolutional network of pfl-research's CIFAR-10 benchmark",
      _kind.why_not_larger_images,
      {'hidden_units': 128},
    ),
    _kind.Kind(
      'vgg',
      "small VGG with tanh, of DP-FTRL's experiments on CIFAR-10",
      _kind.why_not_images,
      {'hidden_units': 128},
    ),
    _kind.Kind(
      'word_lstm',
      'LSTM that predicts the next word, as for StackOverflow',
      _kind.why_not_tokens,
      {'hidden_units': 670, 'embedding_size': 96},
    ),
  )
}

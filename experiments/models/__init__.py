"""Models by name: what `--model` takes.

Knows nothing of TensorFlow until a model is made, so that flags are checked at once.
"""

from . import kind as _kind

KINDS: dict[str, _kind.Kind] = {
  each.name: each
  for each in (
    _kind.Kind(
      'logistic',
      'logistic regression',
      'features',
      ('class', 'tags'),
      {'embedding_size': 8},
    ),
    _kind.Kind(
      'char_lstm',
      'two LSTMs that predict the next character, as for Shakespeare',
      'tokens',
      ('tokens',),
      {'hidden_units': 256, 'embedding_size': 8},
    ),
    _kind.Kind(
      'cnn',
      'convolutional network of federated averaging and of DP-FTRL on EMNIST',
      'images',
      ('class',),
      {'hidden_units': 512},
    ),
    _kind.Kind(
      'linear',
      'linear regression of numbers',
      'features',
      ('number',),
      {'embedding_size': 8},
    ),
    _kind.Kind(
      'mlp',
      'perceptron with two hidden layers',
      'features',
      ('class', 'tags', 'number'),
      {'hidden_units': 200, 'embedding_size': 8},
    ),
    _kind.Kind(
      'simple_cnn',
      "convolutional network of pfl-research's CIFAR-10 benchmark",
      'images',
      ('class',),
      {'hidden_units': 128},
      least_pixels=6,  # Two convolutions without padding, and a pooling.
    ),
    _kind.Kind(
      'vgg',
      "small VGG with tanh, of DP-FTRL's experiments on CIFAR-10",
      'images',
      ('class',),
      {'hidden_units': 128},
    ),
    _kind.Kind(
      'word_lstm',
      'LSTM that predicts the next word, as for StackOverflow',
      'tokens',
      ('tokens',),
      {'hidden_units': 670, 'embedding_size': 96},
    ),
  )
}

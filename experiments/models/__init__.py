"""Models by name: what `--model` takes, each a module with its `KIND`.

Knows nothing of TensorFlow until a model is made, so that flags are checked at once.
"""

from .logistic import KIND as _logistic

KINDS = {each.name: each for each in (_logistic,)}

"""Models by name: what `--model` takes, each a module with its `KIND`.

A module that has a `KIND` is found by itself. Knows nothing of TensorFlow until a model
is made, so that flags are checked at once.
"""

from .. import registry
from . import kind as _kind

KINDS: dict[str, _kind.Kind] = registry.found(
  __name__, __path__, 'KIND', first='logistic'
)

"""Tasks of the simulations: what can be trained, each a `task.Task`.

The first one is the default. Knows nothing of TensorFlow until data are loaded, so that
flags are checked at once.
"""

from . import cifar10 as _cifar10
from . import databases as _databases
from . import tables as _tables
from . import task as _task
from . import text as _text

TASKS: dict[str, _task.Task] = {
  each.name: each
  for each in (
    _tables.DIGITS,
    _tables.BREAST_CANCER,
    _cifar10.TASK,
    _databases.CIFAR100,
    _databases.EMNIST,
    _databases.SHAKESPEARE,
    _databases.STACKOVERFLOW,
    _text.TASK,
  )
}

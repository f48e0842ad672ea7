"""Tasks of the simulations by name, each a `task.Task`; the first is the default.

Does not import TensorFlow until data are loaded, so that flags are checked at once.
"""

from . import cached as _cached
from . import installed as _installed
from . import task as _task

TASKS: dict[str, _task.Task] = {
  each.name: each
  for each in (
    _installed.DIGITS,
    _installed.BREAST_CANCER,
    _cached.CIFAR10,
    _cached.CIFAR100,
    _cached.EMNIST,
    _cached.SHAKESPEARE,
    _cached.STACKOVERFLOW,
    _installed.TEXT,
  )
}

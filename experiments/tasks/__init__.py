"""Tasks of the simulations: what can be trained, each described by a `task.Task`.

A module that has a `TASK` is found by itself; the first task is the default. Knows
nothing of TensorFlow until data are loaded, so that flags are checked at once.
"""

from .. import registry
from . import task as _task

TASKS: dict[str, _task.Task] = registry.found(
  __name__, __path__, 'TASK', first='digits'
)

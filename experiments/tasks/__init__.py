"""Tasks of the simulations: what can be trained, each described by a `task.Task`.

Knows nothing of TensorFlow until a model is made, so that flags are checked at once.
"""

from . import digits

TASKS = {each.name: each for each in (digits.TASK,)}

"""Weights of classes in the loss: `--class_weights`."""

import math
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from . import columns
from . import problems

BALANCED = 'balanced'


def of(
  stated: Sequence[str],
  classes: Optional[Sequence[str]],
  counted: Callable[[], np.ndarray],
) -> Optional[tuple[float, ...]]:
  """The weight of each class.

  Balanced are those of scikit-learn, n / (k n_c) for a class with n_c of n training
  examples if k classes have any: they are 1 on average over the examples. Classes
  without any, and those that are not named, have weight 1.

  `classes`: Names of classes, in order; `None` if labels are no classes.
  `counted`: Counts the training examples of each class.

  Returns in the order of the classes; `None` if no weights are stated.
  """
  if not stated:
    return None
  if classes is None:
    raise problems.DataError(
      '--class_weights is for labels of which each is one class, and these are '
      'numbers or tags. Leave it out, or give --label_kind=class if they are names.'
    )
  if tuple(stated) == (BALANCED,):
    counts = counted()
    total, present = int(counts.sum()), int(np.count_nonzero(counts))
    return tuple(float(total / (present * n)) if n else 1.0 for n in counts)
  weights: dict[str, float] = {}
  for each in stated:
    name, _, number = each.rpartition(':')
    if name not in classes and columns.is_number(name) and math.isfinite(float(name)):
      name = columns.number_name(float(name))
    is_weight = columns.is_number(number) and 0 < float(number) < math.inf
    if name not in classes or name in weights or not is_weight:
      raise problems.DataError(
        f'--class_weights has {each!r}. Give --class_weights={BALANCED}, or '
        'class:weight once for each as in no:1,yes:5, with weights that are positive '
        f'and finite. The classes are: {problems.listed(classes)}.'
      )
    weights[name] = float(number)
  return tuple(weights.get(name, 1.0) for name in classes)

"""Weights of classes in the loss: `--class_weights`."""

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from . import columns
from . import problems

BALANCED = 'balanced'
_FORM = f'Give --class_weights={BALANCED}, or class:weight for each, as in no:1,yes:5.'


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

  Example:
    >>> of(['yes:5'], ('no', 'yes'), lambda: np.array([3, 1]))
    (1.0, 5.0)
    >>> of([BALANCED], ('no', 'yes'), lambda: np.array([3, 1]))
    (0.6666666666666666, 2.0)
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
    name, weight = _read(each, classes)
    if name in weights:
      raise problems.DataError(f'--class_weights has {name} twice; name it once.')
    weights[name] = weight
  return tuple(weights.get(name, 1.0) for name in classes)


def _read(stated: str, classes: Sequence[str]) -> tuple[str, float]:
  name, colon, number = stated.rpartition(':')
  if not colon or not columns.is_number(number):
    raise problems.DataError(f'--class_weights has {stated!r}. {_FORM}')
  weight = float(number)
  if not 0 < weight < math.inf:
    raise problems.DataError(
      f'--class_weights has {stated!r}: weights are positive and finite. To train '
      'without a class, leave its rows out.'
    )
  if name not in classes and columns.is_number(name) and math.isfinite(float(name)):
    name = columns.number_name(float(name))
  if name not in classes:
    raise problems.DataError(
      f'--class_weights names {name!r}, which is not a class; the classes are: '
      f'{problems.listed(classes)}.'
    )
  return name, weight


def told(
  weights: Optional[Sequence[float]], classes: Optional[Sequence[str]]
) -> dict[str, Any]:
  if weights is None or classes is None:
    return {}
  rounded = [round(weight, 6) for weight in weights]
  return {'weights of classes': dict(zip(classes[:20], rounded))}

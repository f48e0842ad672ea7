"""Errors of noise that is made of few rows of z, with weights of any kind.

Row t of the noise is sum_i W[t, i] z[t - i] for i below p. So z[j] is in rounds j to
j + p - 1 only, where it is followed lag by lag, for all j at once. Later a workload
only carries on what it remembers of z[j], two numbers: its decayed sum v and its part y
of the answer,

    v <- momentum v,    y <- (1 - weight_decay) y + learning_rate v.

Their squares and products, summed up over all such j, follow from those of the round
before. So all errors take O(n p).
"""

import numpy as np

from tff_dp_aggregators.strategies import workload as workload_lib


def of_noise(workload: workload_lib.Workload, weights: np.ndarray) -> np.ndarray:
  """Squared row norms of A N, for noise N z.

  `weights`: W, float64 of shape [n, p], p at most n. Entries [t, i] with i > t are of
  no meaning.

  Returns float64 array of shape [n].

  Example:
    >>> of_noise(workload_lib.Workload(3), np.array([[1.0, 0.0], [2.0, -0.5], [1, -1]]))
    array([1.  , 4.25, 2.25])
  """
  num_rounds, width = weights.shape
  momentum, kept = workload.momentum, 1.0 - workload.weight_decay
  rates = np.ones(num_rounds)
  if workload.learning_rates is not None:
    rates = np.array(workload.learning_rates)
  errors = np.zeros(num_rounds)
  decayed, answers = np.zeros(num_rounds), np.zeros(num_rounds)  # v and y of each j.
  for lag in range(width):
    rounds = num_rounds - lag
    decayed = momentum * decayed[:rounds] + weights[lag:, lag]
    answers = kept * answers[:rounds] + rates[lag:] * decayed
    errors[lag:] += np.square(answers)
  later = [
    array[: num_rounds - width].tolist()
    for array in (np.square(decayed), decayed * answers, np.square(answers))
  ]
  vv = vy = yy = 0.0
  carried = []
  for rate, own_vv, own_vy, own_yy in zip(rates[width:].tolist(), *later):
    vv, vy, yy = vv + own_vv, vy + own_vy, yy + own_yy
    step = rate * momentum
    yy = kept**2 * yy + 2.0 * kept * step * vy + step**2 * vv
    vy = momentum * (kept * vy + step * vv)
    vv = momentum**2 * vv
    carried.append(yy)
  errors[width:] += carried
  return errors

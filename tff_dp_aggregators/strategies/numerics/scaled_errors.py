"""Errors of Toeplitz strategies whose columns are scaled from epoch to epoch.

With C = T D, T Toeplitz and D constant on epochs, the estimator is

    B = A D^-1 G,    G = T^-1, Toeplitz with first column g,

so row i of G z, the noise of the unscaled strategy, is multiplied by the factor r of
its epoch before A is applied. This module computes the squared row norms of B as
functions of g and of all r, with their derivatives.

**A workload with a constant learning rate** has a state of two numbers: with decayed
sums v[t] = momentum v[t - 1] + x[t], it is y[t] = kept y[t - 1] + rate v[t], kept being
1 - weight_decay. Let W and V be the first columns of A G and of the decayed sums of G,
psi[m] = kept^m, and phi[m] = rate (kept^(m-1) momentum + ... + momentum^m). For a row t
of an epoch that begins in round s,

    B[t, j] = r W[t - j] + psi[t - s + 1] h[j] + phi[t - s + 1] f[j],

where h and f are the states after the earlier epochs with their own factors, less the
states with the factor r. Both are zero from j = s on. For the next epoch, which begins
in round s' = s + l and has r' in place of r,

    h' = psi[l] h + phi[l] f + (r - r') W[s' - 1 - j],
    f' = momentum^l f + (r - r') V[s' - 1 - j].

So a row's norm follows from running sums of W^2, products of h and f, and their
convolutions with W: O(n log n) for each epoch. Derivatives run through it backwards.

**Any other workload** needs the matrix B, in O(n^2), or O(n^3) for an array.
"""

import functools
from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import power_series

# From weights of the errors to the gradients of their weighted sum by g and by r.
PullBack = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
# From g, shape [n], and r to squared row norms of A D^-1 G, float64 of shape [n], and
# their derivatives, for a fixed workload and fixed epochs.
Errors = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, PullBack]]


def workload_errors(workload: workload_lib.Checked, starts: Sequence[int]) -> Errors:
  """Returns the errors of a workload, by the fastest algorithm for it."""
  if isinstance(workload, workload_lib.Workload) and workload.is_toeplitz:
    if len(starts) == 1:
      return _errors_of_one_epoch(workload.coefficients())
    return _StateErrors(workload, starts)
  return functools.partial(_dense_errors, workload, starts)


def _errors_of_one_epoch(workload: np.ndarray) -> Errors:
  """Errors with a Toeplitz estimator, each row of which extends the row before."""
  n = len(workload)

  def errors(column: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, PullBack]:
    estimator = power_series.multiply(workload, column, n)
    squares = np.cumsum(np.square(estimator))

    def pull_back(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      later = np.cumsum(weights[::-1])[::-1]
      by_estimator = 2.0 * factors[0] ** 2 * estimator * later
      by_column = power_series.correlate(by_estimator, workload, n)
      return by_column, 2.0 * factors * (weights @ squares)

    return factors[0] ** 2 * squares, pull_back

  return errors


def _dense_errors(
  workload: workload_lib.Checked,
  starts: Sequence[int],
  column: np.ndarray,
  factors: np.ndarray,
) -> tuple[np.ndarray, PullBack]:
  """Errors of any workload."""
  noise = scipy.linalg.toeplitz(column, np.zeros_like(column))
  lengths = np.diff([*starts, len(column)])
  by_round = np.repeat(factors, lengths)[:, np.newaxis]
  estimator = workload_lib.apply(workload, by_round * noise)

  def pull_back(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    by_estimator = 2.0 * weights[:, np.newaxis] * estimator
    scaled = workload_lib.apply_transposed(workload, by_estimator)
    by_factor = np.add.reduceat((scaled * noise).sum(axis=1), list(starts))
    by_noise = by_round * scaled
    lags = [np.trace(by_noise, offset=-lag) for lag in range(len(column))]
    return np.array(lags), by_factor

  return np.square(estimator).sum(axis=1), pull_back


class _Epoch(NamedTuple):
  """h and f of an epoch, and their convolutions with W."""

  left: np.ndarray  # h, of shape [s].
  fading: np.ndarray  # f, of shape [s]; zeros without momentum.
  product: np.ndarray  # sum_j h[j] W[t - j] for each of its rounds.
  fading_product: np.ndarray  # sum_j f[j] W[t - j] for each of its rounds.


class _StateErrors:
  """Errors of prefix sums, with or without momentum and weight decay."""

  def __init__(self, workload: workload_lib.Workload, starts: Sequence[int]):
    n = workload.num_rounds
    self._num_rounds = n
    self._momentum = workload.momentum
    self._workload = workload.coefficients()
    self._powers = workload.momentum ** np.arange(n)
    kept, momentum = 1.0 - workload.weight_decay, workload.momentum
    self._kept = kept ** np.arange(n + 1)  # psi[m], for m from 0 on.
    sums = workload_lib.decayed_sums(momentum ** np.arange(1, n + 1), kept)
    self._fading = np.append(0.0, self._workload[0] * sums)  # phi[m]
    self._bounds = list(zip(starts, [*starts[1:], n]))

  def __call__(
    self, column: np.ndarray, factors: np.ndarray
  ) -> tuple[np.ndarray, PullBack]:
    n = self._num_rounds
    sums = power_series.multiply(self._workload, column, n)
    decayed = power_series.multiply(self._powers, column, n)
    epochs = self._forward(sums, decayed, factors)
    squares = np.cumsum(np.square(sums))
    values = np.zeros(n)
    for (start, stop), factor, each in zip(self._bounds, factors, epochs):
      psi, phi = self._state(stop - start)
      values[start:stop] = (
        factor**2 * squares[start:stop]
        + 2.0 * factor * (psi * each.product + phi * each.fading_product)
        + psi**2 * (each.left @ each.left)
        + 2.0 * psi * phi * (each.left @ each.fading)
        + phi**2 * (each.fading @ each.fading)
      )

    def pull_back(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      by_sums, by_decayed, by_factor = self._backward(
        sums, decayed, squares, factors, epochs, weights
      )
      by_column = power_series.correlate(by_sums, self._workload, n)
      if self._momentum:
        by_column += power_series.correlate(by_decayed, self._powers, n)
      return by_column, by_factor

    return values, pull_back

  def _state(self, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns psi and phi of the rounds of an epoch."""
    return self._kept[1 : length + 1], self._fading[1 : length + 1]

  def _forward(
    self, sums: np.ndarray, decayed: np.ndarray, factors: np.ndarray
  ) -> list[_Epoch]:
    epochs = []
    left, fading = np.zeros(0), np.zeros(0)
    for number, (start, stop) in enumerate(self._bounds):
      product = _convolved(left, sums, start, stop)
      fading_product = np.zeros(stop - start)
      if self._momentum:
        fading_product = _convolved(fading, sums, start, stop)
      epochs.append(_Epoch(left, fading, product, fading_product))
      if stop == self._num_rounds:
        break
      step = factors[number] - factors[number + 1]
      new_left = np.zeros(stop)
      kept = self._kept[stop - start]
      new_left[:start] = kept * left + self._fading[stop - start] * fading
      new_left += step * sums[stop - 1 :: -1]
      new_fading = np.zeros(stop)
      if self._momentum:
        new_fading[:start] = self._momentum ** (stop - start) * fading
        new_fading += step * decayed[stop - 1 :: -1]
      left, fading = new_left, new_fading
    return epochs

  def _backward(
    self,
    sums: np.ndarray,
    decayed: np.ndarray,
    squares: np.ndarray,
    factors: np.ndarray,
    epochs: list[_Epoch],
    weights: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The derivatives by W, by V and by r."""
    by_sums = np.zeros_like(sums)
    by_decayed = np.zeros_like(decayed)
    by_factor = np.zeros_like(factors)
    by_left = by_fading = np.zeros(self._num_rounds)
    for number in reversed(range(len(epochs))):
      (start, stop), factor = self._bounds[number], factors[number]
      each = epochs[number]
      if stop < self._num_rounds:
        step = factor - factors[number + 1]
        by_step = by_left @ sums[stop - 1 :: -1] + by_fading @ decayed[stop - 1 :: -1]
        by_factor[number] += by_step
        by_factor[number + 1] -= by_step
        by_sums[:stop] += step * by_left[::-1]
        by_decayed[:stop] += step * by_fading[::-1]
        by_fading = (
          self._fading[stop - start] * by_left[:start]
          + self._momentum ** (stop - start) * by_fading[:start]
        )
        by_left = self._kept[stop - start] * by_left[:start]
      else:
        by_left, by_fading = np.zeros(start), np.zeros(start)
      own = weights[start:stop]
      psi, phi = self._state(stop - start)
      product = psi * each.product + phi * each.fading_product
      by_factor[number] += 2.0 * own @ (factor * squares[start:stop] + product)
      # The gradient by h[j] is sum_t w[t] W[t - j], that by W[m] sum_t w[t] h[t - m].
      by_product = np.zeros(stop)
      by_product[start:] = 2.0 * factor * own * psi
      by_left = by_left + _correlated(by_product, sums, start)
      both = own @ (self._kept * self._fading)[1 : stop - start + 1]
      by_left += 2.0 * ((own * psi**2).sum() * each.left + both * each.fading)
      by_sums[:stop] += _correlated(by_product, each.left, stop)
      if self._momentum:
        by_product[start:] = 2.0 * factor * own * phi
        by_fading = by_fading + _correlated(by_product, sums, start)
        by_fading += 2.0 * (both * each.left + (own @ phi**2) * each.fading)
        by_sums[:stop] += _correlated(by_product, each.fading, stop)
    lengths = [stop - start for start, stop in self._bounds]
    later = np.cumsum((weights * np.repeat(np.square(factors), lengths))[::-1])[::-1]
    return by_sums + 2.0 * sums * later, by_decayed, by_factor


def _convolved(
  short: np.ndarray, series: np.ndarray, start: int, stop: int
) -> np.ndarray:
  """sum_j short[j] series[t - j] for t from `start` to `stop - 1`."""
  if not short.size:
    return np.zeros(stop - start)
  return power_series.multiply(short, series, stop)[start:]


def _correlated(left: np.ndarray, right: np.ndarray, num_lags: int) -> np.ndarray:
  """sum_t left[t] right[t - lag] for lags from 0 to `num_lags - 1`."""
  if not right.size or not num_lags:
    return np.zeros(num_lags)
  return power_series.correlate(left, right[: len(left)], num_lags)

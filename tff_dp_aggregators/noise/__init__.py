"""Streaming correlated noise as pure functions of an explicit state.

`build(strategy, rows)` gives the `StreamingNoise` of a strategy; `rows` is the source
of its iid Gaussians.
"""

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise.banded import BandedToeplitzNoise
from tff_dp_aggregators.noise.rows import GaussianRows
from tff_dp_aggregators.noise.streaming import IndependentNoise
from tff_dp_aggregators.noise.streaming import NoiseState
from tff_dp_aggregators.noise.streaming import StreamingNoise
from tff_dp_aggregators.noise.tree import TreeNoise

__all__ = [
  'BandedToeplitzNoise',
  'GaussianRows',
  'IndependentNoise',
  'NoiseState',
  'StreamingNoise',
  'TreeNoise',
  'build',
]


def build(strategy: strategies.Strategy, rows: GaussianRows) -> StreamingNoise:
  """The streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy of this package.
    rows: Source of the rows of z.

  Raises:
    TypeError: If no streaming noise is known for this kind of strategy.
  """
  if isinstance(strategy, strategies.BinaryTree):
    return TreeNoise(strategy, rows)
  if isinstance(strategy, strategies.Identity):
    return IndependentNoise(rows)
  if isinstance(strategy, strategies.BandedToeplitz):
    return BandedToeplitzNoise(strategy, rows)
  raise TypeError(
    f'no streaming noise for a strategy of kind {strategy.kind!r} yet; use Identity, '
    'BinaryTree or BandedToeplitz.'
  )

"""Mechanisms for 20 rounds, one for each kind of composition."""

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

LIMITS = strategies.Participation(20, min_separation=4)
BY_NAME = {
  'poisson': accounting.Mechanism('gaussian', sampling.PoissonSampling(20, 0.1), 1.5),
  'cyclic': accounting.Mechanism(
    'toeplitz', sampling.PoissonSampling(20, 0.2, num_groups=3), 1.0, num_bands=3
  ),
  'replace_one': accounting.Mechanism(
    'gaussian', sampling.FixedSizeSampling(20, 500, 20), 2.0
  ),
  'add_or_remove': accounting.Mechanism(
    'gaussian',
    sampling.FixedSizeSampling(20, 500, 20),
    2.0,
    adjacency='add_or_remove',
  ),
  'adaptive': accounting.Mechanism(
    'gaussian', sampling.PoissonSampling(20, 0.1), 1.5, clipped_count_stddev=2.0
  ),
  'parts': accounting.JointMechanism(
    (
      accounting.JointPart('a', '0', accounting.Mechanism('tree', LIMITS, 5.0), 1.0),
      accounting.JointPart('b', '1', accounting.Mechanism('laplace', LIMITS, 9.0), 1.0),
    )
  ),
}

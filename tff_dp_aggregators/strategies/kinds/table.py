"""All kinds of strategies."""

from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import tailed_blt
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import tree
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies.epoch_scaled import banded as epoch_banded
from tff_dp_aggregators.strategies.epoch_scaled import banded_inverse as epoch_inverse
from tff_dp_aggregators.strategies.epoch_scaled import toeplitz as epoch_toeplitz
from tff_dp_aggregators.strategies.epoch_scaled import windowed_blt as epoch_windowed
from tff_dp_aggregators.strategies.kinds import builders
from tff_dp_aggregators.strategies.kinds import kind as kind_lib

_BANDS = kind_lib.Option(
  'num_bands',
  help='bands of the matrix, by default as many as cost no sensitivity, the '
  'separation; a plan has toeplitz with more as well where clients are done early',
  read=lambda strategy: strategy.num_bands,
  words=('1 band', '{} bands'),
  title='bands of C',
  meaning='diagonals that are not 0',
  is_within_rounds=True,
)

_INVERSE = kind_lib.Option(
  'num_bands',
  help=f'bands of the inverse of the matrix, by default {builders.INVERSE_BANDS}',
  read=lambda strategy: strategy.num_inverse_bands,
  words=('1 band', '{} bands'),
  title='bands of the inverse of C',
  meaning='diagonals that are not 0',
  # What is asked of all is bands of C; those of the inverse are another thing.
  is_compared=False,
  is_within_rounds=True,
)

_DECAYS = kind_lib.Option(
  'num_decays',
  help='the most exponential decays, by default as many as are worth it',
  read=lambda strategy: len(strategy.buffer_decays),
  words=('1 decay', '{} decays'),
  title='decays',
  meaning='exponential decays that C adds, and cuts off after a window',
)

_SHORTER = ', whose columns get shorter from epoch to epoch'

# All kinds by name. Seconds are measured by benchmarks/planning_seconds.py, for 100 to
# 20000 rounds; where none are said, they hardly count (toeplitz with 4096 bands that
# cost no sensitivity, the most there can be: 9).
KINDS: dict[str, kind_lib.Kind] = {
  each.name: each
  for each in (
    kind_lib.Kind(
      'gaussian',
      toeplitz.Identity,
      builders.build_gaussian,
      words='independent Gaussian noise in each round, as in DP-FedAvg',
      citations=('arXiv:1710.06963',),
      is_independent=True,
    ),
    kind_lib.Kind(
      'tree',
      tree.BinaryTree,
      builders.build_tree,
      words='noise of a binary tree over the rounds, as in DP-FTRL',
      citations=('arXiv:2103.00039',),
      options=(
        kind_lib.Option(
          'restart_every',
          help='rounds after which the tree begins anew, by default never; a plan has '
          'one tree without, and one with the best restarts unless they are given',
          read=lambda strategy: strategy.restart_every,
          words=('a new one each round', 'a new one every {}'),
          title='restarts',
          written='every {} rounds',
          meaning='the tree begins anew',
        ),
      ),
      variants=builders.tree_variants,
    ),
    kind_lib.Kind(
      'banded',
      banded.Banded,
      builders.build_banded,
      adapts=True,
      words='noise correlated over rounds by a banded matrix',
      citations=('arXiv:2306.08153',),
      options=(_BANDS,),
      is_free=builders.is_free,
      seconds=builders.banded_seconds,
      quicker_with='fewer bands',
      variants=builders.free_bands_unless_given,
      needless=builders.needless_bands,
      bands='num_bands',
    ),
    kind_lib.Kind(
      'toeplitz',
      toeplitz.BandedToeplitz,
      builders.build_toeplitz,
      adapts=True,
      words='noise correlated over rounds by a banded Toeplitz matrix',
      citations=('arXiv:2405.15913',),
      options=(_BANDS,),
      seconds=builders.toeplitz_seconds,
      quicker_with='fewer bands',
      variants=builders.free_bands_and_more,
      needless=builders.needless_bands,
      bands='num_bands',
    ),
    kind_lib.Kind(
      'blt',
      blt.BLT,
      builders.build_blt,
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix',
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(
        kind_lib.Option(
          'num_buffers',
          help='the most buffers, by default as many as are worth it',
          read=lambda strategy: strategy.num_buffers,
          words=('1 buffer', '{} buffers'),
          title='buffers',
          meaning='exponential decays that C adds',
        ),
      ),
    ),
    kind_lib.Kind(
      'banded_inverse',
      banded_inverse.BandedInverse,
      builders.build_banded_inverse,
      adapts=True,
      words='noise correlated over rounds by a matrix whose inverse is banded',
      citations=('arXiv:2405.13763', 'arXiv:2505.12128'),
      options=(_INVERSE,),
      seconds=builders.banded_inverse_seconds,
    ),
    kind_lib.Kind(
      'windowed_blt',
      windowed_blt.WindowedBLT,
      builders.build_windowed_blt,
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix that is '
      'cut off where a client may come back',
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(_DECAYS,),
      seconds=builders.windowed_blt_seconds,
      needless=builders.needless_window,
    ),
    kind_lib.Kind(
      'tailed_blt',
      tailed_blt.TailedBLT,
      builders.build_tailed_blt,
      adapts=True,
      words='noise correlated over rounds by a buffered linear Toeplitz matrix that is '
      'cut off where a client may come back, but for one slow decay',
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(_DECAYS,),
      seconds=builders.tailed_blt_seconds,
      needless=builders.needless_tail,
    ),
    kind_lib.Kind(
      'epoch_banded',
      banded.Banded,
      builders.by_epochs(
        builders.build_banded,
        epoch_banded.optimize,
        lambda strategy: strategy,
        lambda limits: {'num_bands': builders.free_bands(limits)},
      ),
      adapts=True,
      unscaled='banded',
      words='noise correlated over rounds by a banded matrix' + _SHORTER,
      citations=('arXiv:2306.08153',),
      options=(_BANDS,),
      # The best unit columns first, and about as many steps from there.
      seconds=lambda limits, **given: 1.5 * builders.banded_seconds(limits, **given),
      quicker_with='fewer bands',
      variants=builders.free_bands_unless_given,
      needless=builders.needless_epochs(builders.needless_bands),
    ),
    kind_lib.Kind(
      'epoch_toeplitz',
      epoch_toeplitz.EpochToeplitz,
      builders.by_epochs(
        builders.build_toeplitz,
        epoch_toeplitz.optimize,
        epoch_toeplitz.EpochToeplitz.of,
        lambda limits: {'num_bands': builders.free_bands(limits)},
      ),
      adapts=True,
      unscaled='toeplitz',
      words='noise correlated over rounds by a banded Toeplitz matrix' + _SHORTER,
      citations=('arXiv:2405.15913',),
      options=(_BANDS,),
      seconds=builders.epoch_seconds,
      variants=builders.free_bands_unless_given,
      needless=builders.needless_epochs(builders.needless_bands),
    ),
    kind_lib.Kind(
      'epoch_banded_inverse',
      epoch_inverse.EpochBandedInverse,
      builders.by_epochs(
        builders.build_banded_inverse,
        epoch_inverse.optimize,
        epoch_inverse.EpochBandedInverse.of,
        lambda limits: {'num_bands': min(builders.INVERSE_BANDS, limits.num_rounds)},
      ),
      adapts=True,
      unscaled='banded_inverse',
      words='noise correlated over rounds by a matrix whose inverse is banded'
      + _SHORTER,
      citations=('arXiv:2405.13763', 'arXiv:2505.12128'),
      options=(_INVERSE,),
      seconds=lambda limits, **given: 2.5 * builders.epoch_seconds(limits),
      needless=builders.needless_epochs(),
    ),
    kind_lib.Kind(
      'epoch_windowed_blt',
      epoch_windowed.EpochWindowedBLT,
      builders.by_epochs(
        builders.build_windowed_blt,
        epoch_windowed.optimize,
        epoch_windowed.EpochWindowedBLT.of,
      ),
      adapts=True,
      unscaled='windowed_blt',
      words='noise correlated over rounds by a buffered linear Toeplitz matrix that is '
      'cut off where a client may come back' + _SHORTER,
      citations=('arXiv:2404.16706', 'arXiv:2408.08868'),
      options=(_DECAYS,),
      seconds=builders.epoch_seconds,
      needless=builders.needless_epochs(builders.needless_window),
    ),
  )
}

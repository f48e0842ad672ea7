"""TF Privacy's `tree_aggregation_accountant`: its import path here, and its functions.

See `tff_dp_aggregators.accounting.accountants.tree_aggregation_accountant`.
"""

from tff_dp_aggregators.accounting.accountants.tree_aggregation_accountant import (
  compute_rdp_single_tree,
)
from tff_dp_aggregators.accounting.accountants.tree_aggregation_accountant import (
  compute_rdp_tree_restart,
)
from tff_dp_aggregators.accounting.accountants.tree_aggregation_accountant import (
  compute_zcdp_single_tree,
)

__all__ = [
  'compute_rdp_single_tree',
  'compute_rdp_tree_restart',
  'compute_zcdp_single_tree',
]

"""Accountants: what events mean in terms of epsilon and delta.

`epsilon` and `delta` ask an accountant by name, `registry` says which there are. Each
reads events in the form that `parts` gives them.
"""

from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp
from tff_dp_aggregators.accounting.accountants import registry
from tff_dp_aggregators.accounting.accountants.registry import ACCOUNTANTS
from tff_dp_aggregators.accounting.accountants.registry import RDP_ORDERS
from tff_dp_aggregators.accounting.accountants.registry import GaussianAccountant
from tff_dp_aggregators.accounting.accountants.registry import ZCdpAccountant
from tff_dp_aggregators.accounting.accountants.registry import composed
from tff_dp_aggregators.accounting.accountants.registry import delta
from tff_dp_aggregators.accounting.accountants.registry import epsilon
from tff_dp_aggregators.accounting.accountants.registry import gdp_mu
from tff_dp_aggregators.accounting.accountants.registry import tightest
from tff_dp_aggregators.accounting.accountants.registry import zcdp_rho

__all__ = [
  'ACCOUNTANTS',
  'GaussianAccountant',
  'RDP_ORDERS',
  'ZCdpAccountant',
  'composed',
  'delta',
  'epsilon',
  'gaussian',
  'gdp_mu',
  'parts',
  'pld',
  'prv',
  'rdp',
  'registry',
  'tightest',
  'zcdp_rho',
]

"""Accountants: what events mean in terms of epsilon and delta.

`epsilon` and `delta` ask the tightest accountant, or one by name; `registry` says which
there are. Each reads events in the form that `accountant.components` gives them.
"""

from tff_dp_aggregators.accounting.accountants import accountant
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp
from tff_dp_aggregators.accounting.accountants import registry
from tff_dp_aggregators.accounting.accountants.accountant import Accountant
from tff_dp_aggregators.accounting.accountants.accountant import Instead
from tff_dp_aggregators.accounting.accountants.accountant import components
from tff_dp_aggregators.accounting.accountants.accountant import nested
from tff_dp_aggregators.accounting.accountants.accountant import pure_epsilon
from tff_dp_aggregators.accounting.accountants.gaussian import GaussianAccountant
from tff_dp_aggregators.accounting.accountants.gaussian import ZCdpAccountant
from tff_dp_aggregators.accounting.accountants.gaussian import gdp_mu
from tff_dp_aggregators.accounting.accountants.gaussian import zcdp_rho
from tff_dp_aggregators.accounting.accountants.registry import ACCOUNTANTS
from tff_dp_aggregators.accounting.accountants.registry import EXACT
from tff_dp_aggregators.accounting.accountants.registry import QUICK_BOUND
from tff_dp_aggregators.accounting.accountants.registry import RDP_ORDERS
from tff_dp_aggregators.accounting.accountants.registry import composed
from tff_dp_aggregators.accounting.accountants.registry import delta
from tff_dp_aggregators.accounting.accountants.registry import entry_of
from tff_dp_aggregators.accounting.accountants.registry import epsilon
from tff_dp_aggregators.accounting.accountants.registry import has_stated
from tff_dp_aggregators.accounting.accountants.registry import instead
from tff_dp_aggregators.accounting.accountants.registry import quick_bound
from tff_dp_aggregators.accounting.accountants.registry import register
from tff_dp_aggregators.accounting.accountants.registry import tightest

__all__ = [
  'ACCOUNTANTS',
  'Accountant',
  'EXACT',
  'GaussianAccountant',
  'Instead',
  'QUICK_BOUND',
  'RDP_ORDERS',
  'ZCdpAccountant',
  'accountant',
  'components',
  'composed',
  'delta',
  'entry_of',
  'epsilon',
  'gaussian',
  'gdp_mu',
  'has_stated',
  'instead',
  'monte_carlo',
  'nested',
  'pld',
  'prv',
  'pure_epsilon',
  'quick_bound',
  'rdp',
  'register',
  'registry',
  'tightest',
  'zcdp_rho',
]


def __dir__() -> list[str]:
  return sorted(__all__)

"""Exact figures that any library of this field can check itself against.

`test_vectors.json` has them: sensitivities, errors, privacy curves and calibrations,
each with its inputs, a decimal number, and how many of its digits are right. `exact`
made them with rational numbers and 50 digits, by definition and enumeration, and knows
nothing of the rest of this package; `checking` compares what this package computes.
`tff-dp-vectors` is the program that makes and checks the file.
"""

from tff_dp_aggregators.accounting.vectors.checking import Checked
from tff_dp_aggregators.accounting.vectors.checking import check

# from tff_dp_aggregators.accounting.vectors.checking import check
from tff_dp_aggregators.accounting.vectors.document import PATH
from tff_dp_aggregators.accounting.vectors.document import Vector
from tff_dp_aggregators.accounting.vectors.document import make
from tff_dp_aggregators.accounting.vectors.document import read
from tff_dp_aggregators.accounting.vectors.document import to_json

__all__ = ['PATH', 'Checked', 'Vector', 'check', 'make', 'read', 'to_json']


def __dir__() -> list[str]:
  return sorted(__all__)

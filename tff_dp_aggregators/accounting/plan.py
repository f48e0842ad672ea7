"""Compares mechanisms before training: `python -m tff_dp_aggregators.accounting.plan`.

The program is `tff_dp_aggregators.accounting.programs.plan`.
"""

from tff_dp_aggregators.accounting.programs import plan

if __name__ == '__main__':
  plan.run()

"""What a round log proves: `python -m tff_dp_aggregators.accounting.participation`.

The program is `tff_dp_aggregators.accounting.programs.participation`.
"""

from tff_dp_aggregators.accounting.programs import participation

if __name__ == '__main__':
  participation.run()

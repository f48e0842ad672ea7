"""Prints a privacy report: `python -m tff_dp_aggregators.accounting.report`.

The program is `tff_dp_aggregators.accounting.programs.report`.
"""

from tff_dp_aggregators.accounting.programs import report

if __name__ == '__main__':
  report.run()

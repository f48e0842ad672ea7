"""Prints a privacy report: `programs.report`, under its short name."""

from tff_dp_aggregators.accounting.programs import report

if __name__ == '__main__':
  report.run()

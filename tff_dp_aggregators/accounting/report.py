"""Runs `programs.report`, which prints a privacy report, under a short name."""

from tff_dp_aggregators.accounting.programs import report

if __name__ == '__main__':
  report.run()

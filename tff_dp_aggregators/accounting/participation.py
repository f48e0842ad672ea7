"""Runs `programs.participation`, which checks a round log, under a short name."""

from tff_dp_aggregators.accounting.programs import participation

if __name__ == '__main__':
  participation.run()

"""What a round log proves: `programs.participation`, under its short name."""

from tff_dp_aggregators.accounting.programs import participation

if __name__ == '__main__':
  participation.run()

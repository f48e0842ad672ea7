"""Runs `programs.plan`, which compares mechanisms, under a short name."""

from tff_dp_aggregators.accounting.programs import plan

if __name__ == '__main__':
  plan.run()

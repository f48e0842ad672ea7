"""Statistics of clients' numbers that are no sums of them.

`tff_dp_aggregators.queries` has what is public here.
"""

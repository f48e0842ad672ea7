"""Optimizers that TFF does not have.

`ftrl` is DP-FTRL(M), on cumulative sums or on each round's mean; `server_schedule`
states momentum and learning rates once, for optimizer and noise; `client_schedule` has
learning rates of clients by round.
"""

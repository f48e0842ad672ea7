"""Optimizers that TFF does not have, or not in working order.

`ftrl` is DP-FTRL(M) on cumulative sums, `ftrl_on_means` the same on each round's mean;
`server_schedule` states momentum and learning rates once, for optimizer and noise;
`client_schedule` has learning rates of clients by round; `adafactor` is TFF's, made to
work with its own finalizer.
"""

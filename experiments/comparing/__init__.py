"""Runs a grid of simulations in several processes, and tabulates the results."""

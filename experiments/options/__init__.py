"""Flags of simulations: modules have rows of flags, and a `from_flags` that checks."""

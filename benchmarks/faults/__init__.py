"""Faults of workers, made on purpose, and a campaign of them."""

"""The flags of the simulations: rows of the table, and `from_flags`, which checks."""

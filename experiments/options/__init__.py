"""The flags of the simulations, group by group: rows of the table, checked once.

Each module has the rows of its flags, and `from_flags`, which makes a record of their
values or refuses them. Knows nothing of TensorFlow, so that what is
wrong is refused at once.
"""

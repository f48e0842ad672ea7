"""The flags of the simulations, group by group: defined, and checked, once.

Each module has the `NAMES` of its flags, `define`, and `from_flags`, which makes a
record of their values or refuses them. Knows nothing of TensorFlow, so that what is
wrong is refused at once.
"""

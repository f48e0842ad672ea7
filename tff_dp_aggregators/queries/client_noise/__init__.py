"""Queries whose records get noise where they are made: `base` says how and whose.

`local` are for clients that hide themselves, `shares` for clients that make the noise
of the server together, `approximate_local` for simulations of the first alone.
"""

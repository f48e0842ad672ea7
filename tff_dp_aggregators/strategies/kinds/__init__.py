"""Kinds of strategies: what one is, how each is made, and the table of all.

`strategies.registry` is the door.
"""

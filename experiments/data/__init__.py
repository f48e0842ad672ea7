"""Where examples come from, who has them, and what of them is held out.

Knows nothing of TensorFlow, so that data are read, or refused, before it is loaded.
"""

"""Traces TensorFlow code of this package without AutoGraph.

This package calls `tf.cond` and the like itself, and converting its code took four
fifths of the time to create a process. Functions of users (models, losses) are wrapped
in `converted`.
"""

from typing import Any, Callable

import tensorflow as tf

# Returns a function that runs without AutoGraph, also in the functions that it calls.
as_written = tf.autograph.experimental.do_not_convert


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a user's function with AutoGraph, for calls from code `as_written`."""
  return tf.function(function)

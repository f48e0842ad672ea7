"""Making computations of TensorFlow code as it is written, without AutoGraph.

The code of this package says `tf.cond` itself, and rewriting it took four fifths of the
time until a process was there. What users give (models, losses) goes through
`converted`.
"""

from typing import Any, Callable

import tensorflow as tf

# Returns the function without AutoGraph for it and what it calls.
as_written = tf.autograph.experimental.do_not_convert


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function of a user's for code that is `as_written`; it may count on AutoGraph."""
  return tf.function(function)

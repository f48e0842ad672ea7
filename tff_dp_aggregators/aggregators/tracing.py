"""Making computations of TensorFlow code as it is written, without AutoGraph.

AutoGraph rewrites each function that a computation calls, so that Python's `if` and
`while` may ask tensors. The code of this package says `tf.cond` where it does, and
rewriting it took four fifths of the time until a process was there. What users give
(models, losses) goes through `converted`.
"""

from typing import Any, Callable

import tensorflow as tf

# Returns the function without AutoGraph for it and what it calls.
as_written = tf.autograph.experimental.do_not_convert


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function of a user's for code that is `as_written`; it may count on AutoGraph.

  Example:
    >>> def positive(x):
    ...   if x > 0:
    ...     return x
    ...   return tf.zeros_like(x)
    >>> outer = tf.function(as_written(lambda x: converted(positive)(x)))
    >>> float(outer(tf.constant(-2.0)))
    0.0
  """
  return tf.function(function)

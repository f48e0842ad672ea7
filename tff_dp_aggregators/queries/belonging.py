"""What a state belongs to: the mechanism that its numbers were computed for.

A state is a key, a round, and what was spent; noise multiplier, limits and strategy are
in the program. A state that goes on under another program would get noise that does not
cancel and events that were never paid for, and nothing would look wrong. So each state
carries the text of the mechanism it began with, and a round with another one fails.
"""

import json
from typing import Any

import tensorflow as tf

# What a state consists of. Raised when that changes, so that no older one is continued.
_FORMAT = 2


def text_of(mechanism: dict[str, Any]) -> str:
  """The text for a mechanism; equal texts for equal mechanisms.

  Example:
    >>> text_of({'noise_multiplier': 2.0, 'clip_norm': 1.0})
    '{"clip_norm": 1.0, "noise_multiplier": 2.0, "state_format": 2}'
  """
  return json.dumps({**mechanism, 'state_format': _FORMAT}, sort_keys=True)


def check(belongs_to: Any, mechanism: str, this_round: tf.Tensor) -> tf.Tensor:
  """Returns the round, after making sure that the state is of this mechanism."""
  same = tf.debugging.Assert(
    tf.equal(belongs_to, mechanism),
    [
      'This state belongs to another mechanism: its noise and what it spent are not '
      'those of the process at hand. Go on with the mechanism that it began with, or '
      'begin anew with `initialize`. (Each use of an int as seed takes its next '
      'stream: if those in "noise" differ, name that of the state, as '
      '`seed=noise.Seed(7, stream=0, part=0)`.) The state is of',
      belongs_to,
      'and the process of',
      mechanism,
    ],
  )
  with tf.control_dependencies([] if same is None else [same]):
    return tf.identity(this_round)

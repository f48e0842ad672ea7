"""What a computation failed with: one sentence of all that TensorFlow says."""

import re
from typing import Any

import grpc
import numpy as np

# What TFF and TensorFlow put around the sentence: names of their own making.
_PREFIX = re.compile(
  r'^(Failed to (run|execute) computation: )?'
  r'(Graph execution error:.*\n\n)?(\d+ root error\(s\) found.\s*\(0\) \w+: )?\s*',
  re.DOTALL,
)
_ASSERTION = 'assertion failed: '
_SUFFIX = re.compile(r'\n\s*\[\[.*|while evaluating local.*', re.DOTALL)
# What `tf.debugging.assert_...` adds to the message that it was given.
_CONDITION = re.compile(r'\] \[Condition .*', re.DOTALL)
# An operation may quote all its input, which is clients' data; an assertion says what
# it was written to say.
_LONGEST, _LONGEST_ASSERTION = 800, 4000
_MOST_CLIENTS = 10


class RoundTimeoutError(TimeoutError):
  """A computation, such as a round, took longer than it may."""

  @classmethod
  def of(cls, seconds: float, where: str, look: str) -> 'RoundTimeoutError':
    """The error of a round; `where` it was computed, and what to `look` for."""
    return cls(
      f'a round took longer than timeout_seconds={seconds:g}{where}; nothing of it was '
      f'kept. If it may take longer, give a larger timeout_seconds; if not, {look}. '
      'Then go on from the last state.'
    )


class ComputationError(RuntimeError):
  """A computation failed; the message says why.

  Attributes:
    details: All that TFF and TensorFlow said.
  """

  def __init__(self, message: str, details: str):
    super().__init__(message)
    self.details = details

  def __reduce__(self) -> tuple[Any, ...]:
    return ComputationError, (str(self), self.details)

  def in_round(self, number: int, clients: Any, ids: Any) -> 'ComputationError':
    """The same, with the round and the ids, or numbers, of who took part."""
    numbers = np.asarray(clients)[:_MOST_CLIENTS].tolist()
    named = ', '.join(repr(each if ids is None else ids[each]) for each in numbers)
    more = len(clients) - len(numbers)
    rest = f' and {more} more' if more else ''
    what = 'client numbers' if ids is None else 'clients'
    return ComputationError(
      f'round {number} of {what} {named}{rest}: {self}', self.details
    )


def of_grpc(error: grpc.RpcError) -> ComputationError:
  """The error without what stands around its sentence."""
  say = getattr(error, 'details', None)
  details = (say() if callable(say) else None) or str(error)
  return ComputationError(sentence(details), details)


def of_tensorflow(error: Any) -> ComputationError:
  """The error of a TensorFlow function without what stands around its sentence."""
  return ComputationError(sentence(error.message), error.message)


def sentence(details: str) -> str:
  """What says why, of all that TensorFlow says."""
  text = _PREFIX.sub('', _SUFFIX.sub('', details)).strip()
  longest = _LONGEST
  if text.startswith(_ASSERTION):
    longest = _LONGEST_ASSERTION
    text = _CONDITION.sub(']', text[len(_ASSERTION) :]).replace('\\"', '"')
    if text.startswith('[') and text.endswith(']'):
      text = text[1:-1].replace('] [', ' ')
  return text if len(text) <= longest else f'{text[:longest]} ...'

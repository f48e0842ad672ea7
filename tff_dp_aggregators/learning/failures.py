"""Errors of failed computations, with the one useful sentence of TensorFlow's text."""

import re
from typing import Any

import grpc
import numpy as np

# The text that TFF and TensorFlow put before and after the sentence.
_PREFIX = re.compile(
  r'^(Failed to (run|execute) computation: )?'
  r'(Graph execution error:.*\n\n)?(\d+ root error\(s\) found.\s*\(0\) \w+: )?\s*',
  re.DOTALL,
)
_ASSERTION = 'assertion failed: '
_SUFFIX = re.compile(r'\n\s*\[\[.*|while evaluating local.*', re.DOTALL)
# The text that `tf.debugging.assert_...` appends to its message.
_CONDITION = re.compile(r'\] \[Condition .*', re.DOTALL)
# An operation's message may quote all its input, which is clients' data, so it is cut
# earlier than that of an assertion, which has only what its author wrote.
_MAX_LENGTH, _MAX_ASSERTION_LENGTH = 800, 4000
_MAX_CLIENTS = 10


class RoundTimeoutError(TimeoutError):
  """A computation, such as a round, exceeded its time limit."""

  @classmethod
  def of(cls, seconds: float, where: str, look: str) -> 'RoundTimeoutError':
    """The error of a round; `where`: where it was computed; `look`: what to check."""
    return cls(
      f'a round took longer than timeout_seconds={seconds:g}{where}; nothing of it was '
      f'kept. If it may take longer, give a larger timeout_seconds; if not, {look}. '
      'Then go on from the last state.'
    )


class ComputationError(RuntimeError):
  """A computation failed; the message says why.

  Attributes:
    details: The whole message of TFF and TensorFlow.
  """

  def __init__(self, message: str, details: str):
    super().__init__(message)
    self.details = details

  def __reduce__(self) -> tuple[Any, ...]:
    return ComputationError, (str(self), self.details)

  def in_round(self, number: int, clients: Any, ids: Any) -> 'ComputationError':
    """Returns the error with the round and its clients' ids, or numbers, added."""
    numbers = np.asarray(clients)[:_MAX_CLIENTS].tolist()
    named = ', '.join(repr(each if ids is None else ids[each]) for each in numbers)
    more = len(clients) - len(numbers)
    rest = f' and {more} more' if more else ''
    what = 'client numbers' if ids is None else 'clients'
    return ComputationError(
      f'round {number} of {what} {named}{rest}: {self}', self.details
    )


def in_words(error: BaseException) -> str:
  """The type and the message of an error, on one line."""
  text = ' '.join(str(error).split()).rstrip('.')
  return f'{type(error).__name__}: {text[:_MAX_LENGTH]}'


def of_grpc(error: grpc.RpcError) -> ComputationError:
  """Converts an error of gRPC to one whose message is its sentence."""
  get_details = getattr(error, 'details', None)
  details = (get_details() if callable(get_details) else None) or str(error)
  return ComputationError(sentence(details), details)


def of_tensorflow(error: Any) -> ComputationError:
  """Converts an error of a TensorFlow function to one whose message is its sentence."""
  return ComputationError(sentence(error.message), error.message)


def sentence(details: str) -> str:
  """Extracts the sentence that states the cause from TensorFlow's message."""
  text = _PREFIX.sub('', _SUFFIX.sub('', details)).strip()
  max_length = _MAX_LENGTH
  if text.startswith(_ASSERTION):
    max_length = _MAX_ASSERTION_LENGTH
    text = _CONDITION.sub(']', text[len(_ASSERTION) :]).replace('\\"', '"')
    if text.startswith('[') and text.endswith(']'):
      text = text[1:-1].replace('] [', ' ')
  return text if len(text) <= max_length else f'{text[:max_length]} ...'

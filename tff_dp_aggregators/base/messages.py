"""What errors say, as far as it helps who is to put something right."""


def without_cause(error: BaseException) -> str:
  """The message of an error, without that of its cause if that is its last part.

  Example:
    >>> error = ValueError('Take another one. No such event: Event(number=1)')
    >>> error.__cause__ = ValueError('No such event: Event(number=1)')
    >>> without_cause(error)
    'Take another one.'
  """
  message, cause = str(error), str(error.__cause__ or '')
  if cause and message.endswith(f'. {cause}'):
    return message[: -len(cause)].rstrip()
  return message

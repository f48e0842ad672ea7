"""What errors say, as far as it helps who is to put something right."""

import difflib
from collections.abc import Iterable

# Flags that had another name, or have one in Python, by that; who gives it is told.
RENAMED = {
  'epsilon': 'target_epsilon',
  'delta': 'target_delta',
  'population': 'num_clients',
  'cohort': 'clients_per_round',
  'sampled_separation': 'min_separation',
  'free_probability': 'sampling_probability',
}


def visible(text: str) -> str:
  r"""A text in one line, with what might move a cursor or hide a text written out.

  Example:
    >>> print(visible('a\x1b[2J'))
    a\x1b[2J
  """
  return ''.join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def near(name: str, known: Iterable[str]) -> list[str]:
  """Names that may be meant by one that is not known: longer ones, or similar ones.

  Example:
    >>> near('rate', ['client_rate', 'server_rate', 'seed'])
    ['client_rate', 'server_rate']
    >>> near('sede', ['client_rate', 'seed'])
    ['seed']
  """
  known = list(known)
  longer = [each for each in known if name and name in each]
  return longer or difflib.get_close_matches(name, known)


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

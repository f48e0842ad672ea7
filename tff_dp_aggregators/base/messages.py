"""Helpers for error messages: safe text, similar names, and renamed flags."""

import difflib
from collections.abc import Iterable

# Current names of flags by former names, which commands in old reports have, and
# by names of arguments in Python.
RENAMED = {
  'epsilon': 'target_epsilon',
  'delta': 'target_delta',
  'population': 'num_clients',
  'cohort': 'clients_per_round',
  'sampled_separation': 'min_separation',
  'free_probability': 'sampling_probability',
}


def visible(text: str) -> str:
  r"""Returns a text with unprintable characters escaped, safe to show in a terminal.

  Example:
    >>> print(visible('a\x1b[2J'))
    a\x1b[2J
  """
  return ''.join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def near(name: str, known: Iterable[str]) -> list[str]:
  """Known names that an unknown one may mean: those that contain it, or similar ones.

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
  """The message of an error, without its cause's message if that is its end.

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

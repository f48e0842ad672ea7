"""What is wrong with data, said with the place where it is."""

from typing import Any


class DataError(ValueError):
  """Data that cannot be used as they are; the message names file and line."""


def shown(value: Any) -> str:
  """A value as it is shown in a message: on one line, and not at length."""
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def listed(names: Any) -> str:
  """Names as they are listed in a message or a report: on one line."""
  found = [text if text.isprintable() else repr(text)[1:-1] for text in map(str, names)]
  if len(found) > 20:
    return f'{", ".join(found[:20])} and {len(found) - 20} more'
  return ', '.join(found)


def missing_column(
  path: str, name: str, columns: Any, is_default: bool = False
) -> DataError:
  said = f'{path} has no column {name!r}; its columns are: {listed(columns)}.'
  if is_default:
    said += (
      ' Say by --label_column which one is predicted, and by --feature_columns from '
      'which.'
    )
  return DataError(said)

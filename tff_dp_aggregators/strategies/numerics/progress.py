"""Showing how far a long optimisation is, and nothing for a short one."""

import contextlib
import logging
import time
import types
from typing import Optional

_logger = logging.getLogger(__name__)
_SHOW_AFTER_SECONDS = 2.0
_LOG_EVERY_SECONDS = 10.0


class Progress(contextlib.AbstractContextManager):
  """A progress bar on a terminal, log lines (INFO) elsewhere, both only if it lasts.

  Example:
    >>> with Progress('banded 64 x 8') as progress:
    ...   for error in (3.0, 2.0, 1.5):
    ...     progress(error)
  """

  def __init__(self, name: str):
    self._name = name
    self._iterations = 0
    self._logged = 0.0

  def __enter__(self) -> 'Progress':
    import tqdm  # Slow to import, and few callers need it.

    self._bar = tqdm.tqdm(
      desc=self._name,
      delay=_SHOW_AFTER_SECONDS,
      disable=None,  # Unless standard error is a terminal.
      leave=False,
    )
    self._logged = time.monotonic() + _SHOW_AFTER_SECONDS - _LOG_EVERY_SECONDS
    return self

  def __call__(self, error: float) -> None:
    """Says that one more iteration is done, and the error that it came to."""
    self._iterations += 1
    if not self._bar.disable:
      self._bar.set_postfix_str(f'error {error:.6g}', refresh=False)
      self._bar.update()
    elif time.monotonic() - self._logged > _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      _logger.info('%s: iteration %d, error %.6g', self._name, self._iterations, error)

  def __exit__(
    self,
    kind: Optional[type[BaseException]],
    error: Optional[BaseException],
    traceback: Optional[types.TracebackType],
  ) -> None:
    self._bar.close()

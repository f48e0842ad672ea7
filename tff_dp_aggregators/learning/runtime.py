"""Running TFF computations in a program that ends when it is done.

TFF computes in a child process, `worker_binary`, which inherits the program's stdout
and outlives it, so that `program | tail` never ends. `local_runtime` owns that child.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from typing import Any, Iterator

import psutil
import tensorflow_federated as tff

_WORKER = 'worker_binary'
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def local_runtime(**kwargs: Any) -> Iterator[None]:
  """Runs TFF on this machine and leaves no process behind.

  On the way out, by whichever way, the worker is ended. While inside, SIGTERM and
  SIGHUP end the program through that way too (Python's SystemExit).

  Args:
    **kwargs: For `tff.backends.native.set_sync_local_cpp_execution_context`.

  Example:
    >>> with local_runtime():
    ...   print(tff.tensorflow.computation(lambda: 1 + 2)())
    3
  """
  before = set(_workers())
  with _exit_on_signals():
    try:
      # The worker gets the stdout there is at its start; it has nothing to say there.
      with open(os.devnull, 'w') as devnull, contextlib.redirect_stdout(devnull):
        tff.backends.native.set_sync_local_cpp_execution_context(**kwargs)
        tff.tensorflow.computation(lambda: 0)()
      yield
    except BaseException:
      _abandon(tff.framework.get_context_stack().current, before)
      raise
    finally:
      tff.backends.native.set_sync_local_cpp_execution_context(**kwargs)
      gc.collect()  # Ends the worker of the context just replaced.
      _end(set(_workers()) - before)


def _abandon(context: Any, before: 'set[psutil.Process]') -> None:
  """Ends a context whose computation was interrupted.

  The context's thread goes on with that computation; when the worker dies it starts
  another one and tries again, and the context's `__del__` waits for the thread.
  So the computation is cancelled, the worker ended, which frees the thread to notice,
  and `__del__` kept from running by a reference that is never given back.

  Args:
    context: The current context of TFF.
    before: Workers that are not to be touched.
  """
  ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
  loop = getattr(getattr(context, '_async_runner', None), '_event_loop', None)
  if loop is None or not loop.is_running():
    return

  async def cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
      task.cancel()
    if others:
      await asyncio.wait(others, timeout=_PATIENCE_SECONDS)

  cancelled = asyncio.run_coroutine_threadsafe(cancel_all(), loop)
  _end(set(_workers()) - before)
  with contextlib.suppress(concurrent.futures.TimeoutError):
    cancelled.result(timeout=_PATIENCE_SECONDS)


def _workers() -> Iterator[psutil.Process]:
  """Worker processes that are children of this one."""
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.Error):
      if child.name() == _WORKER:
        yield child


def _end(processes: 'set[psutil.Process]') -> None:
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.terminate()
  _, alive = psutil.wait_procs(processes, timeout=_PATIENCE_SECONDS)
  for process in alive:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.kill()
  psutil.wait_procs(alive, timeout=_PATIENCE_SECONDS)


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
  if threading.current_thread() is not threading.main_thread():
    yield  # Only the main thread can handle signals.
    return

  def leave(signal_number: int, frame: Any) -> None:
    del frame
    sys.exit(128 + signal_number)

  numbers = (signal.SIGTERM, signal.SIGHUP)
  old = {number: signal.signal(number, leave) for number in numbers}
  try:
    yield
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)

"""Writing files so that there is never half of one, nor one too few."""

import os
import tempfile


def write_new(path: str, text: str) -> None:
  """Writes a file that does not exist yet, whole or not at all.

  Args:
    path: Where.
    text: Its content.

  Raises:
    FileExistsError: If there is a file already.
  """
  folder = os.path.dirname(os.path.abspath(path))
  descriptor, temporary = tempfile.mkstemp(dir=folder, prefix='.writing-')
  try:
    with os.fdopen(descriptor, 'w', encoding='utf-8') as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)  # mkstemp's are private.
    os.link(temporary, path)  # Unlike a rename, fails if path exists.
  except FileExistsError as e:
    raise FileExistsError(
      f'{path} exists and is not overwritten; name another file or remove it.'
    ) from e
  finally:
    os.unlink(temporary)

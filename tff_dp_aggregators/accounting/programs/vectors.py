"""Checks this package against exact figures, or writes them for other libraries.

    tff-dp-vectors

compares this package's figures with every figure in its file of test vectors. It prints
a line for each kind: the number of figures, how many of this package's figures are only
upper bounds, and the largest relative differences below and above. A figure below the
exact one would mean too little noise, and fails.

With --remake, the figures are first computed again, by rational arithmetic and
enumeration, and compared with the text of the file. With --output, the file is written
as JSON, whose `definitions` say what each figure is.

Exit codes: 0 success; 1 a figure is wrong; 2 the file or a flag is refused.
"""

import dataclasses
import sys
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting import vectors
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import new_files


@dataclasses.dataclass
class _Flags:
  file: Optional[str] = program.flag(
    "Test vectors to check. Default: the package's own."
  )
  remake: bool = program.flag(
    'Compute the figures again, and fail unless the file has the same.', default=False
  )
  output: Optional[str] = program.flag(
    'Compute the figures again and write them to this new file, instead of checking.'
  )


def groups() -> tuple[program.Group, ...]:
  """Returns the program's flags."""
  return (('Flags', program.rows_of(_Flags)),)


def main(values: flags.FlagValues) -> int:
  """Checks or writes test vectors; returns the exit code."""
  if values.output is not None:
    program.refuse(values, ('file', 'remake'), 'checks, and --output writes.')
    program.check_new(values, 'output')
    new_files.write_new(values.output, vectors.to_json(vectors.remake(vectors.read())))
    return 0
  listed = vectors.read(values.file)
  if values.remake:
    missing = {each.id for each in vectors.read()} - {each.id for each in listed}
    if missing:
      raise program.CheckFailed(f'the file has no {min(missing)}.')
    for each, remade in zip(listed, vectors.remake(listed)):
      if remade != each:
        raise program.CheckFailed(
          f'{each.id} is {each.value} in the file, but computed again {remade.value}.'
        )
  checked = vectors.check(listed)
  sys.stdout.write(_table(checked))
  if wrong := [each for each in checked if not each.is_right]:
    raise program.CheckFailed(
      f'{len(wrong)} of {len(checked)} figures are wrong, first {wrong[0].vector.id}: '
      f'{wrong[0].ours!r} is not {wrong[0].vector.value}.'
    )
  return 0


def _table(checked: list[vectors.Checked]) -> str:
  lines = [f'{"quantity":26}{"figures":>8}{"bounds":>8}{"below":>10}{"above":>10}']
  for name in vectors.QUANTITIES:
    rows = [each for each in checked if each.vector.kind == name]
    exact = [each.difference for each in rows if not each.is_bound]
    below, above = max(0.0, -min(exact, default=0.0)), max(0.0, max(exact, default=0.0))
    bounds = len(rows) - len(exact)
    lines.append(f'{name:26}{len(rows):8}{bounds:8}{below:10.1e}{above:10.1e}')
  return '\n'.join(lines) + '\n'


PROGRAM = program.Program('tff-dp-vectors', __doc__ or '', groups, main)
execute, run = PROGRAM.execute, PROGRAM.run

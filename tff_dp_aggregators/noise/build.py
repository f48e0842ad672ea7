"""From a strategy to its streaming noise: what to remember, and where.

Nothing here, nor in the rest of `noise`, knows strategies but by the recursion that
they return. What interprets each form of it is in one table, `_FORMS`.
"""

import logging
from collections.abc import Callable
from typing import Any, Union

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import carried
from tff_dp_aggregators.noise import files
from tff_dp_aggregators.noise import interpreters
from tff_dp_aggregators.noise import redrawn
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import scaled
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.strategies import noise_cost
from tff_dp_aggregators.strategies import recursion as recursion_lib

_logger = logging.getLogger(__name__)
KINDS = ('state', 'redraw', 'files')
# Of a state that stays in one process; two are there while a round is computed.
_MOST_STATE_BYTES = 4 * 2**30
# Where the past of the noise is: 'auto', 'in_process', one of `KINDS`, or `Files` that
# say where.
Storage = Union[str, files.Files]

# What interprets a recursion: made of it, and of how many of the rounds served last can
# be served again with what is kept: 0 in the state, since an old one has what it needs.
_FORMS: dict[type[recursion_lib.Recursion], Callable[[Any, int], interpreters.Past]] = {
  recursion_lib.LastRounds: interpreters.LastRounds,
  recursion_lib.TreeNodes: interpreters.TreeNodes,
  recursion_lib.DecayingSums: interpreters.Decays,
}

# Rounds up to which a recursion is held against the noise matrix, in milliseconds.
_MAX_CHECKED_ROUNDS = 128


def build(
  strategy: strategies.Strategy,
  rows: rows_lib.GaussianRows,
  storage: Storage = 'auto',
) -> streaming.StreamingNoise:
  """The streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy, whose `recursion` is followed.
    rows: Source of the rows of z.
    storage: Where what the noise remembers is: 'state' carries it in the state,
      'redraw' draws the past again in each round, 'files' or a `Files` keeps it in
      files of the machine that adds the noise. 'auto' takes what is least work inside
      TFF, where a state travels in each round; 'in_process' is for a state that stays
      where it is, and keeps the past there, but in files if it is above 4 GiB.

  Raises:
    OSError: If the directory for files cannot be used.
    RuntimeError: If another process uses it.
    TypeError: If `strategy` is not one, or its recursion of no known form.
    ValueError: If `storage` is unknown, or not offered for the strategy; or if its
      recursion makes other noise than its noise matrix says, which is looked at for up
      to 128 rounds.
  """
  if not isinstance(strategy, strategies.Strategy):
    raise TypeError(
      f'strategy must be a strategies.Strategy, got {type(strategy).__name__}.'
    )
  recursion = strategy.recursion()
  unscaled = recursion
  while isinstance(unscaled, recursion_lib.Scaled):
    unscaled = unscaled.recursion
  form = _form_of(unscaled)
  if strategy.num_rounds <= _MAX_CHECKED_ROUNDS:
    recursion_lib.check(recursion, strategy.noise_matrix())
  chosen = storage
  if isinstance(storage, str):
    if storage == 'auto':
      chosen = _cheapest(strategy, rows)
    elif storage == 'in_process':
      num_bytes = recursion.work.buffers * rows.layout.num_bytes
      chosen = 'state' if num_bytes <= _MOST_STATE_BYTES else 'files'
    elif storage not in KINDS:
      raise ValueError(
        f"storage must be 'auto', 'in_process', {', '.join(map(repr, KINDS))} or "
        f'noise.Files(...), got {storage!r}.'
      )
  elif not isinstance(storage, files.Files):
    raise TypeError(f'storage must be a string or a Files, got {storage!r}.')
  if chosen == 'redraw' or not recursion.work.buffers:
    return redrawn.RedrawnNoise(terms_of(strategy), rows)
  made: streaming.StreamingNoise
  if chosen == 'state':
    made = carried.CarriedNoise(form(unscaled, 0), rows)
  else:
    where = chosen if isinstance(chosen, files.Files) else files.Files()
    past = form(unscaled, where.rewind)
    made = files.FilesNoise(past, rows, where.directory, strategy.checksum)
  while isinstance(recursion, recursion_lib.Scaled):
    made = scaled.ScaledNoise(made, scaled.factor_of(recursion))
    recursion = recursion.recursion
  return made


def interpret(recursion: recursion_lib.Recursion, rewind: int = 0) -> Any:
  """The interpreter of a recursion.

  Args:
    recursion: As `Strategy.recursion` returns it.
    rewind: How many of the rounds served last can be served again with what is kept.

  Returns:
    An `interpreters.PastValues` or `interpreters.Decays`.

  Raises:
    TypeError: If the recursion is of no known form, or scales another one, which is
      what is interpreted.
  """
  if isinstance(recursion, recursion_lib.Scaled):
    raise TypeError('of a Scaled recursion, interpret what it scales: its .recursion.')
  return _form_of(recursion)(recursion, rewind)


def terms_of(strategy: strategies.Strategy) -> redrawn.Terms:
  """The rows of z that a strategy's noise is made of.

  Args:
    strategy: Any strategy.

  Raises:
    TypeError: If its recursion is of no known form.
    ValueError: If there would be thousands of them.
  """
  recursion = strategy.recursion()
  if recursion.max_terms is not None:
    return _terms_of_few(recursion, recursion.max_terms)
  if noise_cost.max_terms(strategy) is None:
    raise ValueError(
      f"storage 'redraw' would make the noise of {strategy} of all rows of z so far. "
      f'That is offered for up to {noise_cost.MAX_ROUNDS_WRITTEN_OUT} rounds, and '
      "not for Honaker's trees; use 'state' or 'files'."
    )
  return redrawn.MatrixTerms(strategy.noise_matrix())


def _terms_of_few(recursion: recursion_lib.Recursion, max_terms: int) -> redrawn.Terms:
  """The rows of z of a recursion whose noise is made of few of them."""
  if isinstance(recursion, recursion_lib.Scaled):
    terms = _terms_of_few(recursion.recursion, max_terms)
    return redrawn.ScaledTerms(terms, scaled.factor_of(recursion))
  return redrawn.RecursionTerms(interpret(recursion), max_terms)


def _form_of(
  recursion: recursion_lib.Recursion,
) -> Callable[[Any, int], interpreters.Past]:
  for known, form in _FORMS.items():
    if isinstance(recursion, known):
      return form
  names = ', '.join(known.__name__ for known in _FORMS)
  raise TypeError(
    f'a recursion must be one of {names} and Scaled of '
    f'strategies.recursion, got {type(recursion).__name__}.'
  )


def _cheapest(strategy: strategies.Strategy, rows: rows_lib.GaussianRows) -> str:
  """The storage with the least time for a round inside TFF."""
  costs = noise_cost.by_storage(strategy, rows.layout.num_bytes, rows.generator)
  chosen = noise_cost.cheapest(costs)
  _logger.info(
    'noise of a %s strategy for %d rounds: storage %r (seconds a round, estimated: %s)',
    strategy.kind,
    strategy.num_rounds,
    chosen,
    ', '.join(f'{name} {cost.seconds:.3g}' for name, cost in costs.items()),
  )
  return chosen

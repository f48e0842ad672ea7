"""Whether cohorts keep the schema that they are stated to keep."""

from collections.abc import Sequence

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import files


def check(
  path: str, header: files.Header, rounds: Sequence[Sequence[files.Asked]]
) -> None:
  """Checks a file's rounds against what it states.

  Limits are those on clients whose updates count: those that reported in the attempt
  that counted.

  Args:
    path: Of the file, for messages.
    header: What it states.
    rounds: For each round its attempts.

  Raises:
    ValueError: If they do not keep it; the message names round and client.
  """
  schema = header.schema
  if len(rounds) != schema.num_rounds:
    raise ValueError(
      f'{path} has {len(rounds)} rounds, but its schema is for {schema.num_rounds}.'
    )
  for this_round, attempts in enumerate(rounds):
    where = f'round {this_round} of {path}'
    if len(attempts) > 1 and schemas.is_sampled(schema):
      raise ValueError(
        f'{where} was tried {len(attempts)} times, and a schema of sampling allows one '
        'attempt: another makes its clients more likely than the sampling says.'
      )
    for requested, reporting in attempts:
      _check_attempt(where, header, requested, reporting)
  _check_limits(path, schemas.limits(schema), [attempts[-1][1] for attempts in rounds])


def _check_attempt(
  where: str, header: files.Header, requested: np.ndarray, reporting: np.ndarray
) -> None:
  for clients in (requested, reporting):
    strange = clients[(clients < 0) | (clients >= header.num_clients)]
    if len(strange):
      raise ValueError(
        f'{where} has client {strange[0]}; clients are numbered from 0 to '
        f'{header.num_clients - 1}.'
      )
    different, counts = np.unique(clients, return_counts=True)
    if len(different) < len(clients):
      raise ValueError(f'{where} has client {different[counts > 1][0]} twice.')
  unasked = np.setdiff1d(reporting, requested)
  if len(unasked):
    raise ValueError(f'{where}: client {unasked[0]} reported and was not requested.')
  schema = header.schema
  if isinstance(schema, schemas.FixedSizeSampling) and len(requested) != schema.cohort:
    raise ValueError(
      f'{where} has {len(requested)} clients; its schema has cohorts of '
      f'{schema.cohort}.'
    )


def _check_limits(
  path: str, limits: strategies.Participation, cohorts: Sequence[np.ndarray]
) -> None:
  clients = np.concatenate(cohorts)
  rounds = np.repeat(np.arange(len(cohorts)), [len(each) for each in cohorts])
  by_client = np.argsort(clients, kind='stable')  # And within one by round.
  clients, rounds = clients[by_client], rounds[by_client]
  gaps, same = np.diff(rounds), clients[1:] == clients[:-1]
  wrong = gaps < limits.min_separation
  wanted = f'at least {limits.min_separation}'
  if limits.fixed_epoch:
    wrong = gaps % limits.min_separation != 0
    wanted = f'a multiple of {limits.min_separation}'
  found = np.flatnonzero(same & wrong)
  if len(found):
    first = found[np.argmin(rounds[found + 1])]
    raise ValueError(
      f'round {rounds[first + 1]} of {path}: client {clients[first]} took part in '
      f'round {rounds[first]} as well; the difference must be {wanted}.'
    )
  most = limits.possible_participations
  often = np.flatnonzero(clients[most:] == clients[: len(clients) - most])
  if len(often):
    first = often[np.argmin(rounds[often + most])]
    raise ValueError(
      f'round {rounds[first + most]} of {path}: client {clients[first]} takes part '
      f'once more than max_participations={most} times.'
    )

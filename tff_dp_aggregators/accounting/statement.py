"""The privacy statement: a guarantee with everything it rests on.

`build` puts a mechanism, and what a run's ledger says, into one JSON-ready dict;
`to_markdown` writes it out for people. The headings follow section 5.3 of "How to
DP-fy ML" (arXiv:2303.00654): setting, definition (unit, adjacency, outputs, data
accesses), accounting (type, assumptions, formal statement), verification.
"""

import importlib.metadata
import math
import platform
from typing import Any, Optional

import dp_accounting
import jinja2

import tff_dp_aggregators
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import gaussian
from tff_dp_aggregators.accounting import ledger as ledger_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib

FORMAT = 'tff_dp_aggregators.privacy_report'
VERSION = 1

_UNIT = (
  'one client with all its data: the guarantee is about everything that a client '
  'contributes in all rounds together'
)
_ADJACENCY = (
  'zeroing out: two data sets are neighbours if they differ in one client, all of '
  'whose contributions are replaced by zeros (arXiv:2103.00039, Definition 1.1)'
)
_SETTING = (
  'central differential privacy: the server that clips, sums and adds the noise is '
  'trusted, and sees each update (or, with secure aggregation, their sum)'
)
_OUTPUTS = (
  'all intermediate models: the adversary may see the noised aggregate of every '
  'round and everything computed from it'
)
_COVERED = (
  'client updates (model deltas), as far as they reach the model through the '
  'private aggregator',
)
_NOT_COVERED = (
  'choosing hyperparameters (learning rates, clip norm, rounds) on the same clients',
  'metrics computed on client data, such as training loss, and exact counts such as '
  'the number of non-finite updates',
  'test accuracy, if the test data is private as well',
  'the number and identity of clients in a round, and timing',
)


_WITHOUT_PRIVACY = """# Privacy report

**Guarantee: none.** No privacy mechanism was used: updates were neither clipped nor
noised, and epsilon is infinite.
"""


def build(
  mechanism: mechanism_lib.Mechanism,
  delta: float,
  *,
  clip_norm: Optional[float] = None,
  entries: Optional[list[ledger_lib.LedgerEntry]] = None,
  enforced_by: str = 'not stated; whoever runs the training must see to it',
  noise_source: str = 'not stated',
  command: Optional[str] = None,
) -> dict[str, Any]:
  """Builds the statement of a mechanism, and of a run of it.

  Args:
    mechanism: What was planned.
    delta: At which delta the guarantee is stated.
    clip_norm: L2 bound of a client's contribution; it does not change the guarantee.
    entries: The run's ledger. With it the guarantee is of the rounds that ran;
      without it, of all rounds planned.
    enforced_by: What keeps clients within the participation limits.
    noise_source: Where the randomness comes from.
    command: A command that prints the same numbers again.

  Returns:
    A JSON-ready dict. `guarantee` has `epsilon` (exact), `delta`, `epsilon_rdp`,
    `epsilon_pld`, `epsilon_zcdp`, `zcdp_rho`, `gdp_mu`; infinities are `None`.

  Raises:
    ValueError: If `delta` is out of range, or the ledger is of another mechanism.
  """
  gaussian.check_delta(delta)
  event = mechanism.event
  run = None
  if entries is not None:
    _check_ledger(mechanism, entries)
    event = ledger_lib.total_event(entries)
    run = {
      'rounds_completed': len(entries),
      'rounds_planned': mechanism.participation.num_rounds,
      'epsilon_planned': _finite(accountants.epsilon(mechanism.event, delta)),
    }
  strategy = mechanism.strategy
  participation = mechanism.participation
  parameters = dict(mechanism.to_json(), num_bands=getattr(strategy, 'num_bands', None))
  return {
    'format': FORMAT,
    'version': VERSION,
    'setting': _SETTING,
    'definition': {
      'privacy_unit': _UNIT,
      'adjacency': _ADJACENCY,
      'outputs': _OUTPUTS,
      'covered': list(_COVERED),
      'not_covered': list(_NOT_COVERED),
    },
    'mechanism': {
      'name': mechanism.name,
      'strategy': strategy.kind,
      'strategy_checksum': strategy.checksum,
      'num_rounds': strategy.num_rounds,
      'num_bands': parameters['num_bands'],
      'clip_norm': clip_norm,
      'noise_multiplier': mechanism.noise_multiplier,
      'sensitivity': mechanism.sensitivity,
      'sensitivity_squared': mechanism.sensitivity**2,
      'sensitivity_kind': strategy.sensitivity_kind(participation),
      'effective_noise_multiplier': mechanism.effective_noise_multiplier,
      'noise_source': noise_source,
      'rmse': strategy.rmse(participation),
      'max_error': strategy.max_error(participation),
    },
    'participation': {
      'min_separation': participation.min_separation,
      'rounds_between': participation.min_separation - 1,
      'max_participations': participation.max_participations,
      'possible_participations': participation.possible_participations,
      'enforced_by': enforced_by,
    },
    'run': run,
    'guarantee': _guarantee(event, delta),
    'software': {
      'tff_dp_aggregators': tff_dp_aggregators.__version__,
      'dp-accounting': importlib.metadata.version('dp-accounting'),
      'numpy': importlib.metadata.version('numpy'),
      'scipy': importlib.metadata.version('scipy'),
      'python': platform.python_version(),
    },
    'verification': {'command': command},
  }


def build_without_privacy() -> dict[str, Any]:
  """The statement of a run without any privacy mechanism: that there is none."""
  return {
    'format': FORMAT,
    'version': VERSION,
    'mechanism': None,
    'guarantee': {'epsilon': None, 'delta': None},
  }


def _guarantee(event: dp_accounting.DpEvent, delta: float) -> dict[str, Any]:
  mu = accountants.gdp_mu(event)
  deltas = sorted({delta} | {10.0**-power for power in range(4, 11, 2)}, reverse=True)
  return {
    'epsilon': _finite(accountants.epsilon(event, delta)),
    'delta': delta,
    'epsilon_pld': _finite(accountants.epsilon(event, delta, 'pld')),
    'epsilon_rdp': _finite(accountants.epsilon(event, delta, 'rdp')),
    'epsilon_zcdp': _finite(accountants.epsilon(event, delta, 'zcdp')),
    'zcdp_rho': _finite(mu**2 / 2),
    'gdp_mu': _finite(mu),
    'epsilon_by_delta': [
      {'delta': each, 'epsilon': _finite(accountants.epsilon(event, each))}
      for each in deltas
    ],
  }


def _check_ledger(
  mechanism: mechanism_lib.Mechanism, entries: list[ledger_lib.LedgerEntry]
) -> None:
  """Refuses a ledger whose rounds were not this mechanism's."""
  checksum = mechanism.strategy.checksum
  for entry in entries:
    if (entry.strategy_checksum, entry.noise_multiplier) != (
      checksum,
      mechanism.noise_multiplier,
    ):
      raise ValueError(
        f'round {entry.round} of the ledger used strategy '
        f'{entry.strategy_checksum} with noise multiplier {entry.noise_multiplier}, '
        f'the mechanism is {checksum} with {mechanism.noise_multiplier}.'
      )


def _finite(value: float) -> Optional[float]:
  return float(value) if math.isfinite(value) else None


def to_markdown(statement: dict[str, Any]) -> str:
  """Writes a statement out for people.

  Args:
    statement: As `build` returned it.

  Returns:
    Markdown text.
  """
  if statement['mechanism'] is None:
    return _WITHOUT_PRIVACY
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_dp_aggregators.accounting'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # Markdown, not HTML.
  )
  environment.filters['number'] = _format_number
  environment.filters['delta'] = _format_delta
  return environment.get_template('report.md.j2').render(**statement)


def _format_number(value: Optional[float], digits: int = 4) -> str:
  if value is None:
    return 'infinite'
  return f'{value:.{digits}g}' if abs(value) < 1e-3 else f'{value:.{digits}f}'


def _format_delta(value: float) -> str:
  return f'{value:g}'

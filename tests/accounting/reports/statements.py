"""Builds reports of every kind for tests, with the files that they are based on."""

import contextlib
import functools
import json
import os

import dp_accounting

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import schema
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification

LIMITS = strategies.Participation(12, 4)
TREE = accounting.Mechanism('tree', LIMITS, 5.0)
TREE_FLAGS = ('--mechanism=tree', '--num_rounds=12', '--min_separation=4')
TREE_FLAGS += ('--noise_multiplier=5', '--target_delta=1e-6')
NBAFL_FLAGS = (
  '--nbafl',
  '--target_epsilon=0.8',
  '--target_delta=1e-5',
  '--clip_norm=1.5',
)
NBAFL_FLAGS += ('--num_rounds=40', '--num_exposures=2', '--num_clients=50')
NBAFL_FLAGS += ('--min_examples=1000',)
# Further fields of a run's configuration on uses of clients' data.
EXTRA_CONFIG = {
  'not_covered': ['The vocabulary was counted without noise.'],
  'tuning': {'num_runs': 5, 'epsilon': 20.5},
}
# Further arguments that mechanisms need, by name.
REQUIRED_ARGUMENTS = {
  name: {'min_clients': 20, 'dimension': 30, 'bits': 16}
  for name in ('skellam', 'discrete_gaussian')
}
# Mechanisms with noise of clients, by kind of report.
OF_CLIENTS = {
  'shares': accounting.Mechanism(
    'gaussian', LIMITS, 5.0, noise_site='clients', min_clients=20
  ),
  'integers': accounting.Mechanism(
    'skellam', LIMITS, 5.0, **REQUIRED_ARGUMENTS['skellam']
  ),
  'local': accounting.Mechanism(
    'laplace', LIMITS, 5.0, noise_site='local', min_clients=20
  ),
  'local_ledger': accounting.Mechanism(
    'gaussian', LIMITS, 5.0, noise_site='local', min_clients=20
  ),
  'both': accounting.Mechanism(
    'gaussian',
    LIMITS,
    5.0,
    noise_site='clients_and_server',
    server_noise_multiplier=40.0,
    min_clients=20,
  ),
  'simulated': accounting.Mechanism(
    'gaussian', LIMITS, 5.0, noise_site='local_approximate'
  ),
}


def build(mechanism=TREE, delta=1e-6, *, with_curves=False, **options):
  """Returns the report of a mechanism, or of a run of it."""
  return statement.build(
    reports.Inputs(mechanism, delta, **options), with_curves=with_curves
  )


def mechanism_of(name, participation, noise_multiplier):
  required = REQUIRED_ARGUMENTS.get(name, {})
  return accounting.Mechanism(name, participation, noise_multiplier, **required)


def write_ledger(
  mechanism, path, *, num_rounds=7, clients=25, aborted=0, events=None, **changes
):
  """Writes the ledger of a run of a mechanism; returns its content."""
  with ledger.LedgerWriter(str(path), delta=1e-6) as writer:
    for attempt in range(aborted):
      writer.append_aborted(
        round=0,
        attempt=attempt,
        cohort_requested=25,
        cohort_reported=3,
        reporting_goal=20,
      )
    for event in (events or mechanism.round_events)[:num_rounds]:
      writer.append(
        event=event,
        cohort_requested=max(25, clients),
        cohort_reported=clients,
        **{**mechanism.line(None if mechanism.parts else 0.5), **changes},
      )
  return ledger.read(str(path))


def of_clients(folder, kind):
  """Returns the report of one of OF_CLIENTS: of a plan, or of a run with a ledger."""
  mechanism, entries, files = OF_CLIENTS[kind], None, ()
  if kind in ('integers', 'local_ledger', 'both', 'simulated'):
    path = folder / f'{kind}.jsonl'
    entries = write_ledger(mechanism, path, aborted=2)
    files = (sources.file_of('ledger', str(path)),)
  return build(mechanism, ledger=entries, files=files)


def compose(parts, **options):
  """Returns the report of the composition of several reports."""
  named = [composition.Part(f'part {n}', part) for n, part in enumerate(parts, start=1)]
  return composition.compose(named, **options)


def joint_mechanism(second, noise_multiplier):
  """Returns a mechanism of two parts; the first is TREE."""
  head = accounting.Mechanism(second, LIMITS, noise_multiplier)
  return accounting.JointMechanism(
    (
      accounting.JointPart('body', '0', TREE, 0.5),
      accounting.JointPart('head', ('1', '2*'), head, 0.25),
    )
  )


def of_joint_run(folder):
  """Returns the report of a run with a ledger of Gaussian and Laplace noise."""
  path = folder / 'joint.jsonl'
  mechanism = joint_mechanism('laplace', 12.0)
  entries = write_ledger(mechanism, path, aborted=2)
  files = (sources.file_of('ledger', str(path)),)
  return build(mechanism, ledger=entries, files=files)


def with_ledger(folder, num_rounds=7, **changes):
  """Returns the report of a run of TREE with a ledger, which stays in the folder."""
  path = folder / 'ledger.jsonl'
  entries = write_ledger(TREE, path, num_rounds=num_rounds, **changes)
  files = (sources.file_of('ledger', str(path)),)
  return build(ledger=entries, files=files, clip_norm=0.5, enforced_by='a test')


def by_flags(folder, *flags):
  """Returns the report that the program writes for flags, which has a command."""
  path = folder / f'{len(list(folder.iterdir()))}.json'
  arguments = (*flags, '--format=json', f'--output={path}')
  assert report_program.execute(arguments) == 0
  return json.loads(path.read_text())


def write_round_log(folder, num_rounds=80):
  """Writes a round log without sizes and clients; returns its path."""
  path = folder / 'rounds.csv'
  lines = ['round,completion_time']
  for number in range(num_rounds):  # A round every three hours, eight a day.
    day, hour = 1 + number // 8, number % 8 * 3
    lines.append(f'{number},2026-01-{day:02d}T{hour:02d}:00:00Z')
  path.write_text('\n'.join(lines) + '\n')
  return str(path)


def run_dir(
  folder, noise_seed=None, mechanism=TREE, num_rounds=7, extra=EXTRA_CONFIG, **changes
):
  """Writes the directory of a run of a mechanism; returns its path."""
  folder.mkdir()
  privacy = {
    'mechanism': mechanism.to_json(),
    'target_epsilon': None,
    'delta': 1e-6,
    'clip_norm': 0.5,
    'enforced_by': 'a test',
    'noise_source': 'a test' if noise_seed is None else sources.SEEDED_NOISE,
  }
  config = {'privacy': {**privacy, **changes}, **extra}
  (folder / 'config.json').write_text(json.dumps(config))
  mechanism.strategy.save(folder / 'strategy.npz')
  noise = {}
  if noise_seed is not None:
    noise = {'noise_source': ledger.SEED, 'noise_key_tag': f'tag {noise_seed}'}
  write_ledger(mechanism, folder / 'ledger.jsonl', num_rounds=num_rounds, **noise)
  return str(folder)


@contextlib.contextmanager
def edited_config(folder):
  """Yields the configuration of a run, then writes it with the caller's changes."""
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  yield config
  path.write_text(json.dumps(config))


def write_larger_cohort_run(folder, scale=10.0, **changes):
  """Writes the directory of a run of 10 of 40 clients that simulates larger cohorts."""
  run_dir(folder)
  simulated = {'scale': scale, 'clients_per_round': 10, 'num_clients': 40, **changes}
  with edited_config(folder) as config:
    simulated['as_planned'] = config['privacy']
    config.update(privacy=None, simulated_cohort=simulated)
  os.remove(folder / 'ledger.jsonl')
  write_larger_cohort_ledger(folder / 'ledger.jsonl', 5.0 / scale)
  return str(folder)


def write_larger_cohort_ledger(path, noise_multiplier, event=None, num_rounds=7):
  """Writes the ledger of a run that simulates a larger cohort."""
  events = (event or dp_accounting.NonPrivateDpEvent(),) * num_rounds
  write_ledger(TREE, path, clients=10, events=events, noise_multiplier=noise_multiplier)


def run_without_privacy(folder):
  """Writes the directory of a run without a mechanism; returns its path."""
  folder.mkdir()
  config = {'privacy': None, 'training': {'simulation': 'packed'}, **EXTRA_CONFIG}
  (folder / 'config.json').write_text(json.dumps(config))
  return str(folder)


def _blt(with_curves=False):
  capped = strategies.Participation(12, 4, max_participations=2)
  blt = accounting.Mechanism('blt', capped, 3.0, clipped_count_stddev=4.0)
  return build(blt, with_curves=with_curves)


EPOCHS = strategies.Participation(12, 4, fixed_epoch=True)
FIXED_SIZE = sampling.FixedSizeSampling(6, 1000, 10)


def _tree():
  return build(TREE, target_epsilon=9.0, clip_norm=0.5)


def _ledger_by_flags(folder):
  if not os.path.exists(folder / 'ledger.jsonl'):
    with_ledger(folder)
  return by_flags(folder, *TREE_FLAGS, f'--ledger={folder}/ledger.jsonl')


def _round_log(folder):
  return by_flags(
    folder,
    *('--mechanism=gaussian', '--noise_multiplier=5', '--target_delta=1e-6'),
    f'--round_log={write_round_log(folder)}',
  )


def _run(folder, name):
  path = folder / name
  return str(path) if path.exists() else run_dir(path, noise_seed=name)


def _run_without_privacy(folder):
  return statement.build(sources.from_run_dir(run_without_privacy(folder / 'without')))


_BUILDERS = {
  'tree': lambda folder: _tree(),
  'blt': lambda folder: _blt(),
  'curves': lambda folder: build(
    accounting.Mechanism('toeplitz', EPOCHS, 2.0), with_curves=True
  ),
  'ledger': with_ledger,
  'sampled': lambda folder: build(accounting.Mechanism('gaussian', FIXED_SIZE, 2.0)),
  'composition': lambda folder: compose([_tree(), _blt(with_curves=True)]),
  'without_privacy': lambda folder: statement.build(reports.Inputs()),
  # Reports of the program, which have commands.
  'flags': lambda folder: by_flags(
    folder,
    *('--mechanism=tree', '--num_rounds=12', '--rounds_between=3'),
    *('--max_participations=2', '--target_epsilon=3', '--target_delta=1e-6'),
  ),
  'other_release': lambda folder: by_flags(
    folder,
    *('--mechanism=tree', '--num_rounds=12', '--rounds_between=3'),
    *('--noise_multiplier=4', '--target_delta=1e-6'),
    '--other_release=survey: epsilon=0.5, delta=1e-7, adjacency=add_or_remove',
  ),
  'ledger_by_flags': _ledger_by_flags,
  'round_log': _round_log,
  'run_dir': lambda folder: by_flags(
    folder, f'--run_dir={_run(folder, "one")}', '--accountant=rdp'
  ),
  'run_dirs': lambda folder: by_flags(
    folder, *(f'--run_dir={_run(folder, name)}' for name in ('one', 'two'))
  ),
  'larger_cohort': lambda folder: by_flags(
    folder, f'--run_dir={write_larger_cohort_run(folder / "larger")}'
  ),
  'run_without_privacy': _run_without_privacy,
  **{kind: functools.partial(of_clients, kind=kind) for kind in OF_CLIENTS},
  'nbafl': lambda folder: by_flags(folder, *NBAFL_FLAGS),
  'joint': lambda folder: build(joint_mechanism('banded', 3.0)),
  'joint_ledger': of_joint_run,
}
KINDS = tuple(_BUILDERS)


def of_kind(folder, kind):
  """Returns the report of one of KINDS; its files stay in the folder."""
  return _BUILDERS[kind](folder)


def of_every_kind(folder):
  return (of_kind(folder, kind) for kind in KINDS)


def verify(folder, report):
  """Verifies a report, written to the folder, also by its command."""
  path = folder / 'report.json'
  path.write_text(json.dumps(report))
  return verification.verify(str(path), report_program.statement_of)


def violations(report):
  """Returns the violations of the JSON schema by a report."""
  return list(schema.violations(report))

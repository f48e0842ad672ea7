"""Tests of how the report program composes runs."""

import json
import math
import shutil

import dp_accounting
import numpy as np
import pytest

from tests.accounting.programs import reporting
from tests.accounting.records import ledgers
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import composition


def _ledger(path, events_of_rounds, sizes=None, **fields):
  """Writes a ledger of rounds with noise 1 and clip norm 0.5; returns its path."""
  with ledger.LedgerWriter(str(path), delta=1e-6) as writer:
    for number, event in enumerate(events_of_rounds):
      size = None if sizes is None else sizes[number]
      fields.update(cohort_requested=size, cohort_reported=size)
      ledgers.append(
        writer, event, noise_multiplier=1.0, strategy_checksum=path.name, **fields
      )
  return str(path)


def test_runs_on_the_same_clients_compose(tmp_path):
  tree = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  toeplitz = accounting.Mechanism('toeplitz', strategies.Participation(12, 3), 3.0)
  statements.run_dir(tmp_path / 'one', mechanism=tree, num_rounds=20)
  statements.run_dir(tmp_path / 'two', mechanism=toeplitz, num_rounds=12)
  report = reporting.json_of(f'--run_dir={tmp_path}/one', f'--run_dir={tmp_path}/two')
  mu = math.hypot(
    1 / tree.effective_noise_multiplier, 1 / toeplitz.effective_noise_multiplier
  )
  assert report['guarantee']['gdp_mu'] == pytest.approx(mu, rel=1e-9)
  expected = accounting.accountants.gaussian.epsilon_of(mu, 1e-6)
  assert report['guarantee']['epsilon'] == pytest.approx(expected, rel=1e-9)
  assert [part['mechanism']['name'] for part in report['parts']] == ['tree', 'toeplitz']
  mechanism = report['mechanism']
  assert mechanism['effective_noise_multiplier'] == pytest.approx(1 / mu, rel=1e-9)


def test_runs_that_drew_the_same_clients_do_not_compose(tmp_path):
  # Accountants compose independent draws: 20 rounds of noise 0.838, drawn with 1/18,
  # spend 3.27, twice that 4.04, and with the same clients in both 7.38.
  noise = dp_accounting.GaussianDpEvent(0.838)
  drawn = [dp_accounting.PoissonSampledDpEvent(1 / 18, noise)] * 2

  def write(name, **fields):
    return _ledger(tmp_path / name, drawn, noise_generator=name, **fields)

  # Also if another cycle, for example, made cohorts of other sizes (not stated).
  one, same, other = (
    write(name, sampling_tag=ledger.tag_of_seed('sampling', seed))
    for name, seed in (('a', 1), ('b', 1), ('c', 2))
  )
  file, another = (write(name, sampling_source=ledger.FILE) for name in 'de')
  unstated = write('i')
  # The file may hold draws of the seed, and an unstated source may be any.
  for runs in ([one, same], [file, another], [one, file], [one, unstated]):
    with pytest.raises(ValueError, match='drew their clients from the same seed or fi'):
      composition.check_not_forked(runs)
  composition.check_not_forked([one, other])


@pytest.mark.parametrize('kind', ['poisson', 'fixed size'])
def test_draws_compose_only_if_tags_or_sizes_tell_them_apart(tmp_path, kind):
  noise = dp_accounting.GaussianDpEvent(1.0)
  event = {
    'poisson': dp_accounting.PoissonSampledDpEvent(0.05, noise),
    'fixed size': dp_accounting.SampledWithoutReplacementDpEvent(400, 20, noise),
  }[kind]
  rng = np.random.default_rng(1)

  def write(name, has_sizes, seed=None):
    drawn = rng.binomial(400, 0.05, 20).tolist() if kind == 'poisson' else [20] * 20
    tag = None if seed is None else ledger.tag_of_seed('sampling', seed)
    sizes = drawn if has_sizes else None
    return _ledger(tmp_path / name, [event] * 20, sizes, sampling_tag=tag)

  sizes, others = write('sizes', True), write('other sizes', True)
  tag, both = write('tag', False, 1), write('both', True, 2)
  unsure = [(sizes, tag), (tag, sizes)]
  # Cohorts of one size are told apart by seeds alone.
  unsure += [(sizes, others), (sizes, both)] if kind == 'fixed size' else []
  for runs in unsure:
    with pytest.raises(ValueError, match='or from sources that may be the same'):
      composition.check_not_forked(runs)
  composition.check_not_forked([tag, both])
  if kind == 'poisson':
    composition.check_not_forked([sizes, others])
    composition.check_not_forked([sizes, both])


def test_ledgers_with_noise_of_one_seed_do_not_compose(tmp_path):
  tree = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
  fields = {
    'one': reporting.seeded(1),
    'other data': reporting.seeded(1),
    'other seed': reporting.seeded(2),
    'not told': {'noise_source': ledger.SEED},
    'of before': {'noise_generator': 'philox'},
    'secret': {'noise_source': ledger.SECRET, 'noise_key_tag': '5'},
    'secret as well': {'noise_source': ledger.SECRET, 'noise_key_tag': '6'},
  }
  paths = {name: str(tmp_path / f'{name}.jsonl') for name in fields}
  for name, path in paths.items():
    reporting.write_ledger(path, tree, 3, **fields[name])
  # An unstated seed may be any of the others.
  for names in (
    ('one', 'other data'),
    ('secret', 'one', 'other data'),
    ('one', 'not told'),
    ('not told', 'other seed'),
    ('of before', 'not told'),
    ('one', 'of before'),
  ):
    with pytest.raises(ValueError, match='have their noise from the same seed'):
      composition.check_not_forked([paths[name] for name in names])
  independent = ('one', 'other seed', 'secret', 'secret as well')
  composition.check_not_forked([paths[name] for name in independent])


def test_ledgers_with_equal_drawn_cohort_sizes_do_not_compose(tmp_path):
  def write(name, sizes):
    noise = dp_accounting.GaussianDpEvent(1.0)
    event = dp_accounting.PoissonSampledDpEvent(0.05, noise)
    return _ledger(tmp_path / name, [event] * len(sizes), sizes)

  rng = np.random.default_rng(1)
  one, other = (rng.binomial(400, 0.05, 20).tolist() for _ in range(2))
  paths = write('one', one), write('other', other), write('same', one[:15])
  composition.check_not_forked(paths[:2])
  with pytest.raises(ValueError, match='drew their clients from the same seed'):
    composition.check_not_forked(paths)


@pytest.mark.parametrize('kind', ['bins', 'correlated', 'k rounds'])
def test_ledgers_with_equal_allocated_cohort_sizes_do_not_compose(kind, tmp_path):
  one = events.AllocatedDpEvent(10, 10, dp_accounting.GaussianDpEvent(2.0))
  first = {
    'bins': one,
    'correlated': dp_accounting.ComposedDpEvent(
      [one, dp_accounting.GaussianDpEvent(3.0)]
    ),
    'k rounds': dp_accounting.SelfComposedDpEvent(one, 3),
  }[kind]

  def write(name, sizes):
    nothing = [dp_accounting.NoOpDpEvent()] * (len(sizes) - 1)
    return _ledger(tmp_path / name, [first, *nothing], sizes)

  rng = np.random.default_rng(1)
  sizes, others = (rng.binomial(400, 0.1, 10).tolist() * 3 for _ in range(2))
  paths = write('one', sizes), write('other', others), write('same', sizes[:25])
  composition.check_not_forked(paths[:2])
  with pytest.raises(ValueError, match='drew their clients from the same seed'):
    composition.check_not_forked(paths)


def test_run_given_twice_in_any_form_is_refused(tmp_path):
  statements.run_dir(tmp_path / 'run', mechanism=reporting.TREE_OF_20, num_rounds=20)
  log = statements.write_round_log(tmp_path, 20)
  ledger_path = tmp_path / 'run' / 'ledger.jsonl'
  (tmp_path / 'copy.jsonl').write_bytes(ledger_path.read_bytes())
  by_ledger = (*reporting.TREE_OF_20_FLAGS, f'--ledger={ledger_path}')
  saved = f'{tmp_path}/saved.json'
  assert (
    reporting.execute(*by_ledger, '--format=json', f'--output={saved}').returncode == 0
  )
  by_log = ('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6')
  for arguments, reason in (
    ((*by_ledger, f'--ledger={ledger_path}'), 'the same ledger'),
    ((*by_ledger, f'--ledger={tmp_path}/copy.jsonl'), 'the same ledger'),
    ((*by_ledger, f'--run_dir={tmp_path}/run'), 'the same ledger'),
    ((*by_ledger, f'--report={saved}'), 'the same ledger'),
    ((f'--report={saved}', f'--report={saved}'), 'the same ledger'),
    ((*by_log, f'--round_log={log}', f'--round_log={log}'), 'the same round log'),
  ):
    result = reporting.execute(*arguments)
    assert result.returncode == 2, arguments
    assert 'a run is given twice, in --' in result.stderr
    assert reason in result.stderr


def test_runs_continued_from_one_state_do_not_compose(tmp_path):
  # Their noise is the same, so the difference of their releases has none.
  mechanism = reporting.TREE_OF_20

  def continue_run(path, results, resume, tag=None):
    with ledger.LedgerWriter(str(path), delta=1e-6, resume=resume) as writer:
      for result in results:
        ledgers.append(
          writer,
          mechanism.round_events[writer.rounds],
          result_checksum=ledger.checksum_of([np.array([result])]),
          noise_key_tag=tag,
          **mechanism.line(0.5),
        )

  one, fork, repeated, other = (tmp_path / f'{name}.jsonl' for name in range(4))
  continue_run(one, [0.0, 0.1], resume=False)
  shutil.copy(one, fork)
  shutil.copy(one, tmp_path / 'beginning.jsonl')
  continue_run(one, [0.2, 0.3], resume=True)
  continue_run(fork, [0.4, 0.5], resume=True)
  continue_run(repeated, [0.6, 0.3], resume=False)
  continue_run(other, [0.7, 0.8], resume=False)
  flags = reporting.TREE_OF_20_FLAGS
  for second, reason in (
    (fork, 'begin with the same line'),
    (tmp_path / 'beginning.jsonl', 'begin with the same line'),
    (repeated, 'have the same result'),
  ):
    for pair in ((one, second), (second, one)):
      result = reporting.execute(*flags, *(f'--ledger={path}' for path in pair))
      assert result.returncode == 2 and result.stdout == ''
      assert f'{pair[0]} and {pair[1]} {reason}: they are of one run' in result.stderr
  report = reporting.json_of(*flags, f'--ledger={one}', f'--ledger={other}')
  assert len(report['parts']) == 2
  tagged = [tmp_path / f'tagged{number}.jsonl' for number in range(3)]
  for path, tag in zip(tagged, ('-1', '-1', '7')):
    continue_run(path, [float(tagged.index(path))], resume=False, tag=tag)
  pair = [f'--ledger={path}' for path in tagged]
  result = reporting.execute(*flags, *pair[:2])
  assert result.returncode == 2 and 'have noise of the same key' in result.stderr
  assert len(reporting.json_of(*flags, *pair[1:])['parts']) == 2


def test_incompatible_reports_are_refused_with_both_values(tmp_path):
  plan = ('--mechanism=gaussian', '--num_rounds=9', '--noise_multiplier=5')
  kinds = {
    'plan': (*plan, '--target_delta=1e-6'),
    'delta': (*plan, '--target_delta=1e-7'),
    'replace': (*plan, '--target_delta=1e-6', '--adjacency=replace_one'),
  }
  for name, arguments in kinds.items():
    reporting.execute(*arguments, '--format=json', f'--output={tmp_path}/{name}.json')
  reports = {name: f'--report={tmp_path}/{name}.json' for name in kinds}
  for name, value in (
    ('delta', "zero_out and 1e-07. Make one of them again with the other's --target"),
    ('replace', 'replace_one and 1e-06. --adjacency gives'),
  ):
    result = reporting.execute(reports['plan'], reports[name])
    assert result.returncode == 2
    assert f'{reports["plan"]} has zero_out and 1e-06, {reports[name]} has {value}' in (
      result.stderr
    )
  altered = json.loads((tmp_path / 'plan.json').read_text())
  altered['guarantee']['epsilon'] /= 2
  (tmp_path / 'altered.json').write_text(json.dumps(altered))
  result = reporting.execute(reports['plan'], f'--report={tmp_path}/altered.json')
  assert result.returncode == 2
  assert 'altered.json is not what is computed from its inputs' in result.stderr

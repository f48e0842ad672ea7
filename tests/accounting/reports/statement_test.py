"""Tests that statements have the accountants' numbers and keep the JSON schema."""

import dataclasses
import json
import math

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import model

PARTICIPATION = strategies.Participation(20, min_separation=5)
MECHANISM = accounting.Mechanism('banded', PARTICIPATION, noise_multiplier=2.0)


def _ledger(path, num_rounds, mechanism=MECHANISM, more_noise=0.0):
  events = mechanism.round_events
  if more_noise:
    noises = (each.noise_multiplier * (1 + more_noise) for each in events)
    events = [dp_accounting.GaussianDpEvent(noise) for noise in noises]
  return statements.write_ledger(mechanism, path, num_rounds=num_rounds, events=events)


def test_statement_of_published_gboard_run_has_known_figures():
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = statements.build(gboard, 1e-10)
  guarantee, mechanism = built['guarantee'], built['mechanism']
  assert mechanism['sensitivity_squared'] == pytest.approx(79, rel=1e-14)
  assert guarantee['zcdp_rho'] == pytest.approx(0.8061224489795918, rel=1e-12)
  assert guarantee['gdp_mu'] == pytest.approx(1.2697420596165128, rel=1e-12)
  assert guarantee['epsilon'] == pytest.approx(8.526093443452096, rel=1e-9)
  assert guarantee['epsilon_exact'] == guarantee['epsilon']
  assert guarantee['epsilon_rdp'] == pytest.approx(8.898605012965973, rel=1e-9)
  assert guarantee['epsilon_zcdp'] == pytest.approx(9.422770368323311, rel=1e-12)
  assert guarantee['accountant'] == 'exact'


def test_ledger_with_more_noise_than_the_mechanism_is_refused(tmp_path):
  more_noise = 1e-8
  more = _ledger(tmp_path / 'more.jsonl', num_rounds=20, more_noise=more_noise)
  with pytest.raises(ValueError, match='effective noise multiplier'):
    statements.build(MECHANISM, ledger=more)
  less = _ledger(tmp_path / 'less.jsonl', num_rounds=20, more_noise=-more_noise)
  assert statements.build(MECHANISM, ledger=less)


def test_ledger_with_no_or_too_many_rounds_is_refused(tmp_path):
  empty = _ledger(tmp_path / 'empty.jsonl', num_rounds=0)
  with pytest.raises(ValueError, match='the ledger lists 0 complete rounds'):
    statements.build(MECHANISM, ledger=empty)
  run = _ledger(tmp_path / 'ledger.jsonl', num_rounds=20)
  shorter = accounting.Mechanism('gaussian', strategies.Participation(9), 2.0)
  with pytest.raises(ValueError, match='the ledger lists 20 complete rounds'):
    statements.build(shorter, ledger=run)


@pytest.mark.parametrize('often, assumed', [(6, 6), (7, None), (9, None)])
def test_assumed_max_participations_is_stated_apart(often, assumed):
  limits = strategies.Participation.from_rounds_between(2000, 313, often)
  tree = accounting.Mechanism('tree', limits, 7.0)
  stated = statements.build(tree, 1e-10, cap_enforced_by='a counter')['participation']
  assert stated['max_participations'] == often
  assert stated['possible_by_separation'] == 7
  assert stated['assumed_at_most'] == assumed
  assert stated['cap_enforced_by'] == (assumed and 'a counter')


def test_run_states_head_clip_norms_and_generators_of_ledger(tmp_path):
  path = str(tmp_path / 'ledger.jsonl')
  rounds = ((0.5, None), (0.25, 'philox'), (0.75, 'chacha20'), (0.5, 'philox'))
  with ledger.LedgerWriter(path, delta=1e-6) as writer:
    for event, (clip_norm, generator) in zip(MECHANISM.round_events, rounds):
      line = MECHANISM.line(clip_norm)
      ledgers.append(writer, event, noise_generator=generator, **line)
    head = writer.head
  built = statements.build(MECHANISM, ledger=ledger.read(path))
  run = built['run']
  assert run['ledger_head'] == {'lines': 4, 'sha256': head.sha256}
  assert run['clip_norms'] == {'smallest': 0.25, 'largest': 0.75}
  assert run['noise_generators'] == [None, 'philox', 'chacha20']
  assert built['mechanism']['clip_norm'] is None
  assert statements.violations(built) == []


@pytest.mark.parametrize('target', [0.5, float('nan'), float('inf'), -1.0])
def test_missed_or_invalid_target_epsilon_is_refused(target):
  with pytest.raises(ValueError, match='target_epsilon'):
    statements.build(MECHANISM, target_epsilon=target)


TREE = accounting.Mechanism('tree', PARTICIPATION, 2.0)
SELDOM = strategies.Participation(20, 5, max_participations=1)
FAR_APART = strategies.Participation(20, 10)


@pytest.mark.parametrize(
  ('made', 'other', 'clip_norm', 'message'),
  [
    (MECHANISM, TREE, None, 'ledger has the strategy'),
    (MECHANISM, {'noise_multiplier': 2.5}, None, 'noise multiplier 2.0, but by .* 2.5'),
    (MECHANISM, {'adjacency': 'replace_one'}, None, 'hold events for zero-out'),
    (MECHANISM, MECHANISM, 0.25, 'ledger has the clip norm 0.5, but .* 0.25'),
    # The strategy, and so its checksum, is the same for all limits.
    (TREE, {'participation': SELDOM}, None, 'effective noise multiplier'),
    (TREE, {'participation': FAR_APART}, None, 'effective noise multiplier'),
  ],
)
def test_ledger_of_another_mechanism_is_refused(
  tmp_path, made, other, clip_norm, message
):
  run = _ledger(tmp_path / 'ledger.jsonl', num_rounds=20, mechanism=made)
  if isinstance(other, dict):
    other = dataclasses.replace(made, **other)
  with pytest.raises(ValueError, match=message):
    statements.build(other, ledger=run, clip_norm=clip_norm)


def test_curves_end_at_the_guarantee():
  built = statements.build(MECHANISM, with_curves=True)
  curves, guarantee = built['curves'], built['guarantee']
  assert [1e-6, guarantee['epsilon']] in curves['epsilon_by_delta']
  epsilons = [epsilon for _, epsilon in curves['epsilon_by_delta']]
  assert epsilons == sorted(epsilons)
  assert curves['epsilon_by_round'][-1] == [20, pytest.approx(guarantee['epsilon'])]
  errors = [error for _, error in curves['error_by_round']]
  assert len(errors) == 20
  assert max(errors) == pytest.approx(built['mechanism']['max_error'], rel=1e-12)
  noise = 2.0 * MECHANISM.strategy.noise_matrix()
  covariance = noise @ noise.T
  expected = covariance[19] / (covariance.diagonal() * covariance[19, 19]) ** 0.5
  correlation = dict(curves['noise_correlation'])
  assert [correlation[lag] for lag in range(20)] == pytest.approx(expected[::-1])


def test_other_releases_add_epsilon_and_take_part_of_delta():
  part = statements.build(MECHANISM)
  release = model.OtherRelease('survey', 0.5, 2.5e-7)

  def expected(num_runs):
    event = dp_accounting.SelfComposedDpEvent(MECHANISM.event, num_runs)
    return pytest.approx(accountants.epsilon(event, 7.5e-7) + 0.5, rel=1e-9)

  for num_runs in (1, 2):
    total = statements.compose([part] * num_runs, other_releases=[release])
    assert total['guarantee']['epsilon'] == expected(num_runs)
    # The release also counts where the composition is a part of another one.
    nested = statements.compose([total, part])
    assert nested['guarantee']['epsilon'] == expected(num_runs + 1)


@pytest.mark.parametrize(
  'releases, reason',
  [
    ([('survey', 0.5, 6e-7, None), ('query', 0.5, 6e-7, None)], 'leaves nothing'),
    ([('survey', 0.5, 0.0, None), ('survey', 0.2, 0.0, None)], 'names of their own'),
    ([('survey', 0.5, 0.0, 'neighbouring')], 'adjacency=neighbouring'),
    ([('survey', 0.5, 0.0, 'add_or_remove')], 'with which replace_one goes'),
    ([('survey', math.nan, 0.0, None)], 'epsilon must be'),
    ([('survey', 1.0, -1e-9, None)], 'delta must be'),
  ],
)
def test_invalid_other_releases_are_refused(releases, reason):
  part = statements.build(dataclasses.replace(MECHANISM, adjacency='replace_one'))
  with pytest.raises(ValueError, match=reason):
    statements.compose(
      [part], other_releases=[model.OtherRelease(*each) for each in releases]
    )


@pytest.mark.parametrize(
  'text, reason',
  [
    ('s: epsilon=0.5, delta=1e-7: epsilon=0.0, delta=0', ''),
    ('survey: eps=1', 'unknown field `eps`.'),
    ('survey: epsilon=1', 'missing required field `delta`.'),
    (
      'survey: epsilon=1, delta=0, adjacency',
      r'Invalid enum value .*.',
    ),
    ('survey: epsilon=1, epsilon=0.1, delta=0', r'a name is repeated in .*.'),
    ('survey: epsilon=1, delta=0, unit=row', ''),
    ('survey: epsilon=1 delta=0, delta=0', 'a comma is missing in epsilon=1 delta=0.'),
    ('epsilon=1, delta=0', ''),
  ],
)
def test_other_release_of_invalid_text_is_refused(text, reason):
  with pytest.raises(ValueError, match=f'is not a name, a colon.*: .*{reason}$'):
    program.settings_of('other_release', text, model.OtherRelease, 'this')


def test_schema_describes_statements_of_all_mechanisms(monkeypatch):
  names, limits = accounting.mechanism.names(), strategies.Participation(8, 4)
  mechanisms = [statements.mechanism_of(name, limits, 1.0) for name in names]
  mechanisms += [
    dataclasses.replace(MECHANISM, **changes)
    for changes in (
      {'clipped_count_stddev': 5.0},
      {'adjacency': 'replace_one'},
      {'noise_multiplier': 0.0},
    )
  ]
  built = [statements.build(each) for each in mechanisms]
  built.append(statements.compose([statements.compose(built[:2]), built[2]]))
  for each in built:
    assert json.loads(json.dumps(each, allow_nan=False)) == each
    assert statements.violations(each) == []


def test_schema_detects_missing_unknown_and_mistyped_keys(monkeypatch):
  built = statements.build(MECHANISM)

  def objects(value):
    if isinstance(value, dict):
      yield value
      for each in value.values():
        yield from objects(each)

  changed = 0
  for name in ('mechanism', 'participation', 'guarantee'):
    for each in objects(built[name]):
      for key in list(each):
        value = each.pop(key)
        assert statements.violations(built), f'{key} is missing'
        each[key] = [{}]
        assert statements.violations(built), f'{key} has another type'
        each[key] = value
        changed += 1
      each['unknown'] = 1
      assert statements.violations(built), f'an unknown key in {name}'
      del each['unknown']
  assert changed > 30
  assert not statements.violations(built)

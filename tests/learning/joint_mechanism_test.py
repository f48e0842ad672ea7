"""Tests of `learning.train` with joint mechanisms: one for each part of the model."""

import copy
import json
import os
import shutil

import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification

_ROUNDS, _DELTA = 6, 1e-3
_LIMITS = strategies.Participation(_ROUNDS, min_separation=3)


def _joint(second='laplace', noises=(1.0, 9.0), weights=('0', '[1-9]')):
  make = accounting.Mechanism
  first = make('banded', _LIMITS, noises[0])
  return accounting.JointMechanism(
    (
      accounting.JointPart('slopes', weights[0], first, 0.5),
      accounting.JointPart('rest', weights[1], make(second, _LIMITS, noises[1]), 0.2),
    )
  )


def _train(run_dir, mechanism, **changes):
  arguments = training_runs.arguments(
    run_dir,
    mechanism=mechanism,
    model=training_runs.model(has_bias=True),
    clip_norm=None,
    delta=_DELTA,
  )
  return learning.train(**training_runs.grouped(**{**arguments, **changes}))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Returns the result of a run with Gaussian and Laplace noise."""
  run_dir = tmp_path_factory.mktemp('joint') / 'run'
  return _train(run_dir, _joint(), test_metrics=training_runs.kill_in(-1))


@pytest.mark.slow
def test_killed_and_resumed_run_matches_uninterrupted_run(run, tmp_path):
  with pytest.raises(training_runs.Killed):
    _train(tmp_path / 'run', _joint(), test_metrics=training_runs.kill_in(4))
  _train(tmp_path / 'run', _joint(), test_metrics=training_runs.kill_in(-1))
  assert training_runs.results(tmp_path / 'run') == training_runs.results(run.run_dir)


def test_run_spends_planned_epsilon_and_ledger_lists_parts(run):
  assert run.epsilon == pytest.approx(_joint().epsilon(_DELTA), rel=1e-6)
  rows = learning_curves.read(os.path.join(run.run_dir, 'metrics.csv'))
  spent = [float(row['epsilon']) for row in rows]
  assert spent == sorted(spent) and spent[-1] == pytest.approx(run.epsilon, rel=1e-9)
  entries = ledger_lib.read(os.path.join(run.run_dir, 'ledger.jsonl')).entries
  assert len(entries) == _ROUNDS
  for entry in entries:
    assert entry.parts == [
      {'name': 'slopes', 'clip_norm': 0.5, 'noise_multiplier': 1.0},
      {'name': 'rest', 'clip_norm': 0.2, 'noise_multiplier': 9.0},
    ]
    assert entry.clip_norm is None and entry.noise_multiplier is None


def test_report_states_each_part_and_verifies(run):
  stated = run.statement['mechanism']
  assert [part['part'] for part in stated['parts']] == ['slopes', 'rest']
  assert [part['weights'] for part in stated['parts']] == [['0'], ['1']]
  assert [part['shapes'] for part in stated['parts']] == [[[2, 1]], [[1]]]
  assert [part['num_parameters'] for part in stated['parts']] == [2, 1]
  for part, planned in zip(stated['parts'], _joint().parts):
    assert part['clip_norm'] == planned.clip_norm
    assert part['noise_multiplier'] == planned.mechanism.noise_multiplier
    assert part['sensitivity'] == planned.mechanism.sensitivity
    effective = planned.mechanism.effective_noise_multiplier
    assert part['effective_noise_multiplier'] == effective
  for form in rendering.FORMATS:
    assert 'slopes' in rendering.render(run.statement, form)
  result = verification.verify(
    os.path.join(run.run_dir, 'report.json'), report_program.statement_of
  )
  assert result.ok, result.text


_PART_FIELDS = (
  'clip_norm',
  'noise_multiplier',
  'sensitivity',
  'effective_noise_multiplier',
  'weights',
  'shapes',
  'num_parameters',
  'share',
  'patterns',
  'part',
  'strategy_checksum',
  'share_of_mu_squared',
)


def test_verify_finds_each_changed_field_of_a_part(run, tmp_path):
  report = copy.deepcopy(run.statement)
  part = report['mechanism']['parts'][0]
  for field in _PART_FIELDS:
    value = part[field]
    if isinstance(value, float):
      part[field] = value * (1 - 1e-6)
    elif isinstance(value, int):
      part[field] = value + 1
    elif isinstance(value, list):
      part[field] = [[3]] if field == 'shapes' else ['2']
    else:
      part[field] = value[:-1] + ('0' if value[-1] != '0' else '1')
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  result = verification.verify(str(path))
  assert not result.ok
  for field in _PART_FIELDS:
    assert f'mechanism.parts[0].{field}' in result.text


@pytest.mark.parametrize(
  ('name', 'change', 'message'),
  [
    ('ledger.jsonl', ('"noise_multiplier": 9.0', '"noise_multiplier": 9.5'), 'ledger'),
    (
      'config.json',
      ('"noise_multiplier": 9.0', '"noise_multiplier": 9.5'),
      "the parts .*'rest', .*'noise_multiplier': 9.0.* but by .*'rest'.*9.5",
    ),
    ('config.json', ('"clip_norm": 0.2', '"clip_norm": 0.1'), "'clip_norm': 0.1"),
    ('config.json', ('"[1-9]"', '"[2-9]"'), 'the weight 1 is of no part'),
  ],
)
def test_statement_refuses_run_with_changed_file(name, change, message, run, tmp_path):
  path = tmp_path / 'run'
  shutil.copytree(run.run_dir, path)
  text = (path / name).read_text()
  assert change[0] in text
  (path / name).write_text(text.replace(*change))
  with pytest.raises(ValueError, match=message):
    statement.build(sources.from_run_dir(str(path)))


def test_weight_names_of_functional_model_are_positions():
  assert learning.weight_names(training_runs.model(has_bias=True)) == ('0', '1')
  with pytest.raises(TypeError, match='a Keras model, or a function'):
    learning.weight_names('keras')


@pytest.mark.parametrize(
  ('mechanism', 'changes', 'message'),
  [
    (
      _joint(weights=('0', 'b')),
      {},
      r'weight 1 is of no part.*the weights are 0 \[2, 1\], 1 \[1\]',
    ),
    (
      _joint(weights=('*', '1')),
      {},
      'pattern 1 of part rest is for no weight, or for those of parts before it',
    ),
    (_joint(weights=('*', 'x')), {}, 'pattern x of part rest is for no weight'),
    (_joint(), {'clip_norm': 1.0}, 'each of its parts has its own'),
    (_joint(), {'simulated_cohort_scale': 2.0}, 'does not go with a joint mechanism'),
    (
      _joint(),
      {'inner_aggregator': 'secure_modular_sum'},
      'inner_aggregator=secure_modular_sum does not go',
    ),
    (_joint(), {'audit_canaries': 9}, 'joint mechanism'),
  ],
)
def test_train_refuses_arguments_that_joint_mechanism_excludes(
  mechanism, changes, message, tmp_path
):
  with pytest.raises(ValueError, match=message):
    _train(tmp_path / 'run', mechanism, **changes)
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_joint_mechanism_works_with_secure_sum_and_signal_to_noise(tmp_path):
  result = _train(
    tmp_path / 'run',
    _joint(),
    inner_aggregator='secure_sum',
    not_private_signal_to_noise=True,
    noise_seed=None,
  )
  assert result.is_finished
  assert result.metrics['not_private_signal_norm'] > 0
  row = _joint().parts[0].mechanism.strategy.noise_row_norms()[-1]
  expected = (2 * 0.5**2 * row**2 + 2 * (9.0 * 0.2) ** 2) / 9
  assert result.metrics['squared_noise_norm'] == pytest.approx(expected, rel=1e-4)

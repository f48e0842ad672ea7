"""Tests of programs: in this process, and as a user starts them."""

import importlib.metadata
import math
import os
import subprocess
import sys

import pytest
from absl import flags

from tests import executing
from tff_dp_aggregators.accounting.programs import participation
from tff_dp_aggregators.accounting.programs import plan
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report
from tff_dp_aggregators.base import messages

PROGRAMS = {'report': report, 'plan': plan, 'participation': participation}


def _program(main=lambda values: 0, **changes):
  shape = program.Flag('shape', ['round', 'square'], 'Of it.')
  rows = (
    program.Flag('number', int, 'How many.', default=3),
    program.Flag('share', float, 'Of all.'),
    program.Flag('shown', bool, 'Whether to show it.', default=False),
    program.Flag('mean', program.NUMBER, 'Of all.'),
  )

  def groups():
    return (('Flags', rows), ('Looks', (shape,)))

  text, basic = '\nDoes it.\n\nOften.\n', ('number', 'shape')
  return program.Program('a-program', text, groups, main, basic=basic, **changes)


def test_main_receives_flag_values_and_returns_exit_code():
  def main(values):
    print(values.number, values.shape, values.shown)
    return 17

  result = executing.execute(_program(main), '--number=4', '--shape', 'round')
  assert result == (17, '4 round False\n', '')
  again = executing.execute(_program(main), '--shown')
  assert again == (17, '3 None True\n', '')
  assert not {'number', 'shape', 'shown'} & set(flags.FLAGS)


@pytest.mark.parametrize(
  ('within', 'fine', 'wrong'),
  [
    ('[1, inf)', (1, 7), (0.5, -1, math.nan, math.inf)),
    ('(0, inf)', (1e-9,), (0, math.nan, math.inf)),
    ('(0, 1)', (0.5,), (0, 1, math.nan)),
    ('[0, inf]', (0, math.inf), (-1, math.nan)),
    ('', (-1, math.inf), ()),
  ],
)
def test_flag_values_out_of_bounds_are_refused(within, fine, wrong):
  groups = [('Flags', [program.Flag('rate', float, 'Of it.', within=within)])]
  for value in fine:
    assert program.values_of(groups, [f'--rate={value}']).rate == value
  for value in wrong:
    with pytest.raises(program.WrongUsage) as error:
      program.values_of(groups, [f'--rate={value}'])
    message = f'flag --rate={float(value)}: must be in {within}; --helpfull'
    assert str(error.value).startswith(message)


def test_flags_are_read_from_flagfile_and_overridden(tmp_path):
  path = tmp_path / 'flags'
  path.write_text('--number=8\n# --number=9\n--shown\n')
  seen = []

  def main(values):
    seen.append((values.number, values.shown, [*values]))
    return 0

  assert _program(main).execute([f'--flagfile={path}', '--shape=round']) == 0
  names = ['number', 'share', 'shown', 'mean', 'shape']
  assert seen == [(8, True, names)]
  assert _program(main).execute([f'--flagfile={path}', '--number=5', '--noshown']) == 0
  assert _program(main).execute(['--number=5', '--flagfile', str(path)]) == 0
  assert seen[1:] == [(5, False, names), (5, True, names)]  # The order does not matter.


@pytest.mark.parametrize('line', ['--number=8', '--number\n8'])
def test_flag_of_a_file_can_be_unset_with_no_prefix(tmp_path, line):
  path = tmp_path / 'flags'
  path.write_text(f'{line}\n--shown\n')
  seen = []

  def main(values):
    seen.append((values['number'].present, values.number, values.shown))
    return 0

  assert _program(main).execute(['--nonumber', f'--flagfile={path}']) == 0
  assert seen == [(0, 3, True)]


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('--number=4', '--number=5'), '--number is given twice; give it once'),
    (('--flagfile={}', '--number=5', '--number=6'), '--number is given twice; give'),
    (('--flagfile={}.16',), 'flags.16 must be text in UTF-8'),
    (
      ('--nmber=3',),
      "Unknown command line flag 'nmber'. Did you mean: number ?; --helpfull",
    ),
    (('--number=2.5',), 'flag --number=2.5: invalid literal for int()'),
    (('--number',), 'Missing value for flag --number'),
    (('--shape=oval',), 'should be one of <round|square>'),
    (('3', '--shown', '4'), "unexpected arguments ['3', '4']; all are flags"),
    (('--number=a\nb',), '--number=a b'),
  ],
)
def test_wrong_flags_are_refused_before_main_runs(tmp_path, arguments, message):
  path = tmp_path / 'flags'
  path.write_text('--number=8\n')
  path.with_suffix('.16').write_text('--number=8\n', encoding='utf-16')

  def main(values):
    raise AssertionError('to be refused before')

  given = [each.format(path) for each in arguments]
  result = executing.execute(_program(main), *given)
  assert (result.returncode, result.stdout) == (2, '')
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert result.stderr.count('\n') == 1


@pytest.mark.parametrize(
  'error, code',
  [
    (program.CheckFailed('too much'), 1),
    (program.WrongUsage('too much'), 2),
    (ValueError('too much'), 2),
    (OSError('too much'), 2),
    (MemoryError('too much'), 2),
  ],
)
def test_errors_of_main_print_one_line_and_exit_with_code(error, code):
  def main(values):
    raise error

  assert executing.execute(_program(main)) == (code, '', 'error: too much\n')


def test_python_m_runs_programs_without_tensorflow_and_exits_with_their_code():
  code = (
    'import runpy, sys\n'
    f'for name in {list(PROGRAMS)}:\n'
    '  sys.argv[1:] = ["--help"]\n'
    '  try:\n'
    '    runpy.run_module(f"tff_dp_aggregators.accounting.{name}", None, "__main__")\n'
    '  except SystemExit as e:\n'
    '    assert not e.code\n'
    'heavy = {"tensorflow", "tensorflow_federated", "jax"} & set(sys.modules)\n'
    'assert not heavy, heavy\n'
    'sys.argv[1:] = ["--mechanism=tree", "--num_rounds=9", "--noise_multiplier=1",\n'
    '  "--target_epsilon=1", "--target_delta=1e-6"]\n'
    'runpy.run_module("tff_dp_aggregators.accounting.report", None, "__main__")\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 1
  assert result.stderr.startswith('error: the mechanism spends epsilon = ')
  assert result.stderr.count('\n') == 1
  shown = [executing.execute(each, '--help').stdout for each in PROGRAMS.values()]
  assert result.stdout == ''.join(shown)
  for each, text in zip(PROGRAMS.values(), shown):
    assert each.__doc__.strip() in text


@pytest.mark.parametrize('name', PROGRAMS)
def test_installed_command_runs_this_program(name):
  scripts = importlib.metadata.distribution('tff-dp-aggregators').entry_points
  (script,) = [s for s in scripts if s.name == f'tff-dp-{name}']
  assert script.load() == PROGRAMS[name].run
  assert PROGRAMS[name].PROGRAM.name == script.name


def test_help_shows_only_basic_flags_if_some_are():
  short = executing.execute(_program(), '--help').stdout
  assert '--number:' in short and '--shape:' in short
  assert '--share:' not in short and '--mean:' not in short
  assert '--helpfull shows all flags' in short
  full = executing.execute(_program(), '--helpfull').stdout
  assert '--share:' in full and '--mean:' in full


def test_renamed_flag_is_refused_with_its_new_name():
  result = executing.execute(report, '--cohort=9')
  assert (result.returncode, result.stdout) == (2, '')
  assert f'--cohort is called --{messages.RENAMED["cohort"]}' in result.stderr
  assert "Unknown command line flag 'cohort'" in (
    executing.execute(PROGRAMS['participation'], '--cohort=9').stderr
  )

"""Python, commands and simulations in README and docs/ run and print what is shown.

Documents whose steps build on each other are run by walkthrough_test.py.
"""

import csv
import importlib
import pathlib
import re
import shlex
import sys

import pytest

from experiments import simulate
from tests import executing
from tests import walkthroughs

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')
DOCS = {
  path.name: path.read_text(encoding='utf-8')
  for path in sorted([*(ROOT / 'docs').glob('*.md'), ROOT / 'docs/moving/tff.md'])
  if not walkthroughs.is_walkthrough(path)
}
_MODULES = 'tff_dp_aggregators.accounting.'
# Commands of these documents run here; several_machines.md has its own test.
_SHORT_DOCS = {
  name: text for name, text in DOCS.items() if name != 'several_machines.md'
}
# Texts that the output of README's commands must have.
_CLAIMS = {
  'report': ('8.5261', '8.8986'),
  'plan': ('gaussian', 'tree', 'toeplitz', 'blt'),
}


def _blocks(language):
  return re.findall(rf'^```{language}\n(.*?)^```', README, re.MULTILINE | re.DOTALL)


def _commands(text):
  """Returns name and flags of each call of this package's programs."""
  lines = re.findall(
    r'^\.venv/bin/tff-dp-(.*)$', text.replace('\\\n', ' '), re.MULTILINE
  )
  return [(name, arguments) for name, *arguments in map(shlex.split, lines)]


# The tutorial has these commands as well, and there their data exist.
_IN_TUTORIAL = ('simulate', 'compare', 'plot')


def _readme_commands():
  """Returns the commands of README except those that the tutorial runs."""
  commands = _commands('\n'.join(_blocks('bash')))
  return [command for command in commands if command[0] not in _IN_TUTORIAL]


def _execute(name, arguments):
  program = importlib.import_module(f'{_MODULES}programs.{name}')
  return executing.execute(program, *arguments)


def _simulations():
  """Returns ARGS of README's `make simulate` lines that have some."""
  text = '\n'.join(_blocks('bash'))
  return re.findall(r'^make simulate ARGS="(.*)"$', text, re.MULTILINE)


@pytest.fixture(scope='module')
def kept_strategies(tmp_path_factory):
  """Keeps strategies from one command to the next, as on a user's machine."""
  with pytest.MonkeyPatch.context() as patch:
    folder = tmp_path_factory.mktemp('strategies')
    patch.setenv('TFF_DP_AGGREGATORS_CACHE', str(folder))
    yield


def test_readme_python_example_trains_and_prints_epsilon(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (example,) = _blocks('python')
  epsilon, run_dir = executing.run_example(example).split()
  assert 8.0 * (1 - 1e-6) < float(epsilon) <= 8.0
  assert (tmp_path / run_dir / 'report.html').exists()


def test_documents_have_commands_and_simulations():
  for name in {name for text in DOCS.values() for name, _ in _commands(text)}:
    assert (pathlib.Path(sys.executable).parent / f'tff-dp-{name}').exists()
  assert [name for name, _ in _readme_commands()] == ['report', 'plan']
  assert len(_simulations()) == 2
  assert sum(len(_commands(text)) for text in _SHORT_DOCS.values()) == 4


def test_readme_commands_on_own_data_are_in_tutorial():
  tutorial = (ROOT / 'docs' / 'tutorial.md').read_text(encoding='utf-8')
  steps = walkthroughs.steps(tutorial)
  in_tutorial = [shlex.split(step.text) for step in steps if step.kind == 'command']
  in_readme = [
    [f'tff-dp-{name}', *arguments]
    for name, arguments in _commands('\n'.join(_blocks('bash')))
    if name in _IN_TUTORIAL
  ]
  assert len(in_readme) == 2
  for command in in_readme:
    assert command in in_tutorial


@pytest.mark.parametrize(
  'name, arguments',
  [
    # Optimizing each strategy for a thousand rounds takes seconds.
    pytest.param(*each, marks=[pytest.mark.slow] if each[0] == 'plan' else [])
    for each in _readme_commands()
  ],
  ids=str,
)
def test_readme_command_runs(name, arguments, kept_strategies):
  result = _execute(name, arguments)
  assert result.returncode == 0, result.stderr
  for claim in _CLAIMS[name]:
    assert claim in result.stdout


@pytest.mark.parametrize(
  'name, arguments',
  [
    pytest.param(
      *command,
      id=f'{document}-{number}',
      marks=[pytest.mark.slow] if command[0] == 'plan' else [],
    )
    for document, text in _SHORT_DOCS.items()
    for number, command in enumerate(_commands(text))
  ],
)
def test_docs_command_runs(name, arguments, kept_strategies):
  result = _execute(name, arguments)
  assert result.returncode == 0, result.stderr
  assert len(result.stdout.splitlines()) > 8


@pytest.mark.slow
@pytest.mark.parametrize('arguments', _simulations())
def test_readme_simulation_runs(arguments, tmp_path):
  run_dir = tmp_path / 'run'
  result = executing.execute(simulate, *shlex.split(arguments), f'--run_dir={run_dir}')
  assert result.returncode == 0, result.stderr
  if arguments == '--help':
    assert '--target_epsilon' in result.stdout
    assert not run_dir.exists()
  else:
    assert 'Privacy spent in 20 of 20 rounds' in result.stdout


def test_example_run_matches_readme():
  report = (ROOT / 'docs' / 'example_run' / 'report.md').read_text(encoding='utf-8')
  metrics = (ROOT / 'docs' / 'example_run' / 'metrics.csv').read_text(encoding='utf-8')
  last = dict(zip(*(line.split(',') for line in metrics.split('\n')[0:101:100])))
  stated = re.search(r'after 100 rounds: (\d\.\d+)', README).group(1)
  assert f'{float(last["test_accuracy"]):.4f}' == stated
  assert '(epsilon, delta) = (8.0000, 1e-05)' in report


def test_readme_accuracies_match_comparison_table():
  folder = ROOT / 'docs' / 'results' / 'digits'
  with open(folder / 'table.csv', encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  accuracy = {
    (row['mechanism'], row['target_epsilon']): f'{float(row["test_accuracy"]):.2f}'
    for row in rows
  }
  at_2 = [accuracy[name, '2'] for name in ('gaussian', 'tree', 'banded')]
  assert re.findall(r'\b0\.\d\d\b', README.split('All mechanisms on digits')[1])[
    :4
  ] == [*at_2, accuracy['none', '']]


def _examples():
  """Yields each Python block of the documents with its expected output."""
  pattern = r'^```python\n(.*?)^```\n\n```text\n(.*?)^```'
  for name, text in DOCS.items():
    for program, output in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
      # Slow: one optimises for long; the others are tested in learning/sources_test.py,
      # in aggregators/joint_test.py and, in pieces, in moving_programs_test.py.
      long = ('best_separation(', 'programs.train_model(', 'aggregators.quantile(')
      is_slow = any(each in program for each in long) or name == 'tff.md'
      marks = [pytest.mark.slow] if is_slow else []
      yield pytest.param(program, output, id=name, marks=marks)


def test_every_python_block_in_docs_has_output():
  blocks = sum(text.count('```python') for text in DOCS.values())
  # tests/moving_programs_test.py runs blocks that are followed by JSON.
  compared = sum(text.count('```\n\n```json') for text in DOCS.values())
  assert len(list(_examples())) == blocks - compared > 0


@pytest.mark.parametrize('program, output', _examples())
def test_docs_example_prints_its_output(program, output, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert executing.run_example(program) == output

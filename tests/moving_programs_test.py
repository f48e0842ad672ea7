"""The programs of docs/moving print what is shown there, and match where claimed.

Each page has pairs of programs, There (in another system) and Here, with their output:

* Each program prints the figures below it: exactly, or within six standard errors if
  they are made of noise (each is a false alarm with probability 2e-9).
* Where both should do the same, means without noise are the same vector, noise has the
  same distribution (two-sample Kolmogorov-Smirnov, each with a false alarm once in 10^6
  runs), and so have figures.
* Where something is wrong there, the test shows that it is, and that it is right here.

Programs of TensorFlow Federated and TensorFlow Privacy run in this process. Other
systems have environments of their own, which `make moving` makes. Without one, programs
there are skipped and those here still run. flower-dp cannot be installed, so this file
has its formulas again.
"""

import functools
import json
import math
import pathlib
import re
import subprocess
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
from scipy import stats

from tests import executing

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MOVING = _ROOT / 'docs' / 'moving'
_PAGES = ('pfl_research', 'flower', 'flower_dp', 'tf_privacy', 'tff')
# Systems with their own environments, which requirements/peers defines.
_PEERS = ('pfl_research', 'flower')
_BLOCKS = re.compile(
  r'^### (There|Here)\n\n```python\n(.*?)^```\n\n```json\n(.*?)^```',
  re.MULTILINE | re.DOTALL,
)
# Runs a program and saves the arrays that are compared.
_DRIVER = """
import runpy, sys
import numpy
names = runpy.run_path(sys.argv[1], run_name='__main__')
kept = {name: names[name] for name in ('mean', 'noise') if name in names}
numpy.savez(sys.argv[2], **kept)
"""
# Relative standard errors of a standard deviation of 100,000 and 20,000 numbers.
_ERROR_100K = math.sqrt(1 / (2 * 100_000))
_ERROR_20K = math.sqrt(1 / (2 * 20_000))
_FALSE_ALARM = 1e-6


class Pair(NamedTuple):
  """The claims about a pair of programs."""

  page: str
  title: str  # Its heading on the page.
  # Figures that are equal there and here, and by how much they may differ, relative; 0
  # if only by rounding to four digits.
  equal: dict[str, float]
  noisy: dict[str, float]  # Relative standard errors of figures made of noise.
  there: dict[str, Any]  # Figures that are wrong there, and their values.
  here: dict[str, Any]  # The same figures here.
  noisy_here: Optional[dict[str, float]] = None  # If not the same as `noisy`.
  marks: tuple = ()


_NAN = 'NaN of one client makes the mean NaN'
_LENGTH = 'length of the mean without noise'
_NOISE = 'standard deviation of its noise'
_LARGEST = 'L-infinity of [-4.0, -3.0], clipped to 1.0'
_CUBIC = 'L3 of [4.0, -3.0], clipped to 1.0'
_COUNTS = 'a client with many examples counts'
_KEEPS = 'noise multiplier that holds'
_FROM_1, _FROM_3 = (f'clip norm after 60 rounds from {each}' for each in (1, 3))
_SHARED = 'pairs of tensors with equal noise'
# Relative error of a clip norm settled at the median: a round takes it a fifth of the
# way back, and moves it by a fifth of the noise of the fraction, which is 0.05.
_SETTLED = 0.2 * 0.05 / math.sqrt(1 - 0.8**2)
# The same of a clip norm that runs away for 60 rounds: nothing takes it back.
_RUNNING = 0.2 * 0.05 * math.sqrt(60)
PAIRS = (
  Pair(
    'pfl_research',
    'Gaussian noise for a target',
    equal={'noise multiplier': 1e-3, _LENGTH: 0.0, _NOISE: 9 * _ERROR_100K},
    noisy={_NOISE: _ERROR_100K},
    there={_NAN: True},
    here={_NAN: False},
    marks=(pytest.mark.slow,),
  ),
  Pair(
    'pfl_research',
    'A banded matrix',
    equal={
      'noise multiplier, as measured': 9 * _ERROR_100K,
      'sensitivity that is accounted for': 0.0,
      'epsilon that is promised': 0.0,
    },
    # From 64 rounds of 2,000 numbers; epsilon changes by 1.3 times as much.
    noisy={
      'noise multiplier, as measured': _ERROR_100K,
      'epsilon': 1.5 * _ERROR_100K,
    },
    there={'sensitivity': 2.815, 'epsilon': 5.88},
    here={'sensitivity': 2.0, 'epsilon': 4.0},
    marks=(pytest.mark.slow,),
  ),
  Pair(
    'pfl_research',
    'Clipping in another norm',
    equal={'L2 of [-4.0, -3.0], clipped to 1.0': 0.0},
    noisy={},
    there={_LARGEST: 4.0, _CUBIC: 37 ** (-1 / 3) * 91 ** (1 / 3)},
    here={_LARGEST: 1.0, _CUBIC: 1.0},
  ),
  Pair(
    'flower',
    'A fixed clip norm',
    equal={_LENGTH: 0.0, _NOISE: 9 * _ERROR_100K},
    noisy={_NOISE: _ERROR_100K},
    there={_NAN: True, _COUNTS: 10 * 100 / 109, 'epsilon of four rounds': 4.0637},
    here={_NAN: False, _COUNTS: 1.0, 'epsilon of four rounds': 3.7974},
  ),
  Pair(
    'flower',
    'A clip norm that adapts',
    equal={},
    noisy={_FROM_1: _RUNNING, _FROM_3: _RUNNING},
    # All clients are clipped, or none, so a round changes the norm by exp(0.1).
    there={_FROM_1: math.exp(-6), _FROM_3: 3 * math.exp(6), _KEEPS: 0.5695},
    here={_FROM_1: 2.0, _FROM_3: 2.0, _KEEPS: 1.0},
    noisy_here={_FROM_1: _SETTLED, _FROM_3: _SETTLED},
  ),
  Pair(
    'tf_privacy',
    'A sum with noise',
    equal={
      'noise multiplier of the event': 0.0,
      _LENGTH: 0.0,
      _NOISE: 9 * _ERROR_100K,
    },
    noisy={_NOISE: _ERROR_100K},
    there={_NAN: True},
    here={_NAN: False},
  ),
  Pair(
    'tf_privacy',
    'Noise of the clients, for secure aggregation',
    equal={'noise of the sum over the clip norm': 9 * _ERROR_20K},
    noisy={'noise of the sum over the clip norm': _ERROR_20K},
    there={'event': 'UnsupportedDpEvent', _SHARED: True},
    here={'event': 'SkellamDpEvent', _SHARED: False},
    marks=(pytest.mark.slow,),
  ),
  Pair(
    'tff',
    'Tree aggregation',
    equal={
      'noise of the first mean': 9 * _ERROR_20K,
      'noise of the sum of all means': 9 * _ERROR_20K,
    },
    noisy={
      'noise of the first mean': _ERROR_20K,
      'noise of the sum of all means': _ERROR_20K,
    },
    there={
      'event': 'UnsupportedDpEvent',
      'the key is the time in microseconds': True,
    },
    here={'event': 'GaussianDpEvent'},
  ),
  Pair(
    'tff',
    'A clip norm that adapts',
    equal={
      'noise of the first mean': 9 * _ERROR_20K,
      'clip norm after 60 rounds': 9 * _SETTLED,
    },
    noisy={
      'noise of the first mean': _ERROR_20K,
      'clip norm after 60 rounds': _SETTLED,
    },
    there={},
    here={},
  ),
)


def _name(pair):
  return f'{pair.page}: {pair.title}'


@functools.cache
def _programs(page):
  """Returns each program with its documented figures, by title and side."""
  text = (_MOVING / f'{page}.md').read_text('utf-8')
  programs = {}
  for section in re.split(r'^## ', text, flags=re.MULTILINE)[1:]:
    title = section.split('\n')[0]
    for side, program, output in _BLOCKS.findall(section):
      programs[title, side] = program, json.loads(output)
  return programs


class _Run(NamedTuple):
  figures: dict
  mean: Any
  noise: Any


@functools.cache
def _run_here(page, title, side):
  printed, names = executing.run_text(_programs(page)[title, side][0])
  return _Run(json.loads(printed), names.get('mean'), names.get('noise'))


def _run_of_peer(page, title, folder):
  python = _ROOT / 'build' / 'peers' / page / 'bin' / 'python'
  if not python.exists():
    pytest.skip(f'{page} has an environment of its own; `make moving` makes it')
  program, output, kept = (
    folder / name for name in ('program.py', 'out.json', 'kept.npz')
  )
  program.write_text(_programs(page)[title, 'There'][0], 'utf-8')
  with open(output, 'w', encoding='utf-8') as stdout:
    result = subprocess.run(
      [python, '-c', _DRIVER, program, kept],
      cwd=folder,
      stdout=stdout,
      stderr=subprocess.PIPE,
      text=True,
      timeout=900,
    )
  assert result.returncode == 0, result.stderr[-2000:]
  with np.load(kept) as arrays:
    figures = json.loads(output.read_text('utf-8'))
    return _Run(figures, arrays.get('mean'), arrays.get('noise'))


def _run_there(pair, folder):
  if pair.page in _PEERS:
    return _run_of_peer(pair.page, pair.title, folder)
  return _run_here(pair.page, pair.title, 'There')


def _check_figures(pair, side, figures):
  """Checks that the figures are those documented and claimed."""
  documented = _programs(pair.page)[pair.title, side][1]
  claims, noisy = pair.there, pair.noisy
  if side == 'Here':
    claims = pair.here
    noisy = noisy if pair.noisy_here is None else pair.noisy_here
  assert list(figures) == list(documented)
  for name, value in documented.items():
    # Both have random errors.
    error = 6 * math.sqrt(2) * noisy.get(name, 0.0)
    assert _close(figures[name], value, error), name
  for name, value in claims.items():
    assert _close(figures[name], value, max(1e-4, 6 * noisy.get(name, 0.0))), name


def _close(actual, expected, relative):
  if isinstance(expected, (bool, str)):
    return actual is expected or actual == expected
  return actual == pytest.approx(expected, rel=relative, abs=1.01e-4)


def _samples(noise):
  """Returns samples of independent numbers: round 0, and the sum of all rounds."""
  if noise.ndim == 1:
    return [noise]
  return [noise[0], noise.sum(axis=0)]


# There, the banded matrix is another strategy, whose noise has other covariances.
_SAME_NOISE = [each for each in PAIRS if each.title != 'A banded matrix']


def test_every_program_of_docs_moving_has_a_claim():
  there = {
    (page, title): side
    for page in _PAGES
    for title, side in _programs(page)
    if page != 'flower_dp'
  }
  assert set(there) == {(pair.page, pair.title) for pair in PAIRS}
  for page in _PAGES:
    text = (_MOVING / f'{page}.md').read_text('utf-8')
    alone = text.count('<!-- example: run by tests/documents_test.py -->')
    assert text.count('```python') - alone == len(_programs(page)) > 0
    assert '](names.md#' in text and '](findings.md)' in text
    assert f'({page}.md)' in (_MOVING / 'names.md').read_text('utf-8')


def _marks_here(pair):
  # Clip norms need many rounds to settle.
  return (pytest.mark.slow,) if pair.title == 'A clip norm that adapts' else pair.marks


@pytest.mark.parametrize(
  'pair',
  [pytest.param(pair, id=_name(pair), marks=_marks_here(pair)) for pair in PAIRS],
)
def test_programs_here_print_the_documented_figures(pair):
  run = _run_here(pair.page, pair.title, 'Here')
  _check_figures(pair, 'Here', run.figures)


@pytest.mark.parametrize(
  'pair',
  [
    pytest.param(
      pair,
      id=_name(pair),
      marks=((pytest.mark.slow,) if pair.page in _PEERS else _marks_here(pair)),
    )
    for pair in PAIRS
  ],
)
def test_programs_there_match_programs_here_except_known_faults(pair, tmp_path):
  there = _run_there(pair, tmp_path)
  _check_figures(pair, 'There', there.figures)
  here = _run_here(pair.page, pair.title, 'Here')
  for name, error in pair.equal.items():
    assert _close(there.figures[name], here.figures[name], error), name
  for name in pair.here:
    if name in pair.there:
      assert not _close(there.figures[name], here.figures[name], 0.05), name
  if here.mean is not None:
    # The clip norm is 0.5, and means are rounded to its grid, in float32.
    assert np.abs(there.mean - here.mean).max() < 0.5e-6
  if here.noise is not None and pair in _SAME_NOISE:
    for first, second in zip(_samples(there.noise), _samples(here.noise)):
      assert stats.ks_2samp(first, second, method='asymp').pvalue > _FALSE_ALARM


def _sigma_u(epsilon, delta, clip_norm, exposures, examples):
  """Returns the noise of a client by NbAFL's formula, as in flower-dp."""
  c = math.sqrt(2 * math.log(1.25 / delta))
  return c * exposures * 2 * clip_norm / (examples * epsilon)


def _sigma_d(epsilon, delta, clip_norm, exposures, rounds, clients, examples):
  """Returns the noise of the server by theorem 1 of NbAFL, as in flower-dp."""
  if rounds <= exposures * math.sqrt(clients):
    return 0.0
  c = math.sqrt(2 * math.log(1.25 / delta))
  root = math.sqrt(rounds**2 - exposures**2 * clients)
  return 2 * c * clip_norm * root / (examples * clients * epsilon)


def test_flower_dp_formulas_give_the_noise_here():
  title = 'Noise on clients and server'
  program, there = _programs('flower_dp')[title, 'There']
  assert program.startswith('# Not run here.')
  numbers = (0.8, 1e-5, 1.5)
  assert there == {
    'noise of a client': round(_sigma_u(*numbers, 2, 1000), 4),
    'noise of the server': round(_sigma_d(*numbers, 2, 40, 10, 1000), 4),
    'noise of the server, as it is used': round(
      _sigma_d(*numbers, 40, 40, 10, 1000), 4
    ),
  }
  assert there['noise of the server'] > there['noise of the server, as it is used'] == 0
  documented = _programs('flower_dp')[title, 'Here'][1]
  run = _run_here('flower_dp', title, 'Here')
  assert list(run.figures) == list(documented)
  for name, value in documented.items():
    error = 6 * math.sqrt(2) * _ERROR_100K if name == 'noise of a mean' else 0.0
    assert _close(run.figures[name], value, error), name
  for name in ('noise of a client', 'noise of the server'):
    assert run.figures[name] == there[name]
  expected = math.hypot(
    _sigma_u(*numbers, 2, 1000) / math.sqrt(10), _sigma_d(*numbers, 2, 40, 10, 1000)
  )
  assert stats.kstest(run.noise / expected, 'norm').pvalue > _FALSE_ALARM

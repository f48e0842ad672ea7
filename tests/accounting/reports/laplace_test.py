"""Reports of Laplace noise."""

import html
import re

import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.base import rounding

FLAGS = ('--num_rounds=12', '--min_separation=4', '--target_delta=1e-6')
LINE = 'With delta = 0 it is epsilon = '


def _text(report, form):
  text = rendering.render(report, form)
  return ' '.join(html.unescape(re.sub('<[^>]*>', ' ', text)).split())


@pytest.mark.parametrize('given', ['--target_epsilon=2', '--noise_multiplier=0.5'])
def test_pure_epsilon_is_told_and_never_exceeded(given, tmp_path):
  report = statements.by_flags(tmp_path, '--mechanism=laplace', *FLAGS, given)
  stated = report['guarantee']
  # A client is in three of the rounds.
  pure = 3 / report['mechanism']['noise_multiplier']
  assert stated['pure_epsilon'] == pytest.approx(pure, rel=1e-12)
  curve = [point['epsilon'] for point in stated['epsilon_by_delta']]
  assert curve == sorted(curve) and curve[-1] <= stated['pure_epsilon']
  assert all(
    each['epsilon'] <= stated['pure_epsilon'] for each in stated['accountants']
  )
  if given == '--target_epsilon=2':
    assert 2 * (1 - 1e-4) < stated['epsilon'] <= 2
  said = f'{LINE}{rounding.up(stated["pure_epsilon"])}: pure'
  for form in ('text', 'markdown', 'html'):
    text = _text(report, form)
    assert text.index(said) < text.index('In plain words')
  assert statements.verify(tmp_path, report).differences == ()

"""What reports say of schemes and schedules, in words.

Claims:

* What enforces a scheme is said of every schedule, and who is not to know the seed.
* Of a file of cohorts no hash is told, by which draws could be tried.
* The statement of limits counts rounds between and says what is assumed besides.
"""

import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schemes
from tff_dp_aggregators.accounting.reports import statement

_EPOCHS = strategies.Participation(12, min_separation=4, fixed_epoch=True)


@pytest.mark.parametrize(
  'schema, words',
  [
    (strategies.Participation(12, 3), 'draws a client again only within these limits'),
    (_EPOCHS, 'gives each client the same place in every epoch'),
    (sampling.PoissonSampling(12, 0.2, 3), 'each client by itself, in one of 3 groups'),
    (sampling.FixedSizeSampling(12, 24, 4), 'uniformly without replacement'),
    (sampling.BallsInBins(12, 4), 'the place of each client in the cycle by itself'),
    (sampling.RandomAllocation(12, 3), 'draws the rounds of each client by itself'),
    (sampling.BMinSepSampling(12, 0.2, 3), 'draws each free client by itself'),
  ],
)
def test_what_enforces_a_scheme_is_said(schema, words, tmp_path):
  schedule = sampling.for_scheme(schema, 24, 4, 1)
  said = schemes.enforced_by(schedule)
  assert words in said
  assert ('do not know its seed' in said) == sampling.is_sampled(schema)
  schedule.save(str(tmp_path / 'cohorts.jsonl'))
  replay = sampling.Replay(str(tmp_path / 'cohorts.jsonl'))
  said = schemes.enforced_by(replay)
  assert 'made beforehand' in said and replay.sha256 not in said
  assert ('kept secret, is assumed' in said) == sampling.is_sampled(schema)


@pytest.mark.parametrize(
  'separation, between',
  [(1, '0 rounds between'), (2, '1 round between'), (3, '2 rounds between')],
)
def test_limits_are_told_in_words(separation, between):
  limits = strategies.Participation(6, separation, 3)
  said = f'are at least {separation} apart ({between} them), which leaves'
  if separation == 1:
    said = 'a client may take part in every round; but, an assumption of its own, in '
  assert said in schemes.sentence(limits)
  mechanism = accounting.Mechanism('gaussian', limits, 2.0)
  built = statement.build(reports.Inputs(mechanism, 1e-6), with_curves=False)
  text = rendering.render(built, 'markdown')
  assert f'**min separation**: {separation} ({between})' in text

"""What readers of a report rely on, in whichever format they read it: what is said.

* Every format states the same guarantee, and all that section 5.3 of "How to DP-fy ML"
  (arXiv:2303.00654) asks for.
* Every kind of statement can be written, and says what is particular to it.

`formats_test` is about how it is written.
"""

import dataclasses
import re
import shlex
from importlib import metadata

import numpy as np
import pytest

from tests.accounting.reports import rendered
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import rounding

POISSON = accounting.Mechanism(
  'gaussian', sampling.PoissonSampling(20, sampling_probability=0.01), 1.0
)
FIXED_SIZE = accounting.Mechanism(
  'gaussian', sampling.FixedSizeSampling(2, num_clients=1000, clients_per_round=10), 2.0
)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_every_format_says_what_a_reviewer_asks_for(output_format):
  built = rendered.build(
    clip_norm=0.5,
    enforced_by='the scheduler',
    noise_source='a secret seed',
    command='program --rounds=20',
    files=[{'role': 'ledger', 'path': 'runs/a_b/ledger.jsonl', 'sha256': '0f' * 32}],
  )
  rendered.says(
    built,
    output_format,
    'entral differential privacy',  # Setting.
    'one client with all its data',  # Unit.
    'zeroing out: two data sets are neighbours if',  # Adjacency.
    'all intermediate models',  # What the adversary sees.
    'client updates (model deltas)',  # Data accesses, covered and not.
    'choosing hyperparameters',
    'banded: noise correlated over rounds by a banded matrix',  # Mechanism.
    rendered.MECHANISM.strategy.checksum,
    'noise relative to the clip norm',
    'noise relative to the sensitivity',
    'any two rounds of one client differ by at least',  # Participation.
    'the scheduler',
    'a secret seed',
    'upper bound: Renyi DP',  # Accounting.
    'mu',
    'rho',
    f'dp-accounting {metadata.version("dp-accounting")}',
    'program --rounds=20',  # Verification.
    'runs/a_b/ledger.jsonl',
    '0f' * 32,
    '--verify=report.json',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_the_published_gboard_run_shows_both_epsilons(output_format):
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = statement.build(reports.Inputs(gboard, 1e-10), with_curves=False)
  rendered.says(
    built,
    output_format,
    '(epsilon, delta) = (8.5261, 1e-10)',
    '8.8986',
    'rdp (Renyi differential privacy): moments',
    '314 (313 rounds between)',
    '(squared: 79.000000), exact',
    '0.787561',
  )


def test_the_share_recognised_is_that_of_the_best_test():
  # The best test of N(0, 1) against N(mu, 1) is a threshold.
  rng = np.random.default_rng(1)
  mu = rendered.build()['guarantee']['gdp_mu']
  draws = rng.standard_normal(1_000_000)
  recognised = np.mean(draws + mu > np.quantile(draws, 0.99))
  exact = _recognised(rendered.build())
  assert exact == pytest.approx(100 * recognised, abs=0.3)
  # Epsilon and delta alone say less.
  built = rendered.build()
  built['guarantee']['gdp_mu'] = None
  assert _recognised(built) >= exact


def _recognised(built):
  text = ' '.join(rendering.render(built, 'text').split())
  return float(re.search(r'catch at most ([\d.]+) in 100', text).group(1))


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_a_run_cut_short_says_so(output_format):
  built = rendered.build(cut=True)
  planned = rounding.up(built['run']['epsilon_planned'])
  rendered.says(
    built,
    output_format,
    'This run stopped after 7 of 20 rounds.',
    'rounds 3',
    'a half line of 17 bytes',
    f'sha256:{32 * "c4"}',
    'chacha20, not stated in some rounds',
    f'If on nothing that was computed from clients (a fixed time, a failure): epsilon '
    f'= {rounding.up(built["guarantee"]["epsilon"])}, that of the rounds that ran.',
    f'epsilon = {planned}, that of all rounds planned, whatever the rule was.',
    'The decision to stop early depended on nothing that was computed from clients',
    'in the 7 rounds that ran',
  )
  assert 'stoppedafter' not in rendered.read(rendered.build(), output_format)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_aborted_attempts_and_what_they_spent_are_told(output_format):
  built = rendered.build(cut=True)
  rendered.says(
    built,
    output_format,
    '5, at 2 of the rounds, which spent epsilon = 0',
    'what is not released spends nothing',
  )
  built['run']['aborted_attempts'] = {'count': 0, 'rounds': [], 'epsilon': 0.0}
  assert 'spendsnothing' not in rendered.read(built, output_format)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_drop_outs_and_the_goal_are_told_with_what_the_mean_makes_of_them(
  output_format,
):
  built = rendered.build(cut=True)
  rendered.says(
    built,
    output_format,
    'each that is asked drops out with probability 0.125; '
    'with fewer than 8 reports an attempt is aborted',
    "the mean's denominator stays 20 (clients_per_round), however many report",
  )
  built['run']['reporting']['reporting_goal'] = None
  assert 'reportsanattempt' not in rendered.read(built, output_format)
  built['run']['reporting'] = None
  assert 'dropsout' not in rendered.read(built, output_format)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_what_is_done_before_clipping_is_told(output_format):
  built = rendered.build(cut=True)
  zeroed, cut = 'one that is longer counts as zeros', 'larger ones are cut to it'
  rendered.says(built, output_format, 'of L2 norm 62.5', zeroed, '0.375', cut)
  built['run']['before_clipping']['zeroing_norm'] = None
  assert rendered.plain(zeroed) not in rendered.read(built, output_format)
  rendered.says(built, output_format, cut)
  built['run']['before_clipping'] = None
  assert rendered.plain(cut) not in rendered.read(built, output_format)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_packed_simulation_is_marked_as_that(output_format):
  with_privacy, without = (
    rendered.build(cut=True),
    statement.build_without_privacy(reports.inputs.WithoutPrivacy('packed')),
  )
  for built in (with_privacy, without):
    rendered.says(built, output_format, 'packed', 'a technique of simulation')
  with_privacy['run']['simulation'] = None
  one_by_one = statement.build_without_privacy(
    reports.inputs.WithoutPrivacy('one_by_one')
  )
  for built in (with_privacy, one_by_one):
    assert 'techniqueofsimulation' not in rendered.read(built, output_format)
  rendered.says(one_by_one, output_format, 'one by one', 'simulated', 'no security')


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_one_round_is_not_called_rounds(output_format):
  built = rendered.build(cut=True)
  built['run']['rounds_completed'] = 1
  rendered.says(
    built,
    output_format,
    'in the one round that ran, if no result of clients decided when to stop',
  )
  only = strategies.Participation(1)
  rendered.says(
    rendered.build(accounting.Mechanism('gaussian', only, 1.0)),
    output_format,
    'in the one round that is planned.',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_the_report_of_a_run_names_the_json_report_beside_it(output_format):
  path = 'runs/my run/config.json'
  files = ({'role': 'config', 'path': path, 'sha256': 32 * '0f'},)
  built = rendered.build(command='program --run_dir', files=files)
  rendered.says(
    built,
    output_format,
    "report.json in the run's directory is this report",
    shlex.join(['--verify=runs/my run/report.json']),
  )
  assert 'Savedasreport.json' not in rendered.read(built, output_format)
  rendered.says(
    rendered.composition(),
    output_format,
    'Saved as report.json',
    '--verify=report.json',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
@pytest.mark.parametrize(
  'norms, says',
  [
    ((0.5, 0.5), '0.5 in all rounds that ran'),
    ((0.25, 0.75), '0.25 to 0.75 in the rounds that ran'),
    ((None, None), 'none in some rounds: contributions were not clipped'),
  ],
)
def test_the_clip_norms_of_a_ledger_are_stated(output_format, norms, says):
  pays = 'the mechanism is not one that pays for adaptive clipping'
  for stddev in (None, 5.0):
    built = rendered.build(
      dataclasses.replace(rendered.MECHANISM, clipped_count_stddev=stddev), cut=True
    )
    built['run']['clip_norms'] = dict(zip(('smallest', 'largest'), norms))
    rendered.says(built, output_format, says)
    varies = norms[0] != norms[1] and stddev is None
    assert (rendered.plain(pays) in rendered.read(built, output_format)) == varies


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_what_is_assumed_is_told_from_what_is_possible(output_format):
  gboard = accounting.Mechanism(
    'tree', strategies.Participation.from_rounds_between(2000, 313, 6), 7.0
  )
  built = rendered.build(gboard, enforced_by='a timer', cap_enforced_by='a counter')
  rendered.says(
    built,
    output_format,
    'which leaves 7 of them possible; and, an assumption of its own, a client takes '
    'part in at most 6. What enforces the separation: a timer (stated, not verified). '
    'What enforces the limit of 6: a counter (stated, not verified).',
    'possible by separation',
    'the most of 2000 rounds that are so far apart',
    'assumed besides',
    'at most 6',
    'separation enforced by',
    'at most 6 enforced by',
  )
  built = rendered.build(enforced_by='a timer', cap_enforced_by='a counter')
  assert 'assumedbesides:nofurtherlimitisassumed' in rendered.read(built, output_format)
  assert 'acounter' not in rendered.read(built, output_format)


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_without_noise_there_is_no_guarantee(output_format):
  built = rendered.build(accounting.Mechanism('tree', rendered.PARTICIPATION, 0.0))
  rendered.says(built, output_format, 'Guarantee: none (the noise is zero)', 'infinite')
  seen = rendered.read(built, output_format)
  assert 'differentialprivacyforeachclient' not in seen
  assert 'Itcovers' not in seen
  assert 'None' not in seen


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_without_a_mechanism_there_is_no_guarantee(output_format):
  built = statement.build_without_privacy()
  rendered.says(built, output_format, 'Guarantee: none.', 'epsilon is infinite')


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_an_infinite_epsilon_with_noise_is_not_said_to_be_without(output_format):
  built = rendered.build()
  built['guarantee']['epsilon'] = None
  rendered.says(
    built, output_format, 'Guarantee: none (epsilon is infinite at delta = 1e-06)'
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_the_sensitivity_is_exact_or_a_bound(output_format):
  built = rendered.build()
  rendered.says(built, output_format, '(squared: 4.000000), exact')
  assert 'upperbound,soepsilon' not in rendered.read(built, output_format)
  built['mechanism']['sensitivity_kind'] = 'bound'
  rendered.says(
    built,
    output_format,
    '(squared: 4.000000), an upper bound',
    'known by an upper bound, so epsilon is one as well',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_adaptive_clipping_shows_its_share_of_the_noise(output_format):
  mechanism = dataclasses.replace(rendered.MECHANISM, clipped_count_stddev=5.0)
  rendered.says(
    rendered.build(mechanism),
    output_format,
    'noise multiplier of the updates',
    rounding.down(mechanism.values_noise_multiplier),
    '5 clients',
    'the norms of client updates',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_sampled_schemas_say_what_they_assume(output_format):
  rendered.says(
    rendered.build(POISSON),
    output_format,
    'add or remove',
    'Poisson sampling: each round draws',
    'sampling probability',
    'was among those that trained',
    'on a random sample of the clients',
    'who took part in which round',
  )
  rendered.says(
    rendered.build(FIXED_SIZE),
    output_format,
    'replace one',
    'draws 10 of 1000 clients',
    'which of two sets of data one client had',
    'Twice that of C',
  )


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_a_composition_states_all_together_and_each_run(output_format):
  built = rendered.composition()
  together, alone = built['guarantee'], built['parts'][0]['guarantee']
  assert together['epsilon'] > alone['epsilon']
  rendered.says(
    built,
    output_format,
    f'({rounding.up(together["epsilon"])}, 1e-06) differential privacy for each '
    'client, in all 2 runs together',
    rounding.up(alone['epsilon'], 6),
    'The decision to stop early in run 2 depended on nothing',
    'program --twice',
  )
  text = rendering.render(built, 'text')
  for number in (1, 2):
    for title in ('mechanism', 'participation', 'accounting'):
      assert f'\n## Run {number}: {title}\n' in text
  assert text.count('## How to verify') == 1
  nested = statement.compose([built, rendered.build()])
  assert '## Run 1.2: mechanism' in rendering.render(nested, 'text')


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_target_and_round_log_are_shown(output_format):
  built = rendered.build(
    target_epsilon=5.0,
    found='noise_multiplier',
    participation_source={
      'num_rounds': 20,
      'first_completion': '2024-01-01T00:00:00',
      'waiting': {
        'min_wait_hours': 24.0,
        'closest': [3, 8],
        'assumptions': ['A.', 'B.'],
      },
      'notes': [],
      'observed': None,
    },
  )
  rendered.says(
    built,
    output_format,
    'epsilon 5; the least noise that keeps it was found',
    'round log: first',  # The name goes on beside the value.
    '2024-01-01T00:00:00',
    '24',
    '3, 8',
    'A. B.',
  )
  seen = rendered.read(built, output_format)
  assert 'roundlog:numrounds' not in seen  # Stands above.
  assert 'observed' not in seen


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_the_commit_is_shown_and_whether_files_were_changed(output_format):
  built = rendered.build()
  built['software'] = {
    'tff_dp_aggregators': '0.1.0',
    'commit': 10 * '0123',
    'modified': True,
    'numpy': '1.25.2',
  }
  shown = 'by tff_dp_aggregators 0.1.0 (commit ' + 10 * '0123'
  rendered.says(
    built, output_format, f'{shown}, with uncommitted changes), numpy 1.25.2.'
  )
  built['software']['modified'] = False
  rendered.says(built, output_format, f'{shown}), numpy 1.25.2.')


@pytest.mark.parametrize('name', accounting.mechanism.names())
def test_every_mechanism_is_described(name):
  built = rendered.build(statements.mechanism_of(name, rendered.PARTICIPATION, 1.0))
  for output_format in rendered.PEOPLE:
    rendered.says(built, output_format, f'{name}: ', '(arXiv:')


def test_a_banner_is_green_only_where_what_keeps_the_limits_is_stated():
  mechanism = statements.mechanism_of('tree', strategies.Participation(9, 3), 4.0)
  nobody = statement.build(reports.Inputs(mechanism, 1e-6))
  inputs = reports.Inputs(mechanism, 1e-6, enforced_by='the scheduler')
  stated = statement.build(inputs)
  said = 'nobody states what does'
  assert said not in rendering.render(stated, 'html')
  page = rendering.render(nobody, 'html')
  assert said in page and 'class="guarantee open"' in page


@pytest.mark.parametrize('stated, is_open', [(None, True), ('a scheduler', False)])
def test_nobody_states_what_keeps_the_limits_that_a_log_shows(stated, is_open):
  source = {'basis': 'observed', 'num_rounds': 9}
  by_log = inputs_lib.enforced_by_log(source, has_ledger=False, stated=stated)
  built = statement.build(
    reports.Inputs(
      statements.mechanism_of('tree', strategies.Participation(9, 3), 4.0),
      1e-6,
      enforced_by=by_log,
      participation_source=source,
    )
  )
  page = rendering.render(built, 'html')
  assert ('class="guarantee open"' in page) == is_open

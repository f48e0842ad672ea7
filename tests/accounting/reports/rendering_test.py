"""Tests of what rendered reports say and how they are written."""

import base64
import decimal
import re
import xml.etree.ElementTree
from importlib import metadata

import numpy as np
import pytest

from tests.accounting.reports import rendered
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import rounding


def test_report_has_the_facts_that_a_reviewer_needs():
  built = rendered.build(
    clip_norm=0.5,
    enforced_by='the scheduler',
    noise_source='a secret seed',
    command='program --rounds=20',
    files=[{'role': 'ledger', 'path': 'runs/a_b/ledger.jsonl', 'sha256': '0f' * 32}],
  )
  rendered.assert_says(
    built,
    'entral differential privacy',  # Setting.
    'one client with all its data',  # Unit.
    'zeroing out: two data sets are neighbours if',  # Adjacency.
    'all intermediate models',  # What the adversary sees.
    'choosing hyperparameters',  # Data accesses that are not covered.
    rendered.MECHANISM.strategy.checksum,
    'any two rounds of one client differ by at least',  # Participation.
    'the scheduler',
    'a secret seed',
    'upper bound: Renyi DP',  # Accounting.
    f'dp-accounting {metadata.version("dp-accounting")}',
    'program --rounds=20',  # Verification.
    'runs/a_b/ledger.jsonl',
    '0f' * 32,
    '--verify=report.json',
  )


def test_recognised_share_is_that_of_the_best_test():
  # The best test of N(0, 1) against N(mu, 1) is a threshold.
  rng = np.random.default_rng(1)
  mu = rendered.build()['guarantee']['gdp_mu']
  draws = rng.standard_normal(1_000_000)
  recognised = np.mean(draws + mu > np.quantile(draws, 0.99))
  stated = _recognised(rendered.build())
  assert stated == pytest.approx(100 * recognised, abs=0.3)
  # Epsilon and delta alone give a weaker bound.
  built = rendered.build()
  built['guarantee']['gdp_mu'] = None
  assert _recognised(built) >= stated


def _recognised(built):
  text = ' '.join(rendering.render(built, 'text').split())
  return float(re.search(r'catch at most ([\d.]+) in 100', text).group(1))


def test_report_of_stopped_run_says_that_it_stopped():
  built = rendered.build(cut=True)
  planned = rounding.up(built['run']['epsilon_planned'])
  completed = rounding.up(built['stopped']['epsilon_completed'])
  rendered.assert_says(
    built,
    'This run stopped after 7 of 20 rounds.',
    'a half line of 17 bytes',
    '5, at 2 of the rounds, which spent epsilon = 0',
    f'sha256:{32 * "c4"}',
    'chacha20, not stated in some rounds',
    f'epsilon = {completed}, that of the rounds that ran.',
    f'epsilon = {planned}, that of all rounds planned, whatever the rule was. The '
    'guarantee above is this number, because nobody states what fixed the number',
  )
  built['stopped']['rounds_fixed_by'] = 'the budget'
  rendered.assert_says(
    built,
    'that of the rounds that ran. The guarantee above is this number.',
    'What fixed it: the budget (stated, not verified).',
  )
  assert 'stoppedafter' not in rendered.read(rendered.build())


def test_report_without_noise_or_finite_epsilon_has_no_guarantee():
  noiseless = rendered.build(accounting.Mechanism('tree', rendered.PARTICIPATION, 0.0))
  rendered.assert_says(noiseless, 'Guarantee: none (the noise is zero)', 'infinite')
  assert 'differentialprivacyforeachclient' not in rendered.read(noiseless)
  without = statement.build(sources.Inputs())
  rendered.assert_says(without, 'Guarantee: none.', 'epsilon is infinite')
  for built in (noiseless, without):
    assert not built['guarantee']['is_private']
    assert built['guarantee']['epsilon'] is built['guarantee']['zcdp_rho'] is None
  built = rendered.build()
  built['guarantee']['epsilon'] = None
  rendered.assert_says(built, 'Guarantee: none (epsilon is infinite at delta = 1e-06)')


def test_composition_states_total_and_each_run():
  built = rendered.composition()
  total, single = built['guarantee'], built['parts'][0]['guarantee']
  assert total['epsilon'] > single['epsilon']
  rendered.assert_says(
    built,
    f'({rounding.up(total["epsilon"])}, 1e-06) differential privacy for each '
    'client, in all 2 runs together',
    rounding.up(single['epsilon'], 6),
    'The decision to stop early in run 2 rested on nothing',
    'program --twice',
    '## Run 2: mechanism',
  )


def test_banner_is_open_unless_enforcement_of_limits_is_stated():
  mechanism = statements.mechanism_of('tree', strategies.Participation(9, 3), 4.0)
  unstated = statements.build(mechanism)
  stated = statements.build(mechanism, enforced_by='the scheduler')
  warning = 'nobody states what does'
  page = rendering.render(stated, 'html')
  assert warning not in page and 'class="guarantee"' in page
  page = rendering.render(unstated, 'html')
  assert warning in page and 'class="guarantee open"' in page
  capped = statements.mechanism_of('tree', strategies.Participation(9, 3, 2), 4.0)
  with_cap = statements.build(capped, enforced_by='the scheduler')
  page = rendering.render(with_cap, 'html')
  assert f'the number of participations that is said below; {warning}' in page
  assert 'class="guarantee open"' in page


def test_pure_epsilon_is_stated_and_never_exceeded():
  report = statements.build(statements.mechanism_of('laplace', statements.LIMITS, 0.5))
  stated = report['guarantee']
  # A client is in three of the rounds.
  pure = 3 / report['mechanism']['noise_multiplier']
  assert stated['pure_epsilon'] == pytest.approx(pure, rel=1e-12)
  curve = [point['epsilon'] for point in stated['epsilon_by_delta']]
  assert curve == sorted(curve) and curve[-1] <= stated['pure_epsilon']
  assert all(
    each['epsilon'] <= stated['pure_epsilon'] for each in stated['accountants']
  )
  text = f'With delta = 0 it is epsilon = {rounding.up(stated["pure_epsilon"])}: pure'
  rendered.assert_says(report, text)


# Joint mechanisms.

LIMITS = rendered.PARTICIPATION
BOUND = 'upper bound: the exact privacy curve of a Gaussian mechanism'
EXACT = 'exact: the privacy curve of a Gaussian mechanism'


def _joint(*kinds):
  parts = [
    accounting.JointPart(
      f'p{number}', f'{number}', accounting.Mechanism(kind, LIMITS, 9.0), 0.5
    )
    for number, kind in enumerate(kinds)
  ]
  return accounting.JointMechanism(tuple(parts))


# The four contributions of a client may cancel each other.
_RANDOM = np.tril(np.random.default_rng(0).uniform(-1, 1, (20, 20)), -1) + np.eye(20)
BOUNDED = accounting.Mechanism(
  'file', LIMITS, 9.0, strategy=strategies.Dense(20, _RANDOM)
)


def test_report_consistently_calls_epsilon_exact_or_a_bound():
  equal = rendered.build(_joint('banded', 'banded'), with_curves=True)
  mixed = rendered.build(_joint('tree', 'banded'), with_curves=True)
  exact, bound = rendered.read(equal), rendered.read(mixed)
  assert rendered.plain(EXACT) in exact and rendered.plain(BOUND) not in exact
  assert rendered.plain(BOUND) in bound and rendered.plain(EXACT) not in bound
  assert 'nosmallerepsilonholds' in exact and 'sothismuisanupperbound' not in exact
  assert 'nosmallerepsilonholds' not in bound and 'sothismuisanupperbound' in bound
  # A bound on the sensitivity makes epsilon a bound as well.
  assert BOUNDED.sensitivity_kind == 'bound'
  built = rendered.build(BOUNDED)
  (listed,) = [e for e in built['guarantee']['accountants'] if e['name'] == 'exact']
  assert listed['kind'].startswith(BOUND)
  rendered.assert_says(built, 'so that a smaller epsilon may hold', BOUND)
  # So do other releases, which leave no delta to the runs where they state as much.
  releases = [model.OtherRelease('survey', 0.5, 1e-7)]
  rendered.assert_says(
    statements.compose([rendered.build()], other_releases=releases),
    'epsilon (exact, with what other releases state)',
    'so that a smaller epsilon may hold of all',
    'At a delta that is not above the sum of those of other releases',
  )


@pytest.mark.parametrize('bound, is_said', [(0.0, True), (3.9, True), (5.0, False)])
def test_low_canary_bounds_are_called_no_evidence(bound, is_said):
  bound_of_method = {'method': 'one_run', 'curve': 'any', 'epsilon': bound}
  bound_of_method |= {'num_guesses': 10, 'num_correct': 9, 'contradicts': False}
  audit = {'num_canaries': 20, 'num_inserted': 9, 'num_rounds': 5, 'confidence': 0.95}
  audit |= {'bounds': [bound_of_method], 'estimate': None}
  text = (
    rendering._environment()
    .get_template('canaries.md.j2')
    .module.section(
      {
        'canaries': audit,
        'run': {'rounds_completed': 5},
        'guarantee': {'epsilon': 8.0, 'delta': 1e-5},
      }
    )
  )
  assert ('no evidence of strength' in text) == is_said


def _of_log(**fields):
  numbers = {'num_rounds': 9, 'min_separation': 3, 'max_participations': 3}
  return {**numbers, 'first_round': 0, 'notes': [], **fields}


@pytest.mark.parametrize('stated, is_open', [(None, True), ('a scheduler', False)])
def test_observed_limits_are_open_without_stated_enforcement(stated, is_open):
  source = _of_log(basis='observed')
  by_log = sources.enforced_by_log(source, has_ledger=False, stated=stated)
  mechanism = statements.mechanism_of('tree', strategies.Participation(9, 3), 4.0)
  built = statements.build(mechanism, enforced_by=by_log, participation_source=source)
  page = rendering.render(built, 'html')
  assert ('class="guarantee open"' in page) == is_open


# The format of the text.

HOSTILE = '<script>alert(1)</script> | a *b* _c_ `d` [e](f) \\ &amp;\n| # g'


@pytest.mark.parametrize('build', [rendered.build, rendered.cut, rendered.composition])
def test_html_and_text_say_the_same_as_markdown(build):
  built = build()
  seen, written = rendered.read(built, 'html'), rendering.render(built, 'markdown')
  assert rendering.render(built, 'text') == written
  pieces = [
    rendered.unescaped(piece.strip('# -'))
    for line in written.splitlines()
    for piece in re.split(r'(?<!\\)\|', line)
  ]
  assert len(pieces) > 80
  for piece in pieces:
    assert rendered.plain(piece) in seen, piece


def test_rounding_is_never_to_the_favourable_side():
  rng = np.random.default_rng(0)
  values = 10 ** rng.uniform(-12, 12, 2000)
  close = [np.nextafter(8.5261, up) for up in (0, 9)] + [8.5261, 1.0, 1e-3, 9.9999999]
  for value in (*values, *close):
    value = float(value)
    for decimals in (1, 4, 6):
      up, down = rounding.up(value, decimals), rounding.down(value, decimals)
      true = decimal.Decimal(value)
      assert decimal.Decimal(down) <= true <= decimal.Decimal(up)
      unit = max(decimal.Decimal(10) ** -decimals, true * decimal.Decimal('0.00101'))
      assert decimal.Decimal(up) - decimal.Decimal(down) <= unit


@pytest.mark.parametrize('output_format', rendered.READABLE_FORMATS)
def test_epsilon_just_above_a_round_number_is_rounded_up(output_format):
  built = rendered.build()
  built['guarantee']['epsilon'] = 2.0000000001
  built['mechanism']['noise_multiplier'] = 1.9999999
  claims = ('(epsilon, delta) = (2.0001, 1e-06)', '1.999999')
  rendered.assert_says(built, *claims, output_format=output_format)


def test_delta_is_shown_exactly():
  for value in (1e-10, 1e-5, 1 / 3, 1.2345678e-7):
    assert float(rounding.exact(value)) == value


def test_hostile_values_are_escaped_and_break_no_table():
  hostile = rendered.build(
    enforced_by=HOSTILE,
    cap_enforced_by=HOSTILE,
    noise_source=HOSTILE,
    command=f'program {HOSTILE}',
    participation_source=_of_log(notes=[HOSTILE], time_format=HOSTILE),
    files=[{'role': HOSTILE, 'path': HOSTILE, 'sha256': '0' * 64}],
  )
  text = rendering.render(hostile, 'markdown')
  tables = re.findall(r'(?:^\|.*\n)+', text, flags=re.MULTILINE)
  assert len(tables) == 3
  for table in tables:
    columns = {len(re.findall(r'(?<!\\)\|', line)) for line in table.splitlines()}
    assert len(columns) == 1, table
  assert '<script>' not in re.sub(r'^    .*$', '', text, flags=re.MULTILINE)
  assert '\n    | # g' in text  # The command's second line is in its block.
  page = rendering.render(hostile, 'html')
  assert '<script' not in page
  assert rendered.plain(HOSTILE) in rendered.plain(''.join(rendered.Page(page).words))


def test_page_loads_nothing_and_embeds_its_plots():
  page = rendering.render(rendered.build(with_curves=True), 'html')
  parsed = rendered.Page(page)
  assert not {'script', 'link', 'iframe', 'object', 'base', 'form'} & set(parsed.tags)
  assert '@import' not in page
  assert 'url(' not in page
  links = [value for name, value in parsed.attributes if name in ('src', 'href')]
  assert len(links) == 4
  for link in links:
    head, data = link.split(',')
    assert head == 'data:image/svg+xml;base64'
    image = base64.b64decode(data).decode()
    assert xml.etree.ElementTree.fromstring(image).tag.endswith('svg')
  assert ('name', 'viewport') in parsed.attributes


@pytest.mark.parametrize('output_format', ['text', 'html', 'json'])
def test_control_characters_are_escaped(output_format):
  moving = 'a\x1b[2J\u202eb'
  file = {'role': 'a', 'path': moving, 'sha256': '0' * 64}
  hostile = statements.build(enforced_by=moving, command=moving, files=(file,))
  written = rendering.render(hostile, output_format)
  assert 'u202e' in written
  assert not {'\x1b', '\u202e'} & set(written)

"""How reports are written, whatever they say."""

import base64
import decimal
import re
import xml.etree.ElementTree

import numpy as np
import pytest

from tests.accounting.reports import rendered
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import inputs
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import rounding

HOSTILE = '<script>alert(1)</script> | a *b* _c_ `d` [e](f) \\ &amp;\n| # g'


@pytest.mark.parametrize('build', [rendered.build, rendered.cut, rendered.composition])
def test_the_page_and_the_text_say_what_the_markdown_says(build):
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


@pytest.mark.parametrize('output_format', rendered.PEOPLE)
def test_an_epsilon_just_above_a_round_number_is_not_shown_as_that(output_format):
  built = rendered.build()
  built['guarantee']['epsilon'] = 2.0000000001
  built['mechanism']['noise_multiplier'] = 1.9999999
  claims = ('(epsilon, delta) = (2.0001, 1e-06)', '1.999999')
  rendered.says(built, *claims, output_format=output_format)


def test_delta_is_shown_exactly():
  for value in (1e-10, 1e-5, 1 / 3, 1.2345678e-7):
    assert float(rounding.exact(value)) == value


def _hostile():
  return rendered.build(
    enforced_by=HOSTILE,
    cap_enforced_by=HOSTILE,
    noise_source=HOSTILE,
    command=f'program {HOSTILE}',
    participation_source={'note': HOSTILE, 'waiting': {'assumptions': [HOSTILE]}},
    files=[{'role': HOSTILE, 'path': HOSTILE, 'sha256': '0' * 64}],
  )


def test_values_break_no_markdown_table():
  text = rendering.render(_hostile(), 'markdown')
  tables = re.findall(r'(?:^\|.*\n)+', text, flags=re.MULTILINE)
  assert len(tables) == 3
  for table in tables:
    columns = {len(re.findall(r'(?<!\\)\|', line)) for line in table.splitlines()}
    assert len(columns) == 1, table
  assert '<script>' not in re.sub(r'^    .*$', '', text, flags=re.MULTILINE)
  assert '\n    | # g' in text  # The command's second line is of its block.


def test_values_are_text_in_a_page():
  page = rendering.render(_hostile(), 'html')
  assert '<script' not in page
  assert rendered.plain(HOSTILE) in rendered.plain(''.join(rendered.Page(page).words))


def test_a_page_loads_nothing_and_shows_its_plots():
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
def test_no_text_moves_a_cursor(output_format):
  hostile = inputs.Inputs(
    accounting.Mechanism('tree', strategies.Participation(12, 4), 5.0),
    1e-6,
    enforced_by='a\x1b[2J\u202eb',
    command='program a\x1b[2J\u202eb',
    files=({'role': 'a', 'path': 'a\x1b[2J\u202eb', 'sha256': '0' * 64},),
  )
  written = rendering.render(statement.build(hostile, with_curves=False), output_format)
  assert 'u202e' in written
  assert not {'\x1b', '\u202e'} & set(written)

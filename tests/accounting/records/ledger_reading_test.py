"""Tests that changes of a ledger's file are detected when it is read."""

import hashlib
import json
import os
import pathlib
import re

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent
changed = ledgers.changed


def without(line, name):
  data = json.loads(line)
  del data[name]
  return json.dumps(data).encode() + b'\n'


_NO_ENTRY = 'not a ledger entry: '


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda a, b, c: [a, b[:40] + b'\n', c], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b, c[:-1] + b' x\n'], f'line 3: {_NO_ENTRY}.*Extra data'),
    (lambda a, b, c: [a, b'[' * 100000 + b'\n'], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [b'\xef\xbb\xbf' + a], f'line 1: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b'{"round": 1}\n'], 'line 2: .*missing .*cohort_requested'),
    (lambda a, b, c: [changed(a, note='x')], "line 1: .*unexpected .*'note'"),
    (lambda a, b, c: [a[:-2] + b', "round": 0}\n'], 'line 1: .*a name is repeated'),
    (lambda a, b, c: [changed(a, epsilon=float('nan'))], 'line 1: .*NaN is not a num'),
    (lambda a, b, c: [changed(a, round=False)], 'line 1: .*round must not be False'),
    (lambda a, b, c: [changed(a, cohort_reported=-1)], 'line 1: .*cohort_reported'),
    (lambda a, b, c: [changed(a, delta=1.0)], 'line 1: .*delta must be between'),
    (lambda a, b, c: [changed(a, time='now')], "line 1: .*time must not be 'now'"),
    (lambda a, b, c: [changed(a, time='2024-01-01T00:00:00Z')], 'line 1: .*time must'),
    (lambda a, b, c: [changed(a, clip_norm=None)], 'line 1: .*clip_norm is None and'),
    (
      lambda a, b, c: [changed(a, noise_multiplier=0)],
      'line 1: .*noise_multiplier 0, but the event is Gaussian',
    ),
    (
      lambda a, b, c: [changed(a, previous_line_sha256=64 * '0')],
      'line 1: previous_line_sha256 is 0000.*, but the line before',
    ),
    (
      lambda a, b, c: [a, without(b, 'previous_line_sha256')],
      'line 2: .*missing .*previous_line_sha256',
    ),
    (lambda a, b, c: [a, b, b, c], 'line 3: .* changed, removed or inserted'),
    (lambda a, b, c: [b, c], 'line 1: expected round 0, .* found round 1'),
    (lambda a, b, c: [a, changed(b, round=0)], 'line 2: round 0 was released already'),
    (
      lambda a, b, c: [a, b, changed(b, result_checksum='sha256:' + 64 * '1')],
      r'line 3: round 1 was released already with other content \(result_checksum\)',
    ),
    (lambda a, b, c: [a, changed(b, event={})], 'line 2: .*with a known type'),
    (
      lambda a, b, c: [a, changed(b, event=events.to_json(ledgers.SAMPLED))],
      'line 2: the event is PoissonSampled.* before it are Gaussian: all rounds of',
    ),
    (lambda a, b, c: [a, b, changed(c, event=None)], 'line 3: not a ledger entry'),
    (
      lambda a, b, c: [a, changed(b, noise_multiplier=3.0), c],
      'line 2: noise_multiplier is 3.0 in round 1 and was 2.0 in round 0',
    ),
    (
      lambda a, b, c: [a, b, changed(c, strategy_checksum=None)],
      "line 3: strategy_checksum is None in round 2 and was 'sha256:1234567890'",
    ),
    (lambda a, b, c: [a, changed(b, delta=1e-6), c], 'line 2: delta is 1e-06'),
    (lambda a, b, c: [a, changed(b, epsilon=None)], 'line 2: epsilon is None, but'),
    (
      lambda a, b, c: [a, changed(b, effective_noise_multiplier=None)],
      'line 2: effective_noise_multiplier is None, but the events of rounds 0 to 1',
    ),
    (
      lambda a, b, c: [a, changed(b, event={'type': 'NonPrivateDpEvent'})],
      'line 2: effective_noise_multiplier is .* compose to 0.0',
    ),
  ],
)
def test_read_error_names_the_line_and_the_reason(path, change, message):
  ledgers.write(path, 0, 1, 2)
  broken = b''.join(change(*ledgers.lines_of(path)))
  pathlib.Path(path).write_bytes(broken)
  with pytest.raises(ValueError, match=message) as error:
    ledger.read(path)
  assert str(error.value).startswith(f'{path}, line ')


def test_lines_without_result_checksum_stay_readable(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    written = [ledgers.append(writer), ledgers.append(writer)]
  old_lines = [without(line, 'result_checksum') for line in ledgers.lines_of(path)]
  pathlib.Path(path).write_bytes(b''.join(ledgers.rehashed(old_lines)))
  read = ledger.read(path).entries
  assert ledgers.untimed(read) == ledgers.untimed(written)


@pytest.mark.parametrize(
  'noise_multiplier, delta',
  [(0.01, 1e-10), (1.0, 0.3), (1.0, 1e-100), (300.0, 1e-3), (1e5, 1e-10), (1e9, 0.3)],
)
def test_read_refuses_figures_off_by_a_billionth_or_understated(
  path, noise_multiplier, delta
):
  with ledger.LedgerWriter(path, delta) as writer:
    entry = ledgers.append(writer, Gaussian(noise_multiplier))
  (line,) = ledgers.lines_of(path)
  stated = {
    'epsilon': entry.epsilon,
    'effective_noise_multiplier': entry.effective_noise_multiplier,
  }

  def accepted(name, factor):
    change = changed(line, **{name: stated[name] * factor})
    pathlib.Path(path).write_bytes(change)
    try:
      ledger.read(path)
    except ValueError as e:
      assert f'line 1: {name} is' in str(e)
      return False
    return True

  effective = 'effective_noise_multiplier'
  assert accepted(effective, 1) and accepted(effective, 1 - 9e-10)
  assert not accepted(effective, 1 - 1.1e-9) and not accepted(effective, 1 + 2e-12)
  assert accepted('epsilon', 1)
  if not entry.epsilon:
    pathlib.Path(path).write_bytes(changed(line, epsilon=1e-9))
    with pytest.raises(ValueError, match='epsilon is 1e-09'):
      ledger.read(path)
    return
  assert accepted('epsilon', 1 + 9e-10) and not accepted('epsilon', 1 + 1.1e-9)
  mu = 1 / noise_multiplier
  least = gaussian.epsilon_of(mu * (1 - 1e-12), delta) / entry.epsilon
  assert least > 1 - 1e-10
  assert not accepted('epsilon', least - 1e-13) and not accepted('epsilon', 1 - 1e-9)


# Fields that may be changed in a line that is not compared with another one.
_FREE = {'time', 'cohort_requested', 'cohort_reported', 'clip_norm', 'result_checksum'}


def _write_banded(path):
  strategy, participation = ledgers.MECHANISMS['banded']
  each, _ = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in (0, 0, 1):
      ledgers.append(
        writer,
        Gaussian(each[number]),
        round=number,
        cohort_requested=100,
        cohort_reported=90 + number,
        strategy_checksum=strategy.checksum,
        result_checksum=ledger.checksum_of([each[number]]),
        noise_generator='philox',
      )
  return ledger.read(path)


def _with_changed_digits(lines):
  """Yields the index of each line and all lines, after changing a digit of it."""
  for index, line in enumerate(lines):
    for match in re.finditer(rb'\d', line):
      digit = b'%d' % ((int(match[0]) + 1) % 10)
      mutant = line[: match.start()] + digit + line[match.end() :]
      yield index, [*lines[:index], mutant, *lines[index + 1 :]]


@pytest.mark.parametrize('is_rehashed', [False, True])
def test_read_detects_changed_digits_that_matter(path, is_rehashed):
  original = _write_banded(path)
  spent = accountants.epsilon(original.total_event, ledgers.DELTA)
  lines = ledgers.lines_of(path)
  undetected_fields, undetected, num_detected = set(), set(), 0
  for index, mutated in _with_changed_digits(lines):
    if is_rehashed:
      try:
        mutated = ledgers.rehashed(mutated)
      except ValueError:
        continue  # The line is no longer JSON.
    if mutated == lines:
      continue  # The digit was in a hash, which is computed again.
    ledgers.replace_file(path, b''.join(mutated))
    try:
      altered = ledger.read(path)
    except ValueError as e:
      assert path in str(e)
      num_detected += 1
      continue
    undetected.add(index)
    assert altered.head != original.head  # A reader who knows the head detects it.
    # An undetected change alters nothing that epsilon depends on by 1e-9.
    altered_spent = accountants.epsilon(altered.total_event, ledgers.DELTA)
    assert altered_spent == pytest.approx(spent, rel=1e-9)
    assert altered.repeated == original.repeated
    for old, new in zip(original.entries, altered.entries):
      for name in ('epsilon', 'effective_noise_multiplier'):
        assert getattr(new, name) == pytest.approx(getattr(old, name), rel=2e-9)
      for name in ('round', 'delta', 'noise_multiplier', 'strategy_checksum'):
        assert getattr(new, name) == getattr(old, name)
      differing = {n for n in _FREE if getattr(old, n) != getattr(new, n)}
      # Round 0 was released twice: its two lines are compared.
      assert differing <= {'time'} or new.round != 0
      undetected_fields |= differing
  assert num_detected > 150
  assert undetected_fields == _FREE
  assert undetected == (set(range(len(lines))) if is_rehashed else {len(lines) - 1})


def test_read_detects_flipped_bits_before_the_last_line(path):
  head, undetected = ledgers.write(path, 0, 1).head, set()
  data = pathlib.Path(path).read_bytes()
  start_of_last_line = len(data) - len(ledgers.lines_of(path)[-1])
  for position in range(len(data)):
    mutant = bytearray(data)
    mutant[position] ^= 1 << position % 8
    ledgers.replace_file(path, mutant)
    try:
      ledger.read(path)
      undetected.add(position)
    except ValueError:
      continue
    with pytest.raises(ValueError, match='changed or removed'):
      ledger.read(path, head)
  assert undetected and min(undetected) >= start_of_last_line


@pytest.mark.parametrize(
  'change',
  [
    {'result_checksum': 'sha256:' + 64 * '7'},
    {'noise_generator': 'xkcd221'},
    {'noise_key_tag': '-7'},
    {'strategy_checksum': 'sha256:7'},
  ],
  ids=lambda change: next(iter(change)),
)
def test_undetected_changes_of_last_line_are_as_documented(path, change):
  (name,) = change
  is_constant = name in ('noise_multiplier', 'strategy_checksum', 'noise_key_tag')
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    head_of_single = writer.head
    single = ledgers.lines_of(path)
    ledgers.release(writer, 1)
    head = writer.head
  first, last = ledgers.lines_of(path)
  for lines, known_head, is_detected in (
    ([changed(single[0], **change)], head_of_single, False),
    ([first, changed(last, **change)], head, is_constant),
    ([changed(first, **change), last], head, True),
    (ledgers.rehashed([changed(first, **change), last]), head, is_constant),
  ):
    pathlib.Path(path).write_bytes(b''.join(lines))
    if is_detected:
      with pytest.raises(ValueError, match=f'{path}, line 2'):
        ledger.read(path)
    else:
      ledger.read(path)
      with pytest.raises(ValueError, match='changed or removed'):
        ledger.read(path, known_head)


# Heads.


def test_every_head_is_number_of_lines_and_last_hash_and_stays_accepted(path):
  heads = [ledger.Head()]
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    assert writer.head == ledger.Head() == ledger.read(path).head
    for count, number in enumerate((0, 1, 1, 2), start=1):
      entry = ledgers.release(writer, number)
      lines = ledgers.lines_of(path)
      expected = hashlib.sha256(lines[-1]).hexdigest()
      assert writer.head == (count, expected) == ledger.read(path).head
      assert entry.previous_line_sha256 == (
        hashlib.sha256(lines[-2] if count > 1 else b'').hexdigest()
      )
      heads.append(writer.head)
  for head in heads:
    assert ledger.read(path, head).head == heads[-1]
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=head) as writer:
      assert writer.head == heads[-1]


def test_head_detects_removed_lines(path):
  head = tuple(ledgers.write(path, 0, 1).head)  # A checkpoint restores a plain tuple.
  data = pathlib.Path(path).read_bytes()
  for length in [*range(0, len(data), 9), len(data) - 1]:
    pathlib.Path(path).write_bytes(data[:length])
    complete = data[:length].count(b'\n')
    message = f'has {complete} complete lines, but had 2 once'
    with pytest.raises(ValueError, match=message):
      ledger.read(path, head, as_resumed=True)
    with pytest.raises(ValueError, match=message):
      ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=head)
    assert pathlib.Path(path).read_bytes() == data[:length]
  assert os.listdir(os.path.dirname(path)) == ['ledger.jsonl']


@pytest.mark.parametrize('lines', [-1, 0, 1])
def test_read_refuses_head_with_another_hash(path, lines):
  ledgers.write(path, 0)
  with pytest.raises(ValueError, match='changed or removed'):
    ledger.read(path, ledger.Head(lines, 64 * '0'))

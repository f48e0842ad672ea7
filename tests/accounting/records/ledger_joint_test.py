"""Tests of ledgers of joint mechanisms, whose lines have the numbers of each part."""

import json

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.records import ledger

_LIMITS = strategies.Participation(8, min_separation=3)


def _joint(second, noise_multiplier):
  return accounting.JointMechanism(
    (
      accounting.JointPart('a', '0', accounting.Mechanism('tree', _LIMITS, 5.0), 0.3),
      accounting.JointPart(
        'b', '*', accounting.Mechanism(second, _LIMITS, noise_multiplier), 1.0
      ),
    )
  )


MECHANISMS = {'gaussian': _joint('gaussian', 2.0), 'laplace': _joint('laplace', 9.0)}


def _append(writer, mechanism, event, **changes):
  return ledgers.append(writer, event, **{**mechanism.line(None), **changes})


def _write(path, mechanism, rounds=8):
  with ledger.LedgerWriter(path, 1e-5) as writer:
    return [
      _append(writer, mechanism, event) for event in mechanism.round_events[:rounds]
    ]


@pytest.mark.parametrize('name', MECHANISMS)
@pytest.mark.parametrize('rounds', [5, 8])
def test_total_event_composes_the_events_of_all_parts(name, rounds, path):
  mechanism = MECHANISMS[name]
  written = _write(path, mechanism, rounds)
  read = ledger.read(path)
  assert list(read.entries) == written
  has_epsilon = {entry.epsilon is not None for entry in written}
  assert has_epsilon == {name == 'gaussian'}
  spent = accountants.epsilon(read.total_event, 1e-5)
  expected = accountants.epsilon(
    dp_accounting.ComposedDpEvent(list(mechanism.round_events[:rounds])), 1e-5
  )
  assert spent == pytest.approx(expected, rel=1e-6)
  if rounds == 8:
    assert spent == pytest.approx(mechanism.epsilon(1e-5), rel=1e-9)


def test_lines_of_gaussian_parts_state_privacy_spent_so_far(path):
  written = _write(path, MECHANISMS['gaussian'])
  assert written[-1].epsilon == pytest.approx(
    MECHANISMS['gaussian'].epsilon(1e-5), rel=1e-9
  )
  for entry, so_far in zip(written, MECHANISMS['gaussian'].noise_multipliers_so_far):
    assert entry.effective_noise_multiplier == pytest.approx(so_far, rel=1e-9)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'clip_norm': 1.0}, 'each of the parts has its own'),
    ({'parts': None}, 'noise_multiplier must be a finite number'),
    (
      {'parts': [{'name': 'a', 'clip_norm': 1.0, 'noise_multiplier': 0.0}] * 2},
      r'parts must not be .*> 0.0 - at .*noise_multiplier',
    ),
    (
      {'parts': [{'name': 'a', 'clip_norm': 1.0, 'noise_multiplier': 2.0}] * 2},
      'names of their own',
    ),
    (
      {
        'parts': [
          {'name': 'a', 'clip_norm': 0.3, 'noise_multiplier': 5.0},
          {'name': 'b', 'clip_norm': 0.9, 'noise_multiplier': 2.0},
        ]
      },
      'parts is .* was .*another mechanism has its own ledger',
    ),
  ],
)
def test_append_refuses_invalid_or_changed_parts(changes, message, path):
  mechanism = MECHANISMS['gaussian']
  with ledger.LedgerWriter(path, 1e-5) as writer:
    _append(writer, mechanism, mechanism.round_events[0])
    with pytest.raises(ValueError, match=message):
      _append(writer, mechanism, mechanism.round_events[1], **changes)
    assert writer.rounds == 1


@pytest.mark.parametrize('first', ['gaussian', 'laplace'])
def test_append_refuses_another_kind_of_noise_in_later_rounds(first, path):
  events = {
    'gaussian': dp_accounting.GaussianDpEvent(2.0),
    'laplace': dp_accounting.LaplaceDpEvent(9.0),
  }
  both = dp_accounting.ComposedDpEvent(list(events.values()))
  second = next(event for name, event in events.items() if name != first)
  with ledger.LedgerWriter(path, 1e-5) as writer:
    ledgers.append(writer, events[first])
    for event in (second, both):
      with pytest.raises(ValueError, match='all rounds of a ledger are of one mech'):
        ledgers.append(writer, event)


def test_read_detects_changed_noise_multiplier_of_a_part(path):
  _write(path, MECHANISMS['gaussian'], 3)
  lines = ledgers.lines_of(path)
  changed = json.loads(lines[1])
  changed['parts'][0]['noise_multiplier'] = 6.0
  lines[1] = json.dumps(changed)
  ledgers.replace_file(path, b''.join(ledgers.rehashed(lines)))
  with pytest.raises(ValueError, match='line 2: parts is'):
    ledger.read(path)

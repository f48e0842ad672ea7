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


@pytest.mark.parametrize('name', MECHANISMS)
@pytest.mark.parametrize('rounds', [5, 8])
def test_total_event_composes_the_events_of_all_parts(name, rounds, path):
  mechanism = MECHANISMS[name]
  read = ledgers.write_of(path, mechanism, rounds, 1e-5)
  has_epsilon = {entry.epsilon is not None for entry in read.entries}
  assert has_epsilon == {name == 'gaussian'}
  spent = accountants.epsilon(read.total_event, 1e-5)
  expected = accountants.epsilon(
    dp_accounting.ComposedDpEvent(list(mechanism.round_events[:rounds])), 1e-5
  )
  assert spent == pytest.approx(expected, rel=1e-6)
  if rounds == 8:
    assert spent == pytest.approx(mechanism.epsilon(1e-5), rel=1e-9)
  if name == 'gaussian':  # Its lines state what was spent so far.
    assert read.entries[-1].epsilon == pytest.approx(spent, rel=1e-9)
    for entry, so_far in zip(read.entries, mechanism.noise_multipliers_so_far):
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
    ledgers.append_of(writer, mechanism, mechanism.round_events[0])
    with pytest.raises(ValueError, match=message):
      ledgers.append_of(writer, mechanism, mechanism.round_events[1], **changes)
    assert writer.rounds == 1


def test_read_detects_changed_noise_multiplier_of_a_part(path):
  ledgers.write_of(path, MECHANISMS['gaussian'], 3, 1e-5)
  lines = ledgers.lines_of(path)
  changed = json.loads(lines[1])
  changed['parts'][0]['noise_multiplier'] = 6.0
  lines[1] = json.dumps(changed)
  ledgers.replace_file(path, b''.join(ledgers.rehashed(lines)))
  with pytest.raises(ValueError, match='line 2: parts is'):
    ledger.read(path)

"""Tests of ids of clients: each has one spelling, and no two clients share one."""

import numpy as np
import pytest

from tff_dp_aggregators.base import ids


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    (' 7 ', '7'),
    ('7.0', '7'),
    ('-7.00', '-7'),
    ('-0.0', '0'),
    ('7.000000e+00', '7'),
    ('1.25e2', '125'),
    ('9007199254740991.0', '9007199254740991'),
    # These are not floats, so they are only stripped and normalised.
    ('007', '007'),
    ('12e7', '12e7'),
    ('123456789012345678901', '123456789012345678901'),
    ('e', 'e'),
    ('٧.٠', '٧.٠'),
    ('Zoe\u0301', 'Zoé'),
  ],
)
def test_of_text_gives_each_id_one_spelling(text, expected):
  assert ids.of_text(text) == expected
  assert ids.of_text(expected) == expected


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('0.5', 'a fraction'),
    ('5e-1', 'a fraction'),
    ('1.0e-99999999999999999999', 'a fraction'),
    ('1e+05', 'last digits are not written'),
    ('1.5e5', 'last digits are not written'),
    ('1.0e99999999999999999999', 'a fraction'),
    ('9007199254740992.0', 'stands for several'),
  ],
)
def test_of_text_refuses_fractions_and_inexact_numbers(text, message):
  with pytest.raises(ValueError, match=message):
    ids.of_text(text)


def test_of_number_accepts_only_exact_whole_numbers():
  assert [ids.of_number(number) for number in (7.0, -0.0, 1e5)] == ['7', '0', '100000']
  for number in (0.5, float('inf'), float('nan'), 2.0**53):
    with pytest.raises(ValueError, match='a fraction|not finite|stands for several'):
      ids.of_number(number)
  with pytest.raises(ValueError, match='16777216'):
    ids.of_number(2.0**24, exact=2**24)


def test_of_client_takes_any_kind_of_id_and_refuses_missing_ones():
  for value in ('7', ' 7.0', b'7', 7, 7.0, np.int64(7), np.float32(7)):
    assert ids.of_client(value) == '7'
  for value in (None, True, ['a'], {}, float('nan'), 'NA', ' ', b'\xff'):
    with pytest.raises(ValueError, match='the client'):
      ids.of_client(value)

"""Ids of clients: one way to write each, and no two clients of one id."""

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
    # No floats, so nothing else is meant by them.
    ('007', '007'),
    ('12e7', '12e7'),
    ('123456789012345678901', '123456789012345678901'),
    ('e', 'e'),
    ('٧.٠', '٧.٠'),
    ('Zoe\u0301', 'Zoé'),
  ],
)
def test_an_id_has_one_way_to_be_written(text, expected):
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
def test_what_may_be_another_client_is_no_id(text, message):
  with pytest.raises(ValueError, match=message):
    ids.of_text(text)


def test_numbers_that_were_read_are_ids_if_they_are_whole_and_exact():
  assert [ids.of_number(each) for each in (7.0, -0.0, 1e5)] == ['7', '0', '100000']
  for value in (0.5, float('inf'), float('nan'), 2.0**53):
    with pytest.raises(ValueError):
      ids.of_number(value)
  with pytest.raises(ValueError, match='16777216'):
    ids.of_number(2.0**24, exact=2**24)

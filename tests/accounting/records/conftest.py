"""A fixture for tests of ledgers: the path of the ledger."""

import pytest


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'ledger.jsonl')

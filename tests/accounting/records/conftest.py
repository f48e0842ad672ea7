"""Where a test's ledger is."""

import pytest


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'ledger.jsonl')

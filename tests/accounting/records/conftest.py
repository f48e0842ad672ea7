"""The path of a test's ledger."""

import pytest


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'ledger.jsonl')

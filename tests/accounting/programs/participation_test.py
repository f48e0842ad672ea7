"""What `participation --help` shows of a log is a log."""

import re

from tests import executing
from tff_dp_aggregators.accounting.programs import participation


def test_the_log_that_help_shows_is_read(tmp_path):
  shown = executing.execute(participation, '--help').stdout
  (log,) = re.findall(r'^    round,.*\n(?:    .*\n)+', shown, re.MULTILINE)
  path = tmp_path / 'rounds.csv'
  path.write_text(re.sub('^    ', '', log, flags=re.MULTILINE), encoding='utf-8')
  result = executing.execute(participation, f'--round_log={path}')
  assert result.returncode == 0, result.stderr
  assert re.search(r'^rounds +2$', result.stdout, re.MULTILINE)

"""What TensorFlow and TFF print at their start stays out of sight, and only that."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_SHOW_LEVEL = f"""
import os
from tff_dp_aggregators import learning
print(os.environ['{_LEVEL}'])
"""
_WARN = """
import warnings
from tff_dp_aggregators import learning
for module in ('google.rpc', 'other'):
  warnings.warn_explicit(
    'pkg_resources is deprecated as an API. See', UserWarning, f'{module}.py', 1, module
  )
"""
_COMPUTE = """
from tff_dp_aggregators import learning
import tensorflow as tf
import tensorflow_federated as tff
with learning.runtime.local_runtime():
  print(tff.tensorflow.computation(lambda: tf.constant(1) + 2)())
"""


def _run(program, *options, **environment):
  kept = {name: value for name, value in os.environ.items() if name != _LEVEL}
  return subprocess.run(
    [sys.executable, *options, '-c', program],
    cwd=ROOT,
    env={**kept, **environment},
    text=True,
    capture_output=True,
    timeout=120,
  )


def test_a_level_that_is_set_counts():
  assert _run(_SHOW_LEVEL).stdout == '1\n'
  assert _run(_SHOW_LEVEL, **{_LEVEL: '0'}).stdout == '0\n'


def test_one_warning_of_one_module_is_hidden_unless_users_ask_for_it():
  result = _run(_WARN)
  assert result.returncode == 0
  assert 'other.py' in result.stderr and 'google' not in result.stderr
  asked = _run(_WARN, '-W', 'error::UserWarning')
  assert asked.returncode == 1 and 'pkg_resources' in asked.stderr


@pytest.mark.slow
def test_a_computation_prints_no_notice():
  result = _run(_COMPUTE)
  assert (result.returncode, result.stdout) == (0, '3\n'), result.stderr
  # Time, level, and where it is from.
  logged = re.findall(r'^\S+ \S+: ([IWEF]) \S+\]', result.stderr, re.MULTILINE)
  assert 'I' not in logged
  assert 'pkg_resources' not in result.stderr
  verbose = _run(_COMPUTE, **{_LEVEL: '0'})
  assert re.search(r'^\S+ \S+: I \S+\]', verbose.stderr, re.MULTILINE)

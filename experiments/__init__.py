"""Programs that simulate private federated learning.

They are the commands `tff-dp-simulate` and so on. The package has this folder as
`tff_dp_aggregators.experiments`, through a link in a checkout; `python -m
experiments.simulate` runs from the repository's root as well. So imports in here are
relative.
"""

import os
import sys

from tff_dp_aggregators.base import tff_extra

try:
  tff_extra.require('This program', 'tensorflow', 'tensorflow_federated')
except ModuleNotFoundError as e:
  print(f'error: {e}', file=sys.stderr)
  raise SystemExit(2) from None

# Silences TensorFlow's start-up notices, before `tff_dp_aggregators.learning` shows
# messages that only TensorFlow calls errors.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

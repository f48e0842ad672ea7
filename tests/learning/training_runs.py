"""Small trainings that tests run, stop, kill and compare.

Run as a program, it trains: its arguments are the directory, the number of rounds and
the seconds between checkpoints.
"""

import csv
import dataclasses
import json
import pathlib
import shutil
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

NUM_ROUNDS = 12
PARTICIPATION = strategies.Participation(NUM_ROUNDS, min_separation=3)


def clients(num_clients=12, factor=1.0, sizes=(2, 4)):
  """Returns linear data of two features by id; batches of 2 need no padding."""
  by_id = {}
  for number in range(num_clients):
    rng = np.random.default_rng(number)
    size = sizes[number % len(sizes)]
    x = rng.normal(size=[size, 2]).astype(np.float32)
    y = factor * (x @ np.array([[1.0], [-2.0]], np.float32))
    by_id[f'client {number}'] = (x, y.astype(np.float32))
  return by_id


def evaluation_data():
  return clients()['client 3']


def model(loss_factor=1.0, inputs=2, outputs=1, has_bias=False):
  """Returns linear regression that starts at zero."""
  biases = [np.zeros([outputs], np.float32)] if has_bias else []

  @tf.function
  def predict(weights, x, training):
    del training
    (kernel, *biases), _ = weights
    return x @ kernel + sum(biases)

  @tf.function
  def loss(output, label, sample_weight=None):
    losses = tf.reduce_mean(tf.square(output - label), axis=1)
    if sample_weight is not None:
      losses *= sample_weight
    return loss_factor * tf.reduce_mean(losses)

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([inputs, outputs], np.float32), *biases), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(tf.TensorSpec([None, inputs]), tf.TensorSpec([None, outputs])),
  )


def random_model():
  """Returns the same model with half of the inputs dropped at random."""
  deterministic = model()

  @tf.function
  def predict(weights, x, training):
    x = tf.nn.dropout(x, 0.5) if training else x
    return deterministic.predict_on_batch(weights, x, training)

  return tff.learning.models.FunctionalModel(
    initial_weights=deterministic.initial_weights,
    predict_on_batch_fn=predict,
    loss_fn=deterministic.loss,
    input_spec=deterministic.input_spec,
  )


# Class and field of each grouped argument, by an unambiguous name.
_FIELDS = {
  **{
    field.name: (name, field.name)
    for name, kind in (
      ('local', learning.ClientTraining),
      ('server', learning.Server),
      ('run', learning.RunOptions),
    )
    for field in dataclasses.fields(kind)
  },
  'client_optimizer': ('local', 'optimizer'),
  'server_optimizer': ('server', 'optimizer'),
  'test_data': ('test', 'data'),
  'test_metrics': ('test', 'metrics'),
  'evaluate_every': ('test', 'every'),
}


def grouped(**kwargs):
  """Returns arguments of `learning.train`, with fields grouped into their classes."""
  groups = {'local': {}, 'server': {}, 'run': {}, 'test': {'data': None}}
  scale = kwargs.pop('simulated_cohort_scale', None)
  for name in [name for name in kwargs if name in _FIELDS]:
    group, field = _FIELDS[name]
    groups[group][field] = kwargs.pop(name)
  if scale is not None:
    kwargs['mechanism'] = learning.SimulatedCohort(kwargs['mechanism'], scale)
  return {
    'local': learning.ClientTraining(**groups['local']),
    'server': learning.Server(**groups['server']),
    'run': learning.RunOptions(**groups['run']),
    'test': learning.Evaluation(**groups['test']),
    **kwargs,
  }


def train(run_dir, **changes):
  """Trains with the default `arguments`, except for the changes."""
  return learning.train(**grouped(**arguments(run_dir, **changes)))


def arguments(run_dir, **changes):
  """Returns default arguments for `grouped`, with changes."""
  return {
    'model': model(),
    'clients': clients(),
    'mechanism': mechanism(),
    'run_dir': str(run_dir),
    'delta': 1e-3,
    'clip_norm': 0.5,
    'clients_per_round': 3,
    'batch_size': 2,
    'seed': 7,
    'noise_seed': None if changes.get('mechanism', 0) is None else 11,
    'test_data': evaluation_data(),
    **changes,
  }


def results(run_dir):
  """Returns the results of a run, without times and paths."""
  run_dir = pathlib.Path(run_dir)
  with open(run_dir / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  metrics = [
    {
      name: value
      for name, value in row.items()
      if 'seconds' not in name and 'per_second' not in name
    }
    for row in rows
  ]
  lines = (run_dir / 'ledger.jsonl').read_text().splitlines()
  ledger = [json.loads(line) for line in lines]
  for line in ledger:
    del line['time'], line['previous_line_sha256']
  with np.load(run_dir / 'model.npz') as arrays:
    weights = {name: arrays[name].tobytes() for name in arrays.files}
  return {'metrics': metrics, 'ledger': ledger, 'weights': weights}


def shared_report(run_dir, folder):
  """Copies the files that a run shares to a folder, as if to another machine.

  Returns the path of the report, and its contents, in which paths no longer exist.
  """
  shutil.copytree(run_dir / 'share', folder)
  path = folder / 'report.json'
  report = json.loads(path.read_text('utf-8'))
  for file in report['verification']['files']:
    file['path'] = str(folder / 'gone' / pathlib.Path(file['path']).name)
  report['verification']['command'] = None
  path.write_text(json.dumps(report), 'utf-8')
  return path, report


def mechanism(num_rounds=NUM_ROUNDS):
  """Returns a banded mechanism with little noise."""
  participation = strategies.Participation(num_rounds, min_separation=3)
  return accounting.Mechanism('banded', participation, noise_multiplier=0.1)


def schedule(num_rounds=NUM_ROUNDS):
  """Returns a schedule with dropouts, so that one round in five is tried again."""
  return sampling.RandomEligible(
    strategies.Participation(num_rounds, min_separation=3),
    num_clients=12,
    clients_per_round=3,
    seed=7,
    dropouts=sampling.Dropouts(rate=0.3, seed=4),
    reporting_goal=2,
  )


class Killed(BaseException):
  """Simulates a kill of the process, which no code catches."""


def act_in(nth_round, action):
  """Returns metrics that call a function in the nth round a program runs; 0: never."""
  evaluations = []

  def metric(labels, outputs):
    del labels, outputs
    # The first call precedes all rounds.
    if evaluations and len(evaluations) == nth_round:
      action()
    evaluations.append(None)
    return 0.0

  return {'acting': metric}


def kill_in(nth_round):
  """Returns metrics that raise `Killed` in the nth round a program runs; 0: never."""

  def kill():
    raise Killed

  return act_in(nth_round, kill)


if __name__ == '__main__':
  train(
    sys.argv[1],
    mechanism=mechanism(int(sys.argv[2])),
    schedule=schedule(int(sys.argv[2])),
    checkpoint_seconds=float(sys.argv[3]),
  )

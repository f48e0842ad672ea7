r"""Predicts on new data with a model that tff-dp-simulate trained.

    tff-dp-predict --run_dir=runs/visits --data=new.csv \
      --output=predictions.csv
    tff-dp-predict --run_dir=runs/visits --export=served

The data are preprocessed as the training data were. The output has one line per row, in
the order of the file: the client, if the data name it, the prediction, and for classes
its probability; for text, the next token. If the data have the label, the metric of the
run is printed as well. --export writes a TensorFlow SavedModel that takes raw columns
and does not need this package.
"""

import csv
import dataclasses
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import progress

from .data import preprocessing as preprocessing_lib
from .data import problems
from .options import data as data_options

if TYPE_CHECKING:  # Flags are checked without TensorFlow.
  from . import predicting

# Flags for data that are written differently from the training data.
_WRITING = ('missing_values', 'separator', 'decimal', 'thousands')
_DATA_FLAGS = ('output', 'data_format', 'data_split', *_WRITING)


def groups() -> tuple[program.Group, ...]:
  own = (
    ('run_dir', 'Directory of a run on --data of your own.'),
    (
      'data',
      'File or folder with the columns of the training data. The label may be missing.',
    ),
    ('output', 'New CSV file to write.'),
    ('data_split', 'Split of a database, as for training.'),
    ('export', 'New folder for a SavedModel.'),
  )
  rows = (program.Flag(name, str, text) for name, text in own)
  return (('Flags', (*rows, *data_options.WRITING)),)


def main(values: flags.FlagValues) -> int:
  _check(values)
  data = None
  preprocessing = preprocessing_lib.of_run(values.run_dir)
  if values.data is not None:
    # Errors in the data are reported before TensorFlow is loaded.
    given = {
      name: values[name].value for name in _WRITING if values[name].value is not None
    }
    if 'missing_values' in given:
      given['missing_values'] = tuple(filter(None, given['missing_values']))
    if 'separator' in given:
      given['separator'] = data_options.separator(values)
    data = dataclasses.replace(preprocessing, **given).read(
      values.data,
      values.data_format,
      values.data_split,
      os.path.dirname(os.path.abspath(values.output)),
    )
    unused = f'; not used: {problems.listed(data.unused)}' if data.unused else ''
    progress.say(f'{values.data}: {len(data)} rows{unused}.')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # TFF's dependencies warn about each other.
    from . import predicting
  predictor = predicting.Predictor(values.run_dir)
  if data is not None:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator='\n')
    for number, columns in enumerate(predictor.columns(data)):
      if number == 0:
        writer.writerow(columns)
      writer.writerows(zip(*columns.values()))
    new_files.write_new(values.output, content.getvalue())
    progress.say(f'Predictions are in {values.output}.')
    _print_metric(predictor, data)
  if values.export is not None:
    specs = predicting.export(predictor, values.export)
    inputs = ', '.join(
      f'{column} ({each.dtype.name})'
      if each.name == column
      else f'{column} ({each.dtype.name}; {each.name} as an argument)'
      for column, each in specs.items()
    )
    progress.say(
      f'The SavedModel in {values.export} takes {inputs}. It has the preprocessing, '
      'which no noise protects.'
    )
  return 0


def _check(values: flags.FlagValues) -> None:
  for name, is_missing in (
    ('run_dir', values.run_dir is None),
    ('data and --output, or --export', values.data is None and values.export is None),
    ('output', values.data is not None and values.output is None),
  ):
    if is_missing:
      raise program.WrongUsage(f'give --{name} as well; see --help.')
  if values.data is None:
    program.refuse(values, _DATA_FLAGS, 'goes with --data; give that as well.')
  elif not os.path.exists(values.data):
    raise program.WrongUsage(f'--data={values.data}: there is no such file or folder.')
  if values.export:
    values.export = values.export.rstrip(os.sep) or os.sep  # It is a folder.
  program.check_new(values, 'output', 'export')


def _print_metric(
  predictor: 'predicting.Predictor', data: preprocessing_lib.NewData
) -> None:
  if not data.has_labels:
    progress.say('There are no labels to compare them with.')
    return
  try:
    name, measured = predictor.measure(data)
  except ValueError as e:  # For example if the data have one class only.
    progress.say(f'They cannot be compared with the labels: {e}', sys.stderr)
    return
  progress.say(f'Of {len(data)} rows: {name} {measured:.4f}.')


PROGRAM = program.Program('tff-dp-predict', __doc__ or '', groups, main)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()

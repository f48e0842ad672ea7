"""Flags for the data, how they are split into clients, and what is held out."""

import dataclasses
import os
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import ids

from ..data import columns
from ..data import formats

Flag = program.Flag
# Flags that go only with data without clients.
_SPLIT_FLAGS = ('partition', 'dirichlet_alpha', 'num_clients')
_FEATURE_FLAGS = (
  *('label_column', 'feature_columns', 'one_hot_columns', 'embedding_columns'),
  *('class_weights', 'label_kind', 'scaling', 'label_scaling'),
)
_TEXT_FLAGS = ('text_unit', 'sequence_length', 'vocabulary_size', 'vocabulary')
_CELL_FLAGS = ('missing_values', 'decimal', 'thousands')
_HELD_OUT = ('test_clients', 'test_examples', 'test_data')
# How files, and values in them, are written.
_WRITING = ('data_format', 'missing_values', 'separator', 'decimal', 'thousands')
# In a resumed run, files may have been moved. Their contents are compared.
MAY_DIFFER = ('data', 'test_data', 'vocabulary', 'data_scratch', 'cache_dir')
PARTITIONS = ('iid', 'label_skew', 'quantity_skew')
_SCALINGS = ('standard', 'none')


@dataclasses.dataclass(frozen=True)
class Data:
  # Clients that the examples are dealt out to; `None` if the data have clients.
  num_clients: Optional[int] = program.flag(
    'Clients in the population.', within='[1, inf)'
  )
  # NumPy's Dirichlet sampler does not terminate with a tiny alpha.
  dirichlet_alpha: float = program.flag(
    'Skew of labels or sizes between clients (arXiv:1909.06335); less is more skewed.',
    default=0.5,
    within='[0.001, inf)',
  )
  seed: int = 1  # Seed of the split, --split_seed.
  # The user's own data; `None` for those of a task.
  files: Optional['Files'] = None
  cache_dir: Optional[str] = program.flag(
    'Folder that the loaders of tff.simulation.datasets keep. Nothing is downloaded.'
  )


@dataclasses.dataclass(frozen=True)
class Files:
  path: str  # `--data`.
  data_format: Optional[str] = program.flag(
    'Format of the files of --data. Default: by the ending of their names.',
    list(formats.FORMATS),
  )
  data_split: Optional[str] = program.flag(
    'Split to read from a database in the format of TensorFlow Federated.'
  )
  client_column: Optional[str] = program.flag(
    'Column of --data that names the client of each row.'
  )
  label_column: Optional[str] = program.flag(
    'Columns of --data to predict: numbers, classes, or tags that are 0 or 1.'
  )
  feature_columns: Optional[tuple[str, ...]] = program.flag(
    'Columns of --data to predict from. Default: all others.'
  )
  one_hot_columns: tuple[str, ...] = program.flag(
    'Columns of --data whose numbers are names, to get one feature per value.', empty=()
  )
  embedding_columns: tuple[str, ...] = program.flag(
    'Columns of --data with many values, which get vectors of --embedding_size.',
    empty=(),
  )
  text_column: Optional[str] = program.flag(
    'Column of --data with text, whose next character or word is predicted.'
  )
  label_kind: Optional[str] = program.flag(
    'Whether labels are classes or numbers. Default: classes if they are text or few '
    'whole numbers; tags if all of several labels are 0 or 1.',
    ['class', 'number'],
  )
  class_weights: tuple[str, ...] = program.flag(
    'Weight of each class in the loss, such as no:1,yes:5, with 1 for others; or '
    'balanced, the same total weight for all classes, from exact numbers of examples.',
    empty=(),
  )
  scaling: Optional[str] = program.flag(
    'How to scale numeric features. standard: to mean 0 and standard deviation 1, '
    'without noise. Default: standard for columns, none for images and the like.',
    _SCALINGS,
  )
  label_scaling: Optional[str] = program.flag(
    'How to scale numeric labels: by default standard, as for features. Metrics stay '
    'in the unit of the labels.',
    _SCALINGS,
  )
  missing_values: Optional[tuple[str, ...]] = program.flag(
    'Texts for a missing value of --data, which is an error; empty for none. Default: '
    f'{", ".join(each for each in ids.MISSING if each)}.'
  )
  separator: Optional[str] = program.flag(
    'Separator of the fields of CSV, or tab. Default: a comma, and a tab in .tsv.'
  )
  decimal: Optional[str] = program.flag(
    'Decimal sign of numbers in text files such as CSV. Default: a point.',
    list(columns.DECIMALS),
  )
  thousands: Optional[str] = program.flag(
    'Separator of groups of digits of numbers in text files; empty for none.',
    ['', *columns.THOUSANDS],
  )
  # `None` if the data have clients.
  partition: Optional[str] = program.flag(
    'How to deal rows without clients out to --num_clients: evenly (the default), with '
    'skewed labels, or in skewed sizes.',
    PARTITIONS,
  )
  test_clients: Optional[float] = program.flag(
    'Share of the clients to hold out for testing, who never take part; no privacy is '
    'claimed for them. Default: 0.1 if the data have clients.',
    within='(0, 1)',
  )
  test_examples: Optional[float] = program.flag(
    "Share of each client's examples to hold out for testing; no privacy is claimed "
    'for them. Default: 0.2 if the data have no clients.',
    within='(0, 1)',
  )
  test_data: Optional[str] = program.flag(
    'File or folder like --data with test examples. No privacy is claimed for them.'
  )
  test_split: Optional[str] = program.flag(
    'Split of --test_data to test on, or of --data without --test_data.'
  )
  text_unit: Optional[str] = program.flag(
    'Tokens of texts. Default: character.', ['character', 'word']
  )
  sequence_length: Optional[int] = program.flag(
    'Number of tokens in an example of text. Default: 80 characters, or 20 words.',
    within='[1, inf)',
  )
  vocabulary_size: Optional[int] = program.flag(
    'Size of the vocabulary. Default: 256 characters, or 10000 words.',
    within='[1, inf)',
  )
  vocabulary: Optional[str] = program.flag(
    'File with a public vocabulary instead of one from the data: one word per line, or '
    'all characters as they are.'
  )
  # Folder for anonymous temporary files.
  scratch: str = dataclasses.field(default='.', compare=False)


WRITING = tuple(row for row in program.rows_of(Files) if row.name in _WRITING)


def rows() -> tuple[Flag, ...]:
  known = '; '.join(f'{each.name}, {each.summary}' for each in formats.FORMATS.values())
  return (
    Flag(
      'data',
      str,
      'Your own data: a file, or a folder with a file or a folder for each client. '
      f'Formats: {known}.',
    ),
    Flag(
      'data_scratch',
      str,
      'Folder for temporary files while --data is read. Default: that of the run.',
    ),
    *program.rows_of(Files),
    *program.rows_of(Data),
    Flag(
      'split_seed',
      int,
      'Seed of what is held out, and of the split into clients; separate from --seed.',
      default=1,
      within='[0, inf)',
    ),
  )


def from_flags(values: flags.FlagValues) -> Data:
  given = program.read(Data, values)
  if values.data is None:
    names = ('data_scratch', *(row.name for row in program.rows_of(Files)))
    program.refuse(values, names, 'goes with --data; give that as well.')
  else:
    program.refuse(values, ('cache_dir',), 'is for tasks that read such files.')
    given['files'] = files = _files(values)
    if files.partition is None:
      given['num_clients'] = None
    elif not values['num_clients'].present:
      raise ValueError(
        '--num_clients is missing: the data have no clients, so say how many their '
        'rows are dealt out to, or name the --client_column.'
      )
  return Data(seed=values.split_seed, **given)


def _files(values: flags.FlagValues) -> Files:
  path, test_path = values.data, values.test_data or values.data
  for name in ('data', 'test_data'):
    stated = values[name].value
    # Pipes and the like can be read only once.
    if stated is not None and not (os.path.isfile(stated) or os.path.isdir(stated)):
      raise ValueError(f'--{name}={stated}: there is no such file or folder.')
  file_format = formats.of(path, values.data_format)
  is_text = file_format.text_column is not None
  has_text = is_text or values.text_column is not None
  names_clients = os.path.isdir(path) or _is_database(path, values)
  own_column = file_format.client_column
  has_clients = names_clients or values.client_column is not None
  if own_column is not None and not has_clients:
    has_clients = own_column in file_format(path).columns
  partition = None if has_clients else values.partition or 'iid'
  held_out = [name for name in _HELD_OUT if values[name].present]
  is_one_sign = (values.decimal or '.') == values.thousands
  no_split = 'is for databases in the format of TensorFlow Federated; leave it out.'
  for is_refused, names, why in (
    (has_text, _FEATURE_FLAGS, 'does not go with text, whose next token is the label.'),
    (not has_text, _TEXT_FLAGS, 'is for text; give --text_column.'),
    (values.vocabulary, ('vocabulary_size',), 'is that of the file of --vocabulary.'),
    (is_text, _CELL_FLAGS, 'is for values in columns, and files of text have none.'),
    (names_clients, ('client_column',), 'is for data that do not name their clients.'),
    (has_clients, _SPLIT_FLAGS, 'is for data without clients, and these have some.'),
    (
      not has_clients,
      ('test_clients',),
      'needs data with clients; see --test_examples.',
    ),
    (partition == 'iid', ('dirichlet_alpha',), 'is for another --partition than iid.'),
    (not _is_database(path, values), ('data_split',), no_split),
    (not _is_database(test_path, values), ('test_split',), no_split),
    (
      held_out and held_out != ['test_data'],
      [each for each in (*_HELD_OUT, 'test_split') if each not in held_out[:1]],
      f'and --{"".join(held_out[:1])} both say what is for testing; give one of them.',
    ),
    (has_text and partition == 'label_skew', ('partition',), 'needs labels.'),
    (is_one_sign, ('thousands',), 'is the decimal sign as well; change one of them.'),
  ):
    if is_refused:
      program.refuse(values, names, why)
  given = program.read(Files, values)
  if values.feature_columns == []:
    raise ValueError('--feature_columns names no column; leave it out for all others.')
  labels = label_columns(values.label_column or '')
  once = [values.client_column, values.text_column, *labels]
  once += values.feature_columns or ()
  encoded = [*(values.one_hot_columns or ()), *(values.embedding_columns or ())]
  for listed in (once, encoded):
    twice = [each for each in listed if each is not None and listed.count(each) > 1]
    if twice:
      raise ValueError(
        f'column {twice[0]!r} is named twice among --client_column, --label_column, '
        '--text_column and --feature_columns, or --one_hot_columns and '
        '--embedding_columns; a column has one use.'
      )
  if not (held_out or values.test_split):
    given |= {'test_clients': 0.1} if has_clients else {'test_examples': 0.2}
  given.update(
    path=path,
    separator=separator(values),
    partition=partition,
    test_data=values.test_data or (path if values.test_split else None),
    text_unit=(values.text_unit or 'character') if has_text else None,
    scratch=values.data_scratch or _folder_of_run(values.run_dir),
  )
  return Files(**given)


def _is_database(path: str, values: flags.FlagValues) -> bool:
  return formats.of(path, values.data_format).name == 'sqlite'


def separator(values: flags.FlagValues) -> Optional[str]:
  """Returns the character between fields of CSV; `None` if the file name decides."""
  given = values.separator
  if given is None:
    return None
  named = (values[name].value for name in ('data', 'test_data') if name in values)
  used_for = {formats.of(each, values.data_format).name for each in named if each}
  sign = '\t' if given in ('tab', r'\t') else given
  is_sign = len(sign) == 1 and sign.isascii() and not sign.isalnum()
  if not is_sign or sign in '"\r\n\0.+-' or 'csv' not in used_for:
    raise ValueError(
      f"--separator={given!r} must be one character, such as ';', that is no letter, "
      'digit, quote, end of a line, point or sign of a number; or tab. It is for CSV.'
    )
  return sign


def label_columns(stated: str) -> tuple[str, ...]:
  """The columns that `--label_column` names, unless its whole value names one."""
  return tuple(flags.ListParser().parse(stated))


def _folder_of_run(run_dir: Optional[str]) -> str:
  folder = os.path.dirname(os.path.abspath(run_dir or os.path.join('runs', '_')))
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  return folder

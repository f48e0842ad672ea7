"""Which data, how they are dealt out to clients, and what of them is held out."""

import dataclasses
import math
import os
from typing import Callable, Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import ids

from ..data import formats
from ..data import numerals

Flag = program.Flag
# What only goes with clients that are made.
_OF_PARTITIONS = ('partition', 'dirichlet_alpha', 'num_clients')
# Flags that list columns or classes.
_LISTS = ('feature_columns', 'one_hot_columns', 'embedding_columns', 'class_weights')
_HELD_OUT = ('test_clients', 'test_examples', 'test_data')
# Between a run and its continuation: files may be moved. What is in them is compared.
MAY_DIFFER = ('data', 'test_data', 'vocabulary', 'data_scratch', 'cache_dir')
_DEFAULT_ALPHA = 0.5
# NumPy's Dirichlet does not come to an end with a tiny one.
_LEAST_ALPHA = 1e-3
PARTITIONS = ('iid', 'label_skew', 'quantity_skew')


@dataclasses.dataclass(frozen=True)
class Data:
  """What a task's data depend on.

  Attributes:
    num_clients: Clients that the examples are dealt out to; `None` if the data have
      clients.
    dirichlet_alpha: Skew between clients; small is more skewed.
    seed: Of the split.
    files: What the user's own data are; `None` for those of a task.
    cache_dir: Folder with the files of TFF's loaders, for tasks that read them.
  """

  num_clients: Optional[int]
  dirichlet_alpha: float
  seed: int
  files: Optional['Files'] = None
  cache_dir: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Files:
  """The user's own data; attributes are the flags of the same names.

  Attributes:
    path: `--data`.
    partition: How examples are dealt out; `None` if the data have clients.
    scratch: Where anonymous temporary files are made.
  """

  path: str
  data_format: Optional[str] = None
  data_split: Optional[str] = None
  client_column: Optional[str] = None
  label_column: Optional[str] = None
  feature_columns: Optional[tuple[str, ...]] = None
  one_hot_columns: tuple[str, ...] = ()
  embedding_columns: tuple[str, ...] = ()
  text_column: Optional[str] = None
  label_kind: Optional[str] = None
  class_weights: tuple[str, ...] = ()
  scaling: Optional[str] = None
  label_scaling: Optional[str] = None
  missing_values: Optional[tuple[str, ...]] = None
  separator: Optional[str] = None
  decimal: Optional[str] = None
  thousands: Optional[str] = None
  partition: Optional[str] = None
  test_clients: Optional[float] = None
  test_examples: Optional[float] = None
  test_data: Optional[str] = None
  test_split: Optional[str] = None
  text_unit: Optional[str] = None
  sequence_length: Optional[int] = None
  vocabulary_size: Optional[int] = None
  vocabulary: Optional[str] = None
  scratch: str = dataclasses.field(default='.', compare=False)


# What only goes with --data.
_OF_FILES = (
  *(
    field.name
    for field in dataclasses.fields(Files)
    if field.name not in ('path', 'partition', 'scratch')
  ),
  'data_scratch',
)


def rows(unset: Callable[[str], str]) -> tuple[Flag, ...]:
  """The flags."""
  said = '; '.join(f'{each.name}, {each.summary}' for each in formats.FORMATS.values())
  return (
    Flag(
      'data',
      str,
      'Your own data: a file, or a folder with a file or a folder for each client. '
      f'Formats: {said}.',
      is_basic=True,
    ),
    Flag(
      'data_split',
      str,
      'Which split of a database in the format of TensorFlow Federated is read.',
    ),
    Flag(
      'data_scratch',
      str,
      'Folder with room for what is read: in files without names, of which nothing is '
      'left.',
      unset='where the run directory is',
    ),
    *writing_rows(),
    *_columns(),
    *_held_out(),
    *_text(),
    Flag(
      'num_clients',
      int,
      'Clients in the population.',
      unset=unset('num_clients'),
      is_basic=True,
    ),
    Flag(
      'partition',
      PARTITIONS,
      'How the rows of --data are dealt out to --num_clients if they have no clients: '
      'evenly, with skewed labels, or with skewed sizes.',
      unset='iid',
    ),
    Flag(
      'dirichlet_alpha',
      float,
      'Skew of labels, or of sizes, between clients (arXiv:1909.06335); small is more '
      'skewed.',
      default=_DEFAULT_ALPHA,
    ),
    Flag(
      'split_seed',
      int,
      'Seed of what is held out for testing, and of the split into clients. Apart from '
      '--seed, so that runs that are compared train and test on the same people.',
      default=1,
    ),
    Flag(
      'cache_dir',
      str,
      'Folder with the files that the loaders of tff.simulation.datasets keep, for '
      'tasks that read them. Nothing is downloaded.',
    ),
  )


def writing_rows() -> tuple[Flag, ...]:
  """How files, and values in them, are written."""
  return (
    Flag(
      'data_format',
      list(formats.FORMATS),
      'Format of the files of --data.',
      unset='by the ending of their names',
    ),
    Flag(
      'missing_values',
      program.LIST,
      'Texts that say that a value of --data is missing, which is refused; empty for '
      'none.',
      unset='those of pandas.read_csv: '
      f'{", ".join(each for each in ids.MISSING if each)}',
    ),
    Flag(
      'separator',
      str,
      'What is between the fields of CSV: a character, or tab.',
      unset='a comma, and a tab in .tsv',
    ),
    Flag(
      'decimal',
      list(numerals.DECIMALS),
      'Decimal sign of numbers that are text, as in CSV.',
      unset='a point',
    ),
    Flag(
      'thousands',
      ['', *numerals.THOUSANDS],
      'What groups the digits of numbers that are text, as in CSV; empty for nothing, '
      'which is the default.',
    ),
  )


def _columns() -> tuple[Flag, ...]:
  return (
    Flag(
      'client_column',
      str,
      'Column of --data that says whose a row is. Without it, rows are dealt out by '
      '--partition.',
      is_basic=True,
    ),
    Flag(
      'label_column',
      str,
      'Column of --data to predict; or several, with commas between them: numbers, or '
      'tags, each of which is 0 or 1.',
      is_basic=True,
    ),
    Flag(
      'feature_columns',
      program.LIST,
      'Columns of --data to predict from.',
      unset='all others',
    ),
    Flag(
      'one_hot_columns',
      program.LIST,
      'Columns of --data with numbers that are names, such as postcodes: a feature for '
      'each value. Columns of text always are.',
    ),
    Flag(
      'embedding_columns',
      program.LIST,
      'Columns of --data with names of which there are many, such as cities: a vector '
      'of --embedding_size for each value, which is learnt, instead of a feature.',
    ),
    Flag(
      'label_kind',
      ['class', 'number'],
      'What labels are; several of a row that are classes are tags.',
      unset='classes if they are text or few whole numbers, tags if all of several are '
      '0 or 1',
    ),
    Flag(
      'class_weights',
      program.LIST,
      'What the loss of an example counts times, by its class: no:1,yes:5, and 1 for '
      'classes that are not named; or balanced, where each class counts the same in '
      'all, from how many examples it has, without noise.',
      unset='1 for all',
    ),
    Flag(
      'scaling',
      ['standard', 'none'],
      'What is done to features that are numbers: standard brings them to mean 0 and '
      'standard deviation 1, without noise.',
      unset='standard for columns, none for images and the like',
    ),
    Flag(
      'label_scaling',
      ['standard', 'none'],
      'What is done to labels that are numbers before they are trained on: standard '
      'brings them to mean 0 and standard deviation 1, without noise. Metrics are in '
      'their own unit all the same.',
      unset='standard',
    ),
  )


def _held_out() -> tuple[Flag, ...]:
  return (
    Flag(
      'test_clients',
      float,
      'Share of the clients whose examples are for testing; they never take part, and '
      'no privacy is claimed for them.',
      unset='0.1 if the data have clients',
    ),
    Flag(
      'test_examples',
      float,
      "Share of each client's examples, or of all if the data have no clients, that is "
      'for testing; no privacy is claimed for them.',
      unset='0.2 if the data have no clients',
    ),
    Flag(
      'test_data',
      str,
      'File or folder like --data with examples for testing; no privacy is claimed for '
      'them.',
    ),
    Flag(
      'test_split',
      str,
      'Which split of --test_data is for testing, or of --data without that.',
    ),
  )


def _text() -> tuple[Flag, ...]:
  return (
    Flag(
      'text_column',
      str,
      'Column of --data with text, of which the next character or word is predicted.',
      is_basic=True,
    ),
    Flag(
      'text_unit',
      ['character', 'word'],
      'What a text is cut into.',
      unset='character',
    ),
    Flag(
      'sequence_length',
      int,
      'Tokens of an example of text.',
      unset='80 characters, or 20 words',
      at_least=1,
    ),
    Flag(
      'vocabulary_size',
      int,
      'How many of the most frequent characters or words are known.',
      unset='256 characters, or 10000 words',
      at_least=1,
    ),
    Flag(
      'vocabulary',
      str,
      'File with a public vocabulary, one word a line, or all characters as they are; '
      'then none is made of the data.',
    ),
  )


def from_flags(values: flags.FlagValues) -> Data:
  """What the flags say."""
  alpha = values.dirichlet_alpha
  if not alpha > 0:
    raise ValueError(f'dirichlet_alpha must be positive; got {alpha}.')
  if not _LEAST_ALPHA <= alpha < math.inf:
    raise ValueError(
      f'dirichlet_alpha must be at least {_LEAST_ALPHA} and finite; got {alpha}. '
      'Nothing is more skewed below.'
    )
  if values.split_seed < 0:
    raise ValueError(f'split_seed must not be negative; got {values.split_seed}.')
  files = None
  num_clients = values.num_clients
  if values.data is None:
    _refuse(values, (*_OF_FILES, 'partition'), 'goes with --data; give that as well')
  else:
    _refuse(values, ('cache_dir',), 'is for tasks that read such files; leave it out')
    files = _files(values)
    if files.partition is None or not is_given(values, 'num_clients'):
      num_clients = None
    if files.partition is not None and num_clients is None:
      raise ValueError(
        '--num_clients is missing: the data have no clients, so say how many their '
        'rows are dealt out to, or name the --client_column.'
      )
    if num_clients is not None and num_clients < 1:
      raise ValueError(f'num_clients must be at least 1; got {num_clients}.')
  return Data(
    num_clients=num_clients,
    dirichlet_alpha=values.dirichlet_alpha,
    seed=values.split_seed,
    files=files,
    cache_dir=values.cache_dir,
  )


def is_given(values: flags.FlagValues, name: str) -> bool:
  """Whether a flag has a value that is not a default, be it of a task."""
  flag = values[name]
  return flag.value is not None and not flag.using_default_value


def _refuse(values: flags.FlagValues, names: tuple[str, ...], why: str) -> None:
  for name in names:
    if is_given(values, name):
      raise ValueError(f'--{name} {why}.')


def _files(values: flags.FlagValues) -> Files:
  """The user's data, with flags that go together."""
  path = values.data
  _check_path('data', path)
  has_text = values.text_column is not None or formats.is_text(path, values.data_format)
  _check_columns(values, has_text)
  _check_shares(values)
  _check_splits(values)
  if formats.is_text(path, values.data_format):
    _refuse(
      values,
      ('missing_values', 'decimal', 'thousands'),
      'is of values in columns, and files of text have none; leave it out',
    )
  if (values.decimal or '.') == values.thousands:
    raise ValueError(
      f'--thousands={values.thousands} is the decimal sign as well; give --decimal='
      f'{"," if values.thousands == "." else "."}, or leave one of them out.'
    )
  lists_missing = values.missing_values is not None
  is_database = _is_database(path, values)
  if os.path.isdir(path) or is_database:
    _refuse(values, ('client_column',), 'does not go with data that name their clients')
  has_clients = values.client_column is not None or formats.has_clients(
    path, values.data_format
  )
  if has_clients:
    _refuse(
      values,
      _OF_PARTITIONS,
      'is for data without clients, and these have some; leave it out',
    )
  else:
    _refuse(
      values,
      ('test_clients',),
      'holds out clients that the data have; without --client_column give '
      '--test_examples',
    )
  partition = None if has_clients else values.partition or 'iid'
  if has_text and partition == 'label_skew':
    raise ValueError('--partition=label_skew needs labels, which texts do not have.')
  if partition == 'iid':
    _refuse(values, ('dirichlet_alpha',), 'says how skewed clients are; iid is not')
  names = {field.name for field in dataclasses.fields(Files)}
  given = {name: values[name].value for name in names if name in values}
  for name in _LISTS:
    given[name] = _listed(values, name)
  if not any(is_given(values, name) for name in (*_HELD_OUT, 'test_split')):
    given |= {'test_clients': 0.1} if has_clients else {'test_examples': 0.2}
  given.update(
    path=path,
    feature_columns=given['feature_columns'] or None,
    missing_values=_listed(values, 'missing_values') if lists_missing else None,
    separator=separator(values),
    partition=partition,
    test_data=values.test_data or (path if values.test_split else None),
    text_unit=(values.text_unit or 'character') if has_text else None,
    scratch=_scratch(values),
  )
  return Files(**given)


def _is_database(path: str, values: flags.FlagValues) -> bool:
  return formats.of(path, values.data_format).name == 'sqlite'


def separator(values: flags.FlagValues) -> Optional[str]:
  """The character between fields of CSV; `None` to go by the ending."""
  given = values.separator
  if given is None:
    return None
  named = (values[name].value for name in ('data', 'test_data') if name in values)
  paths = [each for each in named if each is not None]
  if all(formats.of(each, values.data_format).name != 'csv' for each in paths):
    raise ValueError(f'--separator is for CSV, and {paths[0]} is none; leave it out.')
  found = '\t' if given in ('tab', r'\t') else given
  is_sign = len(found) == 1 and found.isascii() and not found.isalnum()
  if not is_sign or found in '"\r\n\0.+-':
    raise ValueError(
      f"--separator={given!r} is none: give one character, such as ';', that is no "
      'letter, digit, quote, end of a line, point or sign of a number; or tab.'
    )
  return found


def _check_splits(values: flags.FlagValues) -> None:
  """Refuses splits of data that have none, which would be all of them."""
  tested = values.test_data or values.data
  for name, path in (('data_split', values.data), ('test_split', tested)):
    if is_given(values, name) and not _is_database(path, values):
      raise ValueError(
        f'--{name} is for databases in the format of TensorFlow Federated, and {path} '
        'is none; leave it out.'
      )


def _check_path(name: str, path: str) -> None:
  """Refuses what is not there, and pipes and the like, which are read only once."""
  if not os.path.exists(path):
    raise FileNotFoundError(f'--{name}={path}: there is no such file or folder.')
  if not os.path.isfile(path) and not os.path.isdir(path):
    raise ValueError(
      f'--{name}={path} is neither a file nor a folder; data are read more than once, '
      'so save them in a file.'
    )


def _check_columns(values: flags.FlagValues, has_text: bool) -> None:
  """Refuses flags that are of features with those of text, and the other way round."""
  if has_text:
    _refuse(
      values,
      (
        'label_column',
        'feature_columns',
        'one_hot_columns',
        'embedding_columns',
        'label_kind',
        'class_weights',
        'scaling',
        'label_scaling',
      ),
      'does not go with text, whose next token is the label',
    )
  else:
    _refuse(
      values,
      ('text_unit', 'sequence_length', 'vocabulary_size', 'vocabulary'),
      'is for text; give --text_column',
    )
  if values.vocabulary is not None:
    _refuse(values, ('vocabulary_size',), 'is that of the file of --vocabulary')
    if not os.path.isfile(values.vocabulary):
      raise FileNotFoundError(f'--vocabulary={values.vocabulary}: no such file.')
  named = [
    each for each in (values.client_column, values.text_column) if each is not None
  ]
  named += list(label_columns(values.label_column or ''))
  named += list(_listed(values, 'feature_columns'))
  twice = sorted({each for each in named if named.count(each) > 1})
  if twice:
    raise ValueError(
      f'column {twice[0]!r} is named twice among --client_column, --label_column, '
      '--text_column and --feature_columns; a column has one use.'
    )
  for name in _listed(values, 'embedding_columns'):
    if name in _listed(values, 'one_hot_columns'):
      raise ValueError(
        f'--one_hot_columns and --embedding_columns both name {name!r}; it has either '
        'a feature or an embedding for each value.'
      )
  if values.feature_columns is not None and not values.feature_columns:
    raise ValueError('--feature_columns names no column; leave it out for all others.')


def label_columns(stated: str) -> tuple[str, ...]:
  """The columns that `--label_column` names, if no column has all of it as its name.

  Example:
    >>> label_columns('price,"rooms, total"')
    ('price', 'rooms, total')
  """
  found = tuple(flags.ListParser().parse(stated))
  twice = sorted({each for each in found if found.count(each) > 1})
  if twice:
    raise ValueError(f'--label_column names {twice[0]!r} twice; name it once.')
  return found


def _listed(values: flags.FlagValues, name: str) -> tuple[str, ...]:
  """A flag that lists columns."""
  found = tuple(values[name].value or ())
  twice = sorted({each for each in found if found.count(each) > 1})
  if twice:
    raise ValueError(f'--{name} names {twice[0]!r} twice; name it once.')
  return found


def _check_shares(values: flags.FlagValues) -> None:
  given = [name for name in _HELD_OUT if is_given(values, name)]
  if given and given != ['test_data']:
    _refuse(values, ('test_split',), f'does not go with --{given[0]}')
  if len(given) > 1:
    raise ValueError(
      f'--{given[0]} and --{given[1]} both say what is for testing; give one of them.'
    )
  for name in ('test_clients', 'test_examples'):
    share = values[name].value
    if share is not None and not 0 < share < 1:
      raise ValueError(
        f'--{name} is a share between 0 and 1, such as 0.1; got {share}.'
      )
  if values.test_data is not None:
    _check_path('test_data', values.test_data)


def _scratch(values: flags.FlagValues) -> str:
  """The folder for temporary files: it is there already."""
  if values.data_scratch is not None:
    if not os.path.isdir(values.data_scratch):
      raise FileNotFoundError(f'--data_scratch={values.data_scratch}: no such folder.')
    return values.data_scratch
  folder = os.path.dirname(os.path.abspath(values.run_dir or os.path.join('runs', '_')))
  while not os.path.isdir(folder):
    folder = os.path.dirname(folder)
  return folder

"""Metadata and dependencies of tff_dp_aggregators; tool settings are in pyproject.toml.

Dependencies are stated here and nowhere else: requirements.lock and
requirements/core.lock are compiled from this file (`make lock`).
"""

import ast
import importlib
import pathlib
import sys

import setuptools
from setuptools.command import build_py
from setuptools.command import editable_wheel
from setuptools.command import sdist

_ROOT = pathlib.Path(__file__).resolve().parent
_PACKAGE = 'tff_dp_aggregators'
# The simulation programs: their folder in a checkout, and their name in what is built,
# where other people's packages are beside them.
_EXPERIMENTS = 'experiments'
_EXPERIMENTS_BUILT = f'{_PACKAGE}.{_EXPERIMENTS}'
_COMMANDS = (
  'tff-dp-compare = tff_dp_aggregators.experiments.compare:run',
  'tff-dp-participation = tff_dp_aggregators.accounting.programs.participation:run',
  'tff-dp-plan = tff_dp_aggregators.accounting.programs.plan:run',
  'tff-dp-plot = tff_dp_aggregators.experiments.plot:run',
  'tff-dp-predict = tff_dp_aggregators.experiments.predict:run',
  'tff-dp-report = tff_dp_aggregators.accounting.programs.report:run',
  'tff-dp-simulate = tff_dp_aggregators.experiments.simulate:run',
  'tff-dp-vectors = tff_dp_aggregators.accounting.programs.vectors:run',
)


def _version() -> str:
  """Reads __version__ without importing the package or what it depends on."""
  source = _ROOT / 'tff_dp_aggregators' / '__init__.py'
  for node in ast.parse(source.read_text(encoding='utf-8')).body:
    if isinstance(node, ast.Assign) and any(
      isinstance(target, ast.Name) and target.id == '__version__'
      for target in node.targets
    ):
      return ast.literal_eval(node.value)
  raise RuntimeError(f"{source} assigns no __version__; add __version__ = 'X.Y.Z'.")


def _long_description() -> str:
  readme = _ROOT / 'README.md'
  return readme.read_text(encoding='utf-8') if readme.exists() else ''


def _record_commit(folder: str) -> None:
  """Leaves the commit in what is built into a folder, if there is a checkout."""
  sys.path.insert(0, str(_ROOT))
  try:
    version = importlib.import_module(f'{_PACKAGE}.base.version')
  finally:
    del sys.path[0]
  version.record(_ROOT / _PACKAGE, pathlib.Path(folder) / _PACKAGE)


def _entry_points(experiments: str) -> dict:
  """The commands, of the programs that there are.

  Args:
    experiments: Name of the package of the simulation programs.
  """
  commands = []
  for command in _COMMANDS:
    _, found, program = command.partition(f'{_EXPERIMENTS_BUILT}.')
    file = _ROOT / _EXPERIMENTS / f'{program.partition(":")[0]}.py'
    if not found or file.is_file():
      commands.append(command.replace(f'{_EXPERIMENTS_BUILT}.', f'{experiments}.'))
  return {'console_scripts': commands}


class _BuildPy(build_py.build_py):
  def finalize_options(self) -> None:
    super().finalize_options()
    # Here and not in `package_dir` of all, because that would make an editable
    # installation an import hook; this class builds nothing for those.
    found = setuptools.find_packages(include=[_EXPERIMENTS, f'{_EXPERIMENTS}.*'])
    self.packages = [*(self.packages or ()), *(f'{_PACKAGE}.{name}' for name in found)]
    self.package_dir[_EXPERIMENTS_BUILT] = _EXPERIMENTS

  def run(self) -> None:
    super().run()
    if not self.editable_mode:  # That runs from the checkout itself.
      _record_commit(self.build_lib)


class _EditableWheel(editable_wheel.editable_wheel):
  def finalize_options(self) -> None:
    super().finalize_options()
    # A checkout has the programs under the name of their folder. Metadata that an
    # installer had made before have the commands of a wheel; so they are made anew.
    self.distribution.entry_points = _entry_points(_EXPERIMENTS)
    self.dist_info_dir = None


class _Sdist(sdist.sdist):
  def make_release_tree(self, base_dir: str, files: list) -> None:
    super().make_release_tree(base_dir, files)
    _record_commit(base_dir)


setuptools.setup(
  name='tff-dp-aggregators',
  version=_version(),
  description='Differentially private aggregation for TensorFlow Federated.',
  long_description=_long_description(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  python_requires='>=3.9',
  # Said so that an editable installation is a path, which Python searches after the
  # current folder and finds the package on, although there may be a folder of the same
  # name before, such as the clone; an import hook, the other way, is asked too late.
  package_dir={'': '.'},
  packages=setuptools.find_packages(include=[_PACKAGE, f'{_PACKAGE}.*']),
  package_data={
    _PACKAGE: ['py.typed'],
    _EXPERIMENTS_BUILT: ['**/*.md', 'published/*'],
    '': ['**/*.j2', '**/*.json'],
  },
  include_package_data=False,
  zip_safe=False,
  cmdclass={
    'build_py': _BuildPy,
    'editable_wheel': _EditableWheel,
    'sdist': _Sdist,
  },
  # What strategies, accounting and reports need, on any Python.
  install_requires=[
    'absl-py',
    'dp-accounting>=0.4.3,<0.7',
    'duckdb',
    'jinja2',
    'jsonschema',
    'markdown',
    'matplotlib',
    'mpmath',
    'msgspec',
    'numpy>=1.25,<3',
    'prv-accountant',
    'scipy>=1.9',
    'tqdm',
  ],
  extras_require={
    # Noise, queries, aggregators, learning and the simulations, on Linux on x86-64 and
    # the Pythons that TensorFlow Federated 0.87 has wheels for, 3.9 to 3.11.
    'tff': [
      # Exact, because installers that find no solution for this version fall back
      # to releases of 2019 without a word.
      'tensorflow-federated==0.87.0',
      # TensorFlow Federated decides on the versions of what it pins itself.
      'tensorflow',
      'tensorflow-privacy',
      # Several processes and machines; the former is how those of one are encrypted.
      'cryptography',
      'dask[distributed]',
      'grpcio',
      'psutil>=6',
      # Types of the options of noise, on Pythons whose typing has not got them.
      'typing-extensions',
      # The data of the simulations that need no files.
      'scikit-learn',
      'tensorboard',
    ],
    'docs': ['mkdocs-material', 'mkdocstrings-python'],
    'test': [
      'coverage',
      'hypothesis',
      'ipykernel',
      'nbclient',
      'nbformat',
      'pytest',
      'pytest-cov',
      'pytest-xdist',
      'pyyaml',
    ],
    'dev': ['mypy', 'ruff', 'setuptools', 'uv', 'wheel'],
  },
  entry_points=_entry_points(_EXPERIMENTS_BUILT),
  classifiers=[
    'Development Status :: 3 - Alpha',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3 :: Only',
    'Programming Language :: Python :: 3.9',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Programming Language :: Python :: 3.14',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: Security',
    'Typing :: Typed',
  ],
)

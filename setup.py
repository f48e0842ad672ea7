"""Metadata and dependencies of tff_dp_aggregators; tool settings are in pyproject.toml.

Dependencies are stated here and nowhere else: requirements.lock and
requirements/core.lock are compiled from this file (`make lock`).
"""

import pathlib
import sys

import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent
_PACKAGE = 'tff_dp_aggregators'
sys.path.insert(0, str(_ROOT))

import tff_dp_aggregators  # noqa: E402
from tff_dp_aggregators.base import version  # noqa: E402

# Only while something is built: a copy of these sources may be changed.
with version.recorded(_ROOT / _PACKAGE):
  setuptools.setup(
    name='tff-dp-aggregators',
    version=tff_dp_aggregators.__version__,
    description='Differentially private aggregation for TensorFlow Federated.',
    long_description=(_ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    python_requires='>=3.9',
    # Said so that an editable installation is a path, which Python searches after the
    # current folder and finds the package on, although there may be a folder of the
    # same name before, such as the clone; an import hook is asked too late.
    package_dir={'': '.'},
    packages=setuptools.find_packages(include=[_PACKAGE, f'{_PACKAGE}.*']),
    package_data={
      _PACKAGE: ['py.typed'],
      f'{_PACKAGE}.experiments': ['**/*.md', 'published/*'],
      '': ['**/*.j2', '**/*.json'],
    },
    include_package_data=False,
    zip_safe=False,
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
      # Noise, queries, aggregators, learning and simulations, on Linux on x86-64 and
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
    entry_points={
      'console_scripts': [
        *(
          f'tff-dp-{name} = {_PACKAGE}.experiments.{name}:run'
          for name in ('audit', 'compare', 'plot', 'predict', 'simulate')
        ),
        *(
          f'tff-dp-{name} = {_PACKAGE}.accounting.programs.{name}:run'
          for name in ('participation', 'plan', 'report', 'vectors')
        ),
      ]
    },
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

"""Metadata and dependencies of tff_dp_aggregators; tool settings are in pyproject.toml.

This is the only file that states dependencies. `make lock` compiles requirements.lock
and requirements/core.lock from it.
"""

import pathlib
import sys

import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent
_PACKAGE = 'tff_dp_aggregators'
sys.path.insert(0, str(_ROOT))

import tff_dp_aggregators  # noqa: E402
from tff_dp_aggregators.base import version  # noqa: E402

# The commit is recorded only in what is built, because a checkout may be changed later.
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
    # With this, an editable installation adds a folder to Python's path, and no import
    # hook. So Python finds the package even if the current folder has a folder of the
    # same name, such as a clone.
    package_dir={'': '.'},
    packages=setuptools.find_packages(include=[_PACKAGE, f'{_PACKAGE}.*']),
    package_data={
      _PACKAGE: ['py.typed'],
      f'{_PACKAGE}.experiments': ['**/*.md', 'published/*'],
      '': ['**/*.j2', '**/*.json'],
    },
    include_package_data=False,
    zip_safe=False,
    # Dependencies of strategies, accounting and reports, on all supported Pythons.
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
      # Dependencies of noise, queries, aggregators, learning and simulations. They need
      # Linux on x86-64 and Python 3.9 to 3.11, for which TFF 0.87 has wheels.
      'tff': [
        # Exact: with a range, installers that find no solution for this release
        # silently install one of 2019.
        'tensorflow-federated==0.87.0',
        # Without versions, because TFF pins them.
        'tensorflow',
        'tensorflow-privacy',
        # For several processes and machines; Dask encrypts with `cryptography`.
        'cryptography',
        'dask[distributed]',
        'grpcio',
        'psutil>=6',
        # Types that `typing` of Python 3.9 and 3.10 lacks, for the options of noise.
        'typing-extensions',
        # Data of the built-in tasks.
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

"""Tests that pytest runs, one Bazel target per file, and programs."""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

_RUNNER = "//tools/python:pytest_runner.py"
_PROGRAM = "//tools/python:program.py"

def pytest_tests(deps = [], data = [], exclude = [], size = "medium", **kwargs):
    """Makes a test of each *_test.py of the folder, and a library of its other files.

    The library is called `helpers` and is for tests alone. JSON files of the folder are
    data of its tests.

    Args:
      deps: libraries the tests need, besides the helpers.
      data: files the tests read, besides the folder's JSON files.
      exclude: names of test files to leave out.
      size: how long each test may take, see Bazel's test sizes.
      **kwargs: further attributes of each py_test.
    """
    tests = native.glob(["*_test.py"], exclude = exclude, allow_empty = True)

    # What lies in tests/ is for the folders below it as well.
    shared = [] if native.package_name() == "tests" else ["//tests:helpers"]
    py_library(
        name = "helpers",
        testonly = True,
        srcs = native.glob(["*.py"], exclude = ["*_test.py"], allow_empty = True),
        deps = shared,
        visibility = ["//tests:__subpackages__"],
    )
    for test in tests:
        py_test(
            name = test[:-len(".py")],
            size = size,
            srcs = [test, _RUNNER],
            main = _RUNNER,
            args = ["$(rootpath %s)" % test],
            data = data + native.glob(["**/*.json"], allow_empty = True),
            deps = deps + [
                ":helpers",
                "//:pytest_config",
            ],
            **kwargs
        )

def py_programs(srcs, deps = [], **kwargs):
    """Makes a py_binary of each file, called like the file without its .py.

    Args:
      srcs: names of Python files of this folder.
      deps: libraries the programs need.
      **kwargs: further attributes of each py_binary.
    """
    for src in srcs:
        name = src[:-len(".py")]

        # As a module, for its imports may be relative.
        py_binary(
            name = name,
            srcs = [src, _PROGRAM],
            main = _PROGRAM,
            args = [native.package_name().replace("/", ".") + "." + name],
            deps = deps,
            **kwargs
        )

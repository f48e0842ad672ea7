"""Tests that pytest runs, one Bazel target per file, and programs."""

_RUNNER = "//tools:python/pytest_runner.py"
_PROGRAM = "//tools:python/program.py"

def pytest_tests(folders, deps, data = [], exclude = [], size = "medium"):
    """Makes a test of each *_test.py of folders of this package.

    Args:
      folders: patterns of folders; "" is the package's own.
      deps: libraries the tests need, besides the helpers in all folders.
      data: files the tests read, besides JSON files of the folders.
      exclude: test files to leave out.
      size: how long each test may take, see Bazel's test sizes.
    """
    for test in native.glob([each + "*_test.py" for each in folders], exclude = exclude):
        native.py_test(
            name = test[:-len(".py")],
            size = size,
            srcs = [test, _RUNNER],
            main = _RUNNER,
            args = ["$(rootpath %s)" % test],
            data = data,
            deps = deps + [
                ":helpers",
                "//:pytest_config",
            ],
        )

def py_programs(srcs, deps):
    """Makes a py_binary of each file, called like the file without its .py.

    Args:
      srcs: names of Python files of this folder.
      deps: libraries the programs need.
    """
    for src in srcs:
        name = src[:-len(".py")]

        # Runs as a module, because its imports may be relative.
        native.py_binary(
            name = name,
            srcs = [src, _PROGRAM],
            main = _PROGRAM,
            args = [native.package_name().replace("/", ".") + "." + name],
            deps = deps,
        )

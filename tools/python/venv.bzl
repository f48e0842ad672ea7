"""Makes the repository's virtual environment the Python of Bazel's rules."""

_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "py3_runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
    # The default asks for a "python", which Debian does not have.
    stub_shebang = "#!{interpreter}",
    visibility = ["//visibility:public"],
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":py3_runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _venv_python_impl(repository_ctx):
    environ = repository_ctx.os.environ
    root = str(repository_ctx.path(Label("//:WORKSPACE")).dirname)
    chosen = environ.get("TFF_DP_PYTHON", "")
    if chosen:
        candidates = [chosen]
    else:
        candidates = [root + "/.venv/bin/python"]
        if environ.get("VIRTUAL_ENV", ""):
            candidates.append(environ["VIRTUAL_ENV"] + "/bin/python")
    for candidate in candidates:
        if not candidate.startswith("/"):
            fail("TFF_DP_PYTHON must be the absolute path of a Python, got " + candidate)
        if repository_ctx.path(candidate).exists:
            repository_ctx.file("BUILD", _BUILD.format(interpreter = candidate))
            return
    fail("No Python environment at " + " or ".join(candidates) +
         ". Run `make venv`, or set TFF_DP_PYTHON to the Python of another one.")

venv_python = repository_rule(
    implementation = _venv_python_impl,
    doc = "Finds .venv of the checkout; TFF_DP_PYTHON names another Python.",
    environ = ["TFF_DP_PYTHON", "VIRTUAL_ENV"],
    configure = True,
    local = True,
)

"""What Bazel needs from elsewhere, without a network: a Python, and rules."""

_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "py3_runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
    # The default is "python", which Debian does not have.
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

# Rules that are built into Bazel 4.2, by the repository that has them for newer releases.
_BUILT_IN = {
    "rules_cc": [
        "cc_binary",
        "cc_import",
        "cc_library",
        "cc_proto_library",
        "cc_test",
        "cc_toolchain",
        "cc_toolchain_suite",
        "fdo_prefetch_hints",
        "fdo_profile",
        "objc_import",
        "objc_library",
    ],
    "rules_java": [
        "java_binary",
        "java_import",
        "java_library",
        "java_lite_proto_library",
        "java_package_configuration",
        "java_plugin",
        "java_proto_library",
        "java_runtime",
        "java_test",
        "java_toolchain",
    ],
}
_COVERAGE = """\
package(default_visibility = ["//visibility:public"])
filegroup(name = "coverage_report_generator")
filegroup(name = "coverage_output_generator")
"""

def _stand_in_impl(repository_ctx):
    repository_ctx.file("BUILD", repository_ctx.attr.build)
    if repository_ctx.attr.rules:
        folder = repository_ctx.name[len("rules_"):]
        repository_ctx.file(folder + "/BUILD")
        lines = ["%s = native.%s\n" % (name, name) for name in repository_ctx.attr.rules]
        repository_ctx.file(folder + "/defs.bzl", "".join(lines))

_stand_in = repository_rule(
    implementation = _stand_in_impl,
    attrs = {"build": attr.string(), "rules": attr.string_list()},
)

def stand_ins():
    """Forwards what Bazel 4.2 would download to the rules that are built in to it."""
    for name, rules in _BUILT_IN.items():
        _stand_in(name = name, rules = rules)
    _stand_in(name = "remote_coverage_tools", build = _COVERAGE)

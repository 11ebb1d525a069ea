"""A CUDA toolkit of the machine, as @local_cuda: its headers, and whether there is one."""

_FOUND = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*"], allow_empty = True),
    includes = ["include"],
)
"""

_MISSING = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    target_compatible_with = ["@tessera//third_party/cuda:cuda_toolkit"],
)
"""

def _find_cuda(ctx):
    root = ctx.os.environ.get("TESSERA_CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(root + "/bin/nvcc") if root != "none" else None
    found = nvcc != None and nvcc.exists
    ctx.file("defs.bzl", "HAVE_CUDA = %s\nCUDA_HOME = \"%s\"\n" % (found, root))
    if found:
        ctx.symlink(root + "/include", "include")
    ctx.file("BUILD", _FOUND if found else _MISSING)

# TESSERA_CUDA_HOME=none builds as a machine without a toolkit does.
find_cuda = repository_rule(implementation = _find_cuda, environ = ["TESSERA_CUDA_HOME"], local = True)

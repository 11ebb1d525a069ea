"""Emulated libraries, each on the emulated driver alone."""

load("//third_party/cuda:cuda.bzl", "NEEDS_CUDA")

def emulated_library(name, exports, deps, srcs = []):
    """A shared library that gives nothing but the names of a linker script.

    Args:
      name: the file's name, by which programs load it: "libcufft.so.12".
      exports: the linker script.
      deps: as of a cc_binary.
      srcs: as of a cc_binary.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        additional_linker_inputs = [exports],
        linkopts = [
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-Bsymbolic",
            "-Wl,-soname," + name,
            "-ldl",
        ],
        linkshared = True,
        linkstatic = True,
        target_compatible_with = NEEDS_CUDA,
        visibility = ["//tests:__subpackages__"],
        deps = deps,
    )

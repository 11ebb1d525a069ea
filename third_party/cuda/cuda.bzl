"""cuda_image: .cu files as one fatbin (sm_80, sm_90a, sm_100 and PTX, not compressed) that lies in the program."""

load("@local_cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")

# In `target_compatible_with` of what needs the toolkit: skipped by name where there is none.
NEEDS_CUDA = [] if HAVE_CUDA else ["//third_party/cuda:cuda_toolkit"]

_FLAGS = " -std=c++20 -O3 --fmad=false --Werror all-warnings -I. "

_ARCHITECTURES = " ".join([
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_100,code=sm_100",
    "-gencode=arch=compute_80,code=compute_80",
])

def cuda_image(name, srcs, hdrs = [], **kwargs):
    """The fatbin of each source, and all of them as a cc_library.

    C++ sees a source NAME.cu as: extern "C" const char _binary_NAME_fatbin_start[], _binary_NAME_fatbin_end[];
    What ptxas says of registers, stack and spills of each kernel is in NAME.usage.
    """
    objects = []
    for src in srcs:
        stem = src[:-len(".cu")]
        native.genrule(
            name = stem + "_fatbin",
            srcs = [src] + hdrs,
            outs = [stem + ".fatbin", stem + ".usage", stem + "_image.o"],
            cmd = CUDA_HOME + "/bin/nvcc" + _FLAGS + _ARCHITECTURES +
                  " --compress-mode=none -Xptxas -v -fatbin $(location " + src + ")" +
                  " -o $(location " + stem + ".fatbin) 2> $(location " + stem + ".usage)" +
                  " || { cat $(location " + stem + ".usage); exit 1; }; " +
                  "cd $(RULEDIR) && ld -r -b binary -z noexecstack -o " + stem + "_image.o " + stem + ".fatbin",
            target_compatible_with = NEEDS_CUDA,
            visibility = ["//tests:__subpackages__"],
        )
        objects.append(stem + "_image.o")
    native.cc_library(
        name = name,
        srcs = objects,
        target_compatible_with = NEEDS_CUDA,
        **kwargs
    )

"""capnp_library: C++ from .capnp files of one folder, with Debian's capnp compiler."""

def capnp_library(name, srcs, visibility = None, imports = [], deps = []):
    """Compiles every file of `srcs` and makes one cc_library of the results.

    Args:
      name: the cc_library's name.
      srcs: .capnp files of this package. They import each other by relative path.
      visibility: as usual.
      imports: .capnp files of this package that they import, of other capnp_libraries.
      deps: those.
    """
    native.genrule(
        name = name + "_gen",
        srcs = srcs + imports,
        outs = [s + ".h" for s in srcs] + [s + ".c++" for s in srcs],
        cmd = "capnp compile -I/usr/include -oc++:$(RULEDIR) --src-prefix=" +
              "$$(dirname $(execpath " + srcs[0] + ")) " + " ".join(["$(execpath " + s + ")" for s in srcs]),
    )
    native.cc_library(
        name = name,
        srcs = [s + ".c++" for s in srcs],
        hdrs = [s + ".h" for s in srcs],
        # Generated code is not ours to warn about.
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["//third_party/capnproto:rpc"],
    )

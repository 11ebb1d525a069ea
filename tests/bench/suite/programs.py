"""Figures of pure code, measured by C++ programs of their own: kernels beside memcpy, planning."""

from . import measure


def run(options, name):
    flags = ["--quick"] if options.quick else []
    return measure.run_program([measure.BINARIES / "tests/bench" / name, *flags])


def kernels(options):
    """Each kernel's time as a multiple of memcpy of the bytes that it reads."""
    return {name: found["ratio_to_memcpy"] for name, found in run(options, "kernels_bench").items() if "ratio_to_memcpy" in found}

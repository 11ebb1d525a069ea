"""Figures of C++ programs of their own: kernels beside memcpy, planning, messages between two threads."""

from . import measure


def run(options, name):
    flags = ["--quick"] if options.quick else []
    return measure.run_program([measure.BINARIES / "tests/bench" / name, *flags])


def kernels(options):
    """Each kernel's time as a multiple of memcpy of the bytes that it reads."""
    return {name: found["ratio_to_memcpy"] for name, found in run(options, "kernels_bench").items() if "ratio_to_memcpy" in found}


def planner(options):
    """Planning for 4,096 workers on a mesh of 64 x 64, on one host and on 512, every pair of placements: the worst pair and
    the median."""
    found = run(options, "planner_bench")["figures"]
    plain = {name: {"worst": one["worst"], "median": one["median"]} for name, one in found.items()}
    milliseconds = {name.replace("_seconds", "_ms"): {which: value * 1e3 for which, value in values.items()}
                    for name, values in plain.items() if name.endswith("_seconds")}
    sizes = {name: values for name, values in plain.items() if name.endswith("_bytes")}
    def worst(name):
        return max(found[prefix + name]["worst"] for prefix in ("", "several_hosts_"))
    return {**milliseconds, **sizes,
            "goals": [{"text": "a plan <= 50 ms cold", "met": worst("plan_seconds") <= 50e-3},
                      {"text": "<= 20 us from the cache", "met": worst("cache_hit_seconds") <= 20e-6},
                      {"text": "<= 1 MiB of plan", "met": worst("description_bytes") <= measure.MIB}]}


def messages(options):
    """Messages of 1 MiB, 4 under way, from one transport to another of one process: over TLS beside a bare OpenSSL stream of the
    same bytes, over unix sockets beside a bare one."""
    found = run(options, "transport_bench")
    seconds, figures = found["seconds"], {}
    for name, limit in (("tls", "bare_tls"), ("sockets", "bare_unix")):
        figures[name] = measure.figure(seconds[name], {limit: {limit: seconds[limit]}}, bytes=found["bytes"])
    best = min(seconds["bare_tls"]) / min(seconds["tls"])
    return {**figures, "goals": [{"text": "messages over TLS >= 0.8x of a bare stream", "met": best >= 0.8}]}

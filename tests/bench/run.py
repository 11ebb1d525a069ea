"""Benchmarks of a running cluster, each beside a limit or a peer measured in the same run, in turns.

    tools/bench [--quick] [--only NAME ...] [--peers] [--check]
    tools/bench --markdown      the last run's table, as in docs/performance.md

A table on stdout; JSON with every sample in tests/bench/out/tessera.json (or the folder
$TESSERA_BENCH_OUT). Ratios are of best to best and of median to median: absolute times say little on
another machine. What takes less than 20 ms has five times as many samples. A NAME may be the beginning
of several. --peers: other systems too, where installed (tools/setup_peers). --check: exit status 1 when
a goal is missed.
"""

import argparse
import functools
import json
import os
import pathlib
import sys

from suite import catalog, collectives, far, files, hosts, matrices, narrow, peers, products, programs, redistribution, report, service
from suite.measure import HERE, Options, Unavailable

FAMILIES = (redistribution, collectives, products, hosts, catalog)
FIGURES = {name: functools.partial(family.run, name=name) for family in FAMILIES for name in family.CASES}
FIGURES |= catalog.OTHERS | narrow.FIGURES | matrices.FIGURES
FIGURES |= {"up_and_down": service.up_and_down, "tiny_ops": service.tiny_ops, "chained_maps": service.chained_maps,
            "live_tensors": service.live_tensors, "load_npy": files.load_npy, "spill": files.spill,
            "far_up_and_down": far.far_up_and_down, "far_tiny_ops": far.far_tiny_ops, "crowd": far.crowd,
            "kernels": programs.kernels, "planner": programs.planner, "messages": programs.messages}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, 256 MiB instead of 1 GiB")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help=f"some of: {', '.join(FIGURES)}")
    parser.add_argument("--peers", action="store_true", help="beside other systems too, where they are installed")
    parser.add_argument("--markdown", action="store_true", help="measure nothing: the last run's table")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a goal is missed")
    arguments = parser.parse_args()
    for name in arguments.only:
        if not any(figure.startswith(name) for figure in FIGURES):
            parser.error(f"no figure begins with {name}; there are {', '.join(FIGURES)}")
    return arguments


def main():
    arguments = parse_arguments()
    shorter = {"rounds": 2, "repetitions": 5} if arguments.quick else {}
    options = Options(quick=arguments.quick, peers=arguments.peers, **shorter)
    result = {"machine": report.machine(), "quick": arguments.quick, "figures": {}}
    folder = pathlib.Path(os.environ.get("TESSERA_BENCH_OUT", HERE / "out"))
    if arguments.markdown:
        print("\n".join(report.markdown(json.loads(report.path_in(folder).read_text()))))
        return 0
    print(report.header(), flush=True)
    try:
        for name, measure in FIGURES.items():
            if not any(name.startswith(wanted) for wanted in arguments.only):
                continue
            try:
                result["figures"][name] = measure(options)
            except Unavailable as reason:
                print(f"{name:<{report.WIDTH}} skipped: {reason}", flush=True)
                continue
            for line in report.lines(name, result["figures"][name]):
                print(line, flush=True)
            report.write(result, folder)
    finally:
        peers.stop()
    print(f"written to {report.write(result, folder)}", flush=True)
    missed = list(report.missed(result["figures"]))
    for name in missed:
        print(f"goal missed: {name}", file=sys.stderr)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

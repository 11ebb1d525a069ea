"""The report: a table of lines, and JSON with every sample."""

import datetime
import json
import os
import pathlib
import platform

WIDTH = 44


def is_figure(found):
    return "references" in found


def header():
    return (f"{'milliseconds':<{WIDTH}} {'best':>9} {'median':>9}  beside{'':<23} {'best':>9} {'median':>9} {'ratio':>6} {'(med.)':>7}")


def lines(name, found):
    """Lines of the table, one for each reference of a figure."""
    if not isinstance(found, dict):
        yield f"{name:<{WIDTH}} {found:>13,.2f}" if isinstance(found, float) else f"{name:<{WIDTH}} {found:>10}"
    elif not is_figure(found):
        for key, value in found.items():
            if key != "goals":
                yield from lines(f"{name}.{key}", value)
        yield from goal_lines(found)
    else:
        yield from figure_lines(name, found)


def figure_lines(name, found):
    ours = found["tessera"]
    own = f"{name:<{WIDTH}} {ours['best_seconds'] * 1e3:>9.3f} {ours['median_seconds'] * 1e3:>9.3f}"
    for reference, other in found["references"].items():
        beside = f"{reference} ({other['variant']})"
        yield (f"{own}  {beside:<29} {other['best_seconds'] * 1e3:>9.3f} {other['median_seconds'] * 1e3:>9.3f} "
               f"{other['best_ratio']:>6.2f} {other['median_ratio']:>7.2f}")
        own = " " * len(own)
    for reference, reason in found["skipped"].items():
        yield f"{own}  {reference}: skipped: {reason}"
        own = " " * len(own)
    yield from goal_lines(found)


def goal_lines(found):
    for goal in found.get("goals", ()):
        yield f"{'':<{WIDTH}} {'':>19}  {'reached' if goal['met'] else 'MISSED '}: {goal['text']}"


def missed(found, name=""):
    """Names of figures with a goal that is not reached."""
    if not isinstance(found, dict):
        return
    if not all(goal["met"] for goal in found.get("goals", ())):
        yield name
    if is_figure(found):
        return
    for key, value in found.items():
        yield from missed(value, f"{name}.{key}" if name else key)


def machine():
    models = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n")
              if line.startswith("model name")]
    return {"cpu": models[0] if models else platform.processor(), "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(), "date": datetime.date.today().isoformat()}


def path_in(folder):
    return folder / "tessera.json"


def write(result, folder):
    """Adds to what a run of other figures left in the folder's file; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_in(folder)
    kept = json.loads(path.read_text()) if path.exists() else {}
    figures = {**kept.get("figures", {}), **result["figures"]} if kept.get("machine") == result["machine"] else result["figures"]
    path.write_text(json.dumps({**result, "figures": figures}, indent=1) + "\n")
    return path


# ---- as Markdown, for docs/performance.md ----------------------------------------------------------


def milliseconds(samples):
    short = lambda value: f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: E731
    return f"{short(samples['best_seconds'] * 1e3)} ({short(samples['median_seconds'] * 1e3)})"


def markdown(result):
    """The table of docs/performance.md: every figure that stands beside something."""
    yield "| figure | Tessera, ms | beside | ms | ratio | goal |"
    yield "|---|---|---|---|---|---|"
    for name, found in flat(result["figures"]):
        goals = {goal["text"].split("x ", 1)[-1].split(" + ")[0]: goal for goal in found["goals"]}
        shown = f"`{name}` | {milliseconds(found['tessera'])}"
        for reference, other in found["references"].items():
            goal = goals.get(reference)
            told = f"{goal['text']}: {'reached' if goal['met'] else '**missed**'}" if goal else ""
            yield (f"| {shown} | {reference} ({other['variant']}) | {milliseconds(other)} | "
                   f"{other['best_ratio']:.2f} ({other['median_ratio']:.2f}) | {told} |")
            shown = " | "


def flat(figures, prefix=""):
    for name, found in figures.items():
        if not isinstance(found, dict):
            continue
        if is_figure(found):
            yield prefix + name, found
        else:
            yield from flat(found, f"{prefix}{name}.")

"""The share table's rows of PyTorch: an unmodified client that authenticates its driver, on real hardware only."""
from .runner import NotPossible
from .share import Audit, ceiling, shorter

MODES = ("sync", "async", "graph", "streams")
SECONDS = 1.2
# PyTorch's first import on a cold machine reads gigabytes.
START_SECONDS = 90
# Tolerance in points. Products are counted, and each is assumed to take as long as one in a graph, at the same device
# clocks.
TOLERANCE = 3
# Products of four streams overlap at their ends, so a full device counts as more than full.
OVERLAP = 5


def shares(suite, env, modes=MODES):
    watch = Audit(suite)
    try:
        got = suite.run(suite.python("torch_share.py", shorter(suite, SECONDS), *modes), env, START_SECONDS + 4 * (SECONDS + 3)).json()
    finally:
        watch.end()
    for found in got["modes"].values():
        if "window" in found:
            found["nvml"] = watch.mean(found["window"])
    return got


def limited(percent):
    def body(suite, claims):
        got = shares(suite, ceiling(suite, percent))
        claims.keep("torch", {"version": got["torch"], "size": got["size"]})
        claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
        for mode in MODES:
            found = claims.keep(mode, got["modes"][mode])
            if found.get("share") is None:
                claims.that(f"{mode}: it could be measured", False, found.get("error") or "the device wrote no record")
                continue
            error = 100 * found["share"] - percent
            points = TOLERANCE + (OVERLAP if mode == "streams" else 0)
            found.update(asked_percent=percent, error_points=round(error, 2), tolerance_points=points)
            claims.that(f"{mode}: {percent} % to {points} points", abs(error) <= points, round(error, 2))
    return body


def without_limit(suite, claims):
    """Control: the loops' shares of the device without a ceiling, which 80 % must be below."""
    got = shares(suite, suite.environment(), MODES[:2])
    claims.keep("torch", {"version": got["torch"], "size": got["size"]})
    claims.that("the library is not there", not got["libvgpu"], got["libvgpu"])
    for mode in MODES[:2]:
        found = claims.keep(f"{mode}, bare", got["modes"][mode])
        if found.get("error"):
            raise NotPossible(f"{mode}: {found['error']}")
        claims.that(f"{mode}: the device is busy", (found["share"] or 0) >= 0.85, found["share"])


def checks(table):
    return [
        ("share torch 30 %", "PyTorch, four ways to launch: the ceiling is held, and given", table.point(limited(30), 15)),
        ("share torch 80 %", "PyTorch, four ways to launch: the ceiling is held, and given", table.point(limited(80), 15)),
        ("share torch control", "without a limit PyTorch keeps the device busy", table.point(without_limit, 15)),
    ]

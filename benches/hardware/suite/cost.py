"""The cost that the library adds to a call: bare and preloaded processes in turn, medians, differences within a round.

A null control (bare against bare) gives the noise of the machine. The budget is widened by it, and both are recorded.
"""
from . import share
from .memory import limited
from .numbers import judge
from .runner import NotPossible

# Processes take most of the time, so the most frequent call gets more rounds.
ROUNDS = {"launch": 5}
FEWER = 3
MARKER_ROUNDS = 2


def bench(suite, env, kind, *arguments):
    got = suite.run([suite.bundle.probe, "--bench", kind, *map(str, arguments)], env, 30).json()
    if "error" in got:
        raise NotPossible(f"--bench {kind}: {got['error']}")
    return got


def compare(kind, budgets, *arguments):
    def body(suite, claims):
        variants = {
            "bare": lambda: suite.environment(),
            "bare again": lambda: suite.environment(),
            "library, no limit": lambda: suite.environment(preload=True, VGPU_TENANT=suite.tenant()),
            "library, memory limit": lambda: limited(suite),
            "library, SM limit": lambda: suite.environment(preload=True, VGPU_TENANT=suite.tenant(), VGPU_SM_LIMIT=90),
            "library, SM limit 30": lambda: suite.environment(preload=True, VGPU_TENANT=suite.tenant(), VGPU_SM_LIMIT=30),
        }
        medians = {name: [] for name in variants if name.startswith("bare") or name in budgets}
        mapped = {name: set() for name in medians}
        for _ in range(ROUNDS.get(kind, FEWER)):
            for name in medians:
                got = bench(suite, variants[name](), kind, *arguments)
                medians[name].append(got["result"]["times"]["median"])
                mapped[name].add(got["libvgpu_mapped"])
        claims.keep("medians_ns", medians)
        for name in medians:
            wanted = {not name.startswith("bare")}
            claims.that(f"{name}: the library is {'in' if True in wanted else 'not in'} the process",
                        mapped[name] == wanted, sorted(mapped[name]))
        for name, budget in budgets.items():
            judged = claims.keep(name, judge(medians["bare"], medians["bare again"], medians[name], budget))
            claims.that(f"{kind}, {name}: added cost within {budget} ns and the noise", judged["within"], judged)
    return body


def markers(mode, ns, seconds):
    """The cost of gate and event markers where launches never wait: the pace of consecutive kernels under a ceiling
    of 100 %, against the bare one, by the begin times that the kernels recorded."""
    def body(suite, claims):
        names = {"bare": None, "bare again": None, "library, no limit": None, "library, SM limit 100": 100}
        paces = {name: [] for name in names}
        for _ in range(MARKER_ROUNDS):
            for name, percent in names.items():
                env = suite.environment() if name.startswith("bare") else share.ceiling(suite, percent)
                _, found = share.run(suite, env, mode, ns, seconds, 0.2, "--batch", "2000" if mode == "async" else "0",
                                     audit=False)
                claims.keep(f"pace, {name}", {"pace_ns": found["pace_ns"], "gap_ns": found["gap_ns"], "truth": found["truth"]})
                paces[name].append(found["pace_ns"])
                claims.that(f"{name}: the library is {'not ' if percent is None and 'bare' in name else ''}there",
                            found["libvgpu"] != name.startswith("bare"), found["libvgpu"])
        # One percent of the device's time, event markers included; a kernel that is waited for pays for its own two
        # markers.
        budget = ns / 100 if mode == "async" else 5_000
        for name in ("library, no limit", "library, SM limit 100"):
            judged = claims.keep(name, judge(paces["bare"], paces["bare again"], paces[name], budget))
            claims.that(f"{name}: the device's pace within {budget:.0f} ns a kernel and the noise", judged["within"], judged)
    return body


CHECKS = [
    # With an SM limit the bound covers the library's own code and its event markers in short bursts of empty kernels.
    ("cost of a launch", "a launch costs hardly more with the library",
     compare("launch", {"library, no limit": 10, "library, SM limit": 250, "library, SM limit 30": 250})),
    ("cost of alloc and free", "an allocation and its release cost hardly more with the library",
     compare("alloc", {"library, no limit": 300, "library, memory limit": 300}, "--batches", 40)),
    ("cost of cuMemGetInfo", "asking costs hardly more with the library",
     compare("meminfo", {"library, no limit": 30, "library, memory limit": 30}, "--batches", 40)),
    ("cost of markers, queued", "kernels of 50 us one after another: at most one percent of the device",
     markers("async", 50_000, 0.7)),
    ("cost of markers, waited for", "kernels of 50 us, each waited for", markers("sync", 50_000, 0.7)),
]

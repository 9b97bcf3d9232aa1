"""What the library adds to a call: bare and preloaded processes in turn, medians, differences within a round.

A null control (bare against bare) gives the noise of the machine; the budget is widened by it, and both are written down.
"""
from .memory import limited
from .numbers import judge
from .runner import NotPossible

ROUNDS = 5


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
        }
        medians = {name: [] for name in variants if name.startswith("bare") or name in budgets}
        mapped = {name: set() for name in medians}
        for _ in range(ROUNDS):
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


CHECKS = [
    # With an SM limit the bound holds the library's own code and its markers in short bursts of empty kernels.
    ("cost of a launch", "a launch costs hardly more with the library",
     compare("launch", {"library, no limit": 10, "library, SM limit": 250})),
    ("cost of alloc and free", "an allocation and its release cost hardly more with the library",
     compare("alloc", {"library, no limit": 300, "library, memory limit": 300}, "--batches", 40)),
    ("cost of cuMemGetInfo", "asking costs hardly more with the library",
     compare("meminfo", {"library, no limit": 30, "library, memory limit": 30}, "--batches", 40)),
]

"""The share table: programs' shares of the device, judged by the clocks of their own kernels.

Each point is a check of its own, in processes of its own, so that a failure does not stop the next one. All points
together have TABLE_SECONDS; a point that no longer fits is reported as not carried out. The truth is the kernels' own
records (programs/kernels.py, stamps.py). A simulated device executes no code; there completed kernels are counted.
NVML's utilisation is shown next to each share as a cross-check and judges nothing.
"""
import os
import tempfile

from . import stamps
from .runner import NotPossible

# All points together, PyTorch's included.
TABLE_SECONDS = 150
# Seconds that the start of a process on a device may take, and that the last round may exceed the request.
START_SECONDS = 25
# A tenant's burst under a ceiling: this much of its window may be used at once (gpu-time.md: 50 ms of the ceiling).
SAVED_NS = 50_000_000


def length(ns):
    return f"{ns // 1_000_000_000} s" if ns >= 10**9 else f"{ns // 1_000_000} ms" if ns >= 10**6 else f"{ns // 1000} us"


def tolerance(percent, ns, window_ns):
    """Tolerance in points: one, as promised for long windows, plus the parts of these short windows that one kernel
    and the burst make up."""
    return 1 + 100 * (ns + SAVED_NS * percent / 100) / window_ns


def ceiling(suite, percent, tenant=None, **extra):
    limit = {} if percent is None else {"VGPU_SM_LIMIT": percent}
    return suite.environment(preload=True, VGPU_TENANT=tenant or suite.tenant(), **limit, **extra)


class Table:
    """The common time limit of all points."""

    def __init__(self, seconds=TABLE_SECONDS):
        self.left = seconds

    def point(self, body, needs):
        """Wraps the body as a check within the table's time."""
        def check(suite, claims):
            if self.left < needs:
                raise NotPossible(f"the share table's {TABLE_SECONDS} s are used up: {needs:.0f} s do not fit any more")
            begun = suite.now()
            try:
                body(suite, claims)
            finally:
                self.left -= suite.now() - begun
        return check


class Audit:
    """NVML's utilisation while a program runs."""

    # Seconds. NVML's value describes the time before it, a sixth of a second and more.
    LATE = 0.2

    def __init__(self, suite):
        # It starts while the program runs; nothing waits for it.
        self.watcher, self.samples, self.error = suite.hold(suite.python("watch.py"), suite.environment()), [], None

    def end(self):
        try:
            self.watcher.process.stdin.close()
            self.watcher.line(20)
            got = self.watcher.line(10)
            self.samples, self.error = got["samples"], "; ".join(got["errors"]) or None
        except (NotPossible, OSError) as reason:
            self.error = str(reason)
        finally:
            self.watcher.kill()

    def mean(self, window):
        """Mean over a window of the monotonic clock, in seconds."""
        values = [percent for at, percent in self.samples if window[0] + self.LATE <= at <= window[1] + self.LATE]
        if not values:
            return {"error": self.error or "no sample in the window"}
        return {"mean_percent": round(sum(values) / len(values), 1), "samples": len(values)}


class Spinner:
    """One process of programs/spin.py, and its records."""

    def __init__(self, suite, mode, ns, seconds, settle, *options):
        self.suite = suite
        descriptor, self.path = tempfile.mkstemp(prefix="stamps-")
        os.close(descriptor)
        self.argv = suite.python("spin.py", mode, ns, seconds, "--settle", settle, "--stamps", self.path, *options)

    def records(self):
        try:
            return stamps.read(self.path)
        finally:
            os.unlink(self.path)


def judged(got, records, suite):
    """Share of a process that had the device for itself, and the source of that number."""
    if got["recorded"] > got["room"] - 1:
        raise NotPossible("more kernels than there is room for records")
    if records:
        # Kernels before the window are left out. Without any, the first two are, because their length was not known
        # yet.
        found = stamps.alone(records, got["settled"] or 2)
        if found is None:
            raise NotPossible(f"too few kernels to judge by: {len(records)} records, {got['settled']} before the window")
        return {"truth": "the kernels' clock", **found}
    if not suite.sim:
        raise NotPossible("the kernels left no record")
    busy = got["counted"] * got["kernel_ns"]
    return {"truth": "kernels counted", "share": busy / got["wall_ns"], "busy_ns": busy, "window_ns": got["wall_ns"],
            "kernels": got["counted"], "pace_ns": round(got["wall_ns"] / got["counted"], 1), "gap_ns": None}


def shorter(suite, seconds):
    """On a simulated device the windows are short: the programs are tried there, and nothing is measured."""
    return seconds * 0.25 if suite.sim else seconds


def run(suite, env, mode, ns, seconds, settle, *options, audit=True):
    seconds, settle = shorter(suite, seconds), shorter(suite, settle)
    spinner = Spinner(suite, mode, ns, seconds, settle, *options)
    watch = Audit(suite) if audit else None
    try:
        # A round may be two long kernels, at a tenth of the device.
        got = suite.run(spinner.argv, env, seconds + settle + START_SECONDS).json()
    finally:
        if watch:
            watch.end()
        records = spinner.records()
    if "not_possible" in got:
        raise NotPossible(got["not_possible"])
    return got, {"libvgpu": got["libvgpu"], "code": got["code"], **judged(got, records, suite),
                 "nvml": watch.mean(got["window"]) if watch else None}


def around(claims, found, percent, ns, above_only=False):
    """The claim of a point: the share is the requested one, within the tolerance of its window."""
    points = tolerance(percent, ns, found["window_ns"])
    error = 100 * found["share"] - percent
    found.update(asked_percent=percent, error_points=round(error, 2), tolerance_points=round(points, 2))
    if above_only:
        claims.that(f"never above {percent} % by more than {points:.1f} points", error <= points, round(error, 2))
    else:
        claims.that(f"{percent} % to {points:.1f} points", abs(error) <= points, round(error, 2))


def alone(mode, ns, percent, seconds, settle=0.5, *options):
    def body(suite, claims):
        _, found = run(suite, ceiling(suite, percent), mode, ns, seconds, settle, *options)
        claims.keep("share", found)
        claims.that("the library is in the process", found["libvgpu"], found["libvgpu"])
        around(claims, found, percent, ns)
    return body


def without_limit(suite, claims):
    """Control: the program can keep the device busy, with and without the library."""
    for name, env in (("bare", suite.environment()), ("library, no limit", ceiling(suite, None))):
        _, found = run(suite, env, "async", 1_000_000, 1.5, 0.3)
        claims.keep(name, found)
        claims.that(f"{name}: the device is busy", 0.9 <= found["share"] <= 1.03, found["share"])
        claims.that(f"{name}: the library is {'not ' if name == 'bare' else ''}there", found["libvgpu"] != (name == "bare"),
                    found["libvgpu"])


def beside(suite, members, seconds, settle):
    """Starts programs at the same time and returns their shares, and NVML's value."""
    seconds = shorter(suite, seconds)
    spinners, held = [], []
    for env, mode, ns in members:
        spinner = Spinner(suite, mode, ns, seconds + settle, 0, "--wait")
        spinners.append(spinner)
        held.append(suite.hold(spinner.argv, env))
    for one in held:
        one.line(START_SECONDS)
    watch = Audit(suite)
    for one in held:
        one.process.stdin.write("go\n")
        one.process.stdin.flush()
    said = []
    try:
        for one in held:
            said.append(one.line(seconds + settle + START_SECONDS))
    finally:
        for one in held:
            one.kill()
        watch.end()
        records = [spinner.records() for spinner in spinners]
    window = [max(got["window"][0] for got in said), min(got["window"][1] for got in said)]
    if all(records):
        found = stamps.together(records, int(settle * 1e9))
        if found is None:
            raise NotPossible("the programs did not run beside one another")
        found["truth"] = "the kernels' clock"
    elif suite.sim:
        shares = [got["counted"] * got["kernel_ns"] / got["wall_ns"] for got in said]
        shortest = min(got["wall_ns"] for got in said)
        found = {"truth": "kernels counted", "shares": shares, "share": sum(shares), "window_ns": shortest,
                 "busy_ns": round(sum(shares) * shortest)}
    else:
        raise NotPossible("the kernels left no record")
    return {"libvgpu": all(got["libvgpu"] for got in said), **found, "nvml": watch.mean(window)}


def two_processes(mode, ns, percent, seconds):
    """One ceiling for both together."""
    def body(suite, claims):
        env = ceiling(suite, percent)
        found = claims.keep("share", beside(suite, [(env, mode, ns)] * 2, seconds, 0.7))
        claims.that("the library is in both", found["libvgpu"], found["libvgpu"])
        around(claims, found, percent, ns)
    return body


def each(claims, found, asked, ns, above_only):
    for share, percent, name in zip(found["shares"], asked, "ab"):
        one = claims.keep(f"tenant {name}", {"share": share, "window_ns": found["window_ns"], "truth": found["truth"]})
        around(claims, one, percent, ns, above_only)


def two_tenants(ns, seconds):
    """Without the daemon each has its own account, and ceilings hold. Both use less, because event time includes the
    other's slices."""
    def body(suite, claims):
        asked = (30, 70)
        found = claims.keep("both", beside(suite, [(ceiling(suite, p), "async", ns) for p in asked], seconds, 0.7))
        claims.that("the library is in both", found["libvgpu"], found["libvgpu"])
        each(claims, found, asked, ns, above_only=True)
    return body


def two_tenants_of_the_daemon(ns, seconds):
    """With the daemon the device is arbitrated, and each gets its configured share."""
    def body(suite, claims):
        if not suite.bundle.vgpud:
            raise NotPossible("vgpud is not beside the library")
        asked = (30, 70)
        with tempfile.TemporaryDirectory(prefix="vgpud-", dir="/tmp") as place:
            tenants = [f"{name}:sm={percent}" for name, percent in zip("ab", asked)]
            daemon = suite.hold([suite.bundle.vgpud, "--runtime-dir", place, "--log", "warn", "--tenant", tenants[0],
                                 "--tenant", tenants[1]], suite.environment())
            sockets = [os.path.join(place, "tenants", name, "vgpud.sock") for name in "ab"]
            daemon.until(lambda: all(os.path.exists(path) for path in sockets), 10, "its sockets")
            found = claims.keep("both", beside(
                suite, [(ceiling(suite, None, VGPU_SOCKET=path), "async", ns) for path in sockets], seconds, 0.7))
            daemon.kill()
        claims.that("the library is in both", found["libvgpu"], found["libvgpu"])
        each(claims, found, asked, ns, above_only=False)
    return body


MS = 1_000_000
SECOND = 1000 * MS
# Columns: mode, kernel, percent, seconds of the window, seconds before it. Every mode occurs with every ceiling and
# every kernel length. Kernels of a fifth of a second and more need no time before: their first two are left out.
POINTS = [
    ("async", MS, 30, 2, 0.5), ("sync", MS, 50, 2, 0.5), ("graph", MS, 80, 1.5, 0.5), ("streams", MS, 30, 2, 0.5),
    ("async", 50_000, 30, 1.5, 0.5), ("sync", 50_000, 30, 1.5, 0.5), ("graph", 50_000, 50, 1.5, 0.5),
    ("streams", 50_000, 80, 1.5, 0.5),
    ("async", 5 * MS, 50, 1.5, 0.5), ("sync", 5 * MS, 80, 1.5, 0.5), ("graph", 5 * MS, 30, 1.5, 0.5),
    ("streams", 5 * MS, 10, 2.5, 0.5),
    ("async", 20 * MS, 30, 2.5, 0.5), ("sync", 20 * MS, 10, 3, 0.5), ("streams", 20 * MS, 50, 2, 0.5),
    ("async", 200 * MS, 50, 4, 0), ("sync", 200 * MS, 80, 3, 0), ("async", SECOND, 80, 5, 0),
    ("async", MS, 10, 1.5, 0.5), ("async", MS, 50, 1.5, 0.5), ("async", MS, 80, 1.5, 0.5),
]


# Number of rows that come before everything else of the table.
FIRST = 9


def checks(table):
    """The table's rows, the most important first."""
    def row(name, promise, body, seconds):
        return (f"share {name}", promise, table.point(body, seconds + 1))

    rows = [row("control", "without a limit the device is busy, with and without the library", without_limit, 5)]
    rows += [row(f"{mode} {length(ns)} {percent} %", "the ceiling is held, and given",
                 alone(mode, ns, percent, seconds, settle), seconds + settle) for mode, ns, percent, seconds, settle in POINTS[:4]]
    rows += [
        row("two processes 1 ms 30 %", "one ceiling for both together", two_processes("async", MS, 30, 2.5), 4),
        row("two tenants 1 ms 30/70", "each ceiling is held beside another tenant", two_tenants(MS, 2.5), 4),
        row("two tenants 1 ms 30/70, vgpud", "each gets what the daemon gave it", two_tenants_of_the_daemon(MS, 2.5), 5),
        row("NVRTC 1 ms 30 %", "code that NVRTC compiled from CUDA C++: the ceiling is held, and given",
            alone("async", MS, 30, 1.5, 0.5, "--source", "nvrtc"), 3),
    ]
    rows += [row(f"{mode} {length(ns)} {percent} %", "the ceiling is held, and given",
                 alone(mode, ns, percent, seconds, settle), seconds + settle) for mode, ns, percent, seconds, settle in POINTS[4:]]
    rows.append(row("two processes 20 ms 50 %", "one ceiling for both together", two_processes("async", 20 * MS, 50, 2.5), 5))
    return rows

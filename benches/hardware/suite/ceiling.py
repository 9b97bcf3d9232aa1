"""The ceiling on device time, judged by the kernels' own clock.

The spin kernel takes the device time in its parameter, by the device's own timer and without the time of other
contexts. So the number of completed kernels times that length, divided by the wall time, is the share of the device. No
counter of the library under test takes part. The program and the count differ from those of the share table (share.py),
so that each checks the other.
"""
from .runner import NotPossible

SECONDS = 6


def share(suite, env, seconds, batch, kernel_ns=1_000_000):
    argv = [suite.bundle.probe, "--bench", "spin", "--seconds", str(seconds), "--batch", str(batch),
            "--kernel-ns", str(kernel_ns)]
    got = suite.run(argv, env, seconds * 3 + 30).json()
    if "error" in got:
        raise NotPossible(f"--bench spin: {got['error']}")
    return {"libvgpu": got["libvgpu_mapped"], **got["result"]}


def with_limit(suite, percent):
    return suite.environment(preload=True, VGPU_TENANT=suite.tenant(), VGPU_SM_LIMIT=percent)


def unlimited(suite, claims):
    """Without the library, and with it and no limit, the loop keeps the device busy."""
    bare = claims.keep("bare", share(suite, suite.environment(), 2, 20))
    claims.that("bare: the device is busy", 0.9 <= bare["share"] <= 1.02 and not bare["libvgpu"], bare)
    env = suite.environment(preload=True, VGPU_TENANT=suite.tenant())
    loaded = claims.keep("library, no limit", share(suite, env, 2, 20))
    claims.that("library, no limit: the device is busy", 0.9 <= loaded["share"] <= 1.02 and loaded["libvgpu"], loaded)


def thirty(batch):
    def body(suite, claims):
        got = claims.keep("limited", share(suite, with_limit(suite, 30), SECONDS, batch))
        claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
        claims.that("30 % asked: 25 to 35 %", 0.25 <= got["share"] <= 0.35, got["share"])
    return body


CHECKS = [
    ("time without a limit", "the loop keeps the device busy, with and without the library (control)", unlimited),
    ("time 30 %, wait after each", "1 ms kernels, each waited for: 25 to 35 % of the device", thirty(1)),
    ("time 30 %, queue of 20", "1 ms kernels, twenty in a row: 25 to 35 % of the device", thirty(20)),
]

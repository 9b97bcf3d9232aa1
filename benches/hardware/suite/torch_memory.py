"""The memory promises with PyTorch, an unmodified client that authenticates its driver: real hardware only."""
import os

from .memory import LIMIT, OVERHEAD, limited
from .runner import GIB, MIB

CAP = 8 * GIB
# PyTorch's first import on a cold machine reads gigabytes.
FIRST = 150


def environment_of(allocator):
    # Newer versions use the second name; both may be set.
    return {"PYTORCH_CUDA_ALLOC_CONF": allocator, "PYTORCH_ALLOC_CONF": allocator} if allocator else {}


def present(suite, claims):
    """PyTorch is installed and sees the device: otherwise nothing below has a meaning."""
    got = claims.keep("torch", suite.run(suite.python("torch_quota.py", "probe"), suite.environment(), FIRST).json())
    claims.that("PyTorch sees a device", got["available"] and got["devices"] >= 1, got)
    loaded = claims.keep("preloaded", suite.run(suite.python("torch_quota.py", "facts"), suite.environment(
        preload=True, VGPU_TENANT=suite.tenant()), 90).json())
    bare = claims.keep("bare", suite.run(suite.python("torch_quota.py", "facts"), suite.environment(), 90).json())
    claims.that("the library is in the preloaded one only", loaded["libvgpu"] and not bare["libvgpu"],
                [loaded["libvgpu"], bare["libvgpu"]])
    claims.that("without a limit the total is the same", loaded["total"] == bare["total"],
                [loaded["total"], bare["total"]])
    filled = claims.keep("bare fill", suite.run(
        suite.python("torch_quota.py", "fill", 256 * MIB, 5 * GIB), suite.environment(), 90).json())
    claims.that("5 GiB can be had where nothing limits (control)", filled["got"] == 5 * GIB and not filled["error"],
                [filled["got"], filled["error"]])


def out_of_memory(allocator, proof):
    def body(suite, claims):
        env = limited(suite, **environment_of(allocator))
        got = claims.keep("filled", suite.run(suite.python("torch_quota.py", "fill", 256 * MIB, CAP), env, 90).json())
        claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
        claims.that("the limit is active: mem_get_info's total is 4 GiB", got["mem_get_info_at_the_end"][1] == LIMIT,
                    got["mem_get_info_at_the_end"])
        claims.that("the allocator under test is the one in use", proof(got), [got["backend"], got["expandable"]])
        kind = (got["error"] or {}).get("kind")
        claims.that("PyTorch raises torch.cuda.OutOfMemoryError", kind == "torch.cuda.OutOfMemoryError", got["error"])
        claims.that("the driver answers out of memory (2) in the same process", got["driver_code"] == 2,
                    got["driver_code"])
        claims.that("never more than the limit", got["got"] <= LIMIT, got["got"])
        claims.that("the quota can be used, less what contexts take", got["got"] >= LIMIT - OVERHEAD - 256 * MIB, got["got"])
        claims.that("what was given holds its values", got["intact"] is True, got["intact"])
        claims.that("after freeing it goes on", got["error_after_free"] is None, got["error_after_free"])
    return body


def numbers_agree(suite, claims):
    """mem_get_info and the device's properties show the limit while memory is held."""
    got = claims.keep("facts", suite.run(suite.python("torch_quota.py", "facts"), limited(suite), 90).json())
    claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
    claims.that("mem_get_info's total is 4 GiB", got["total"] == LIMIT, got["total"])
    claims.that("the properties' total is 4 GiB", got["properties_total"] == LIMIT, got["properties_total"])
    claims.that("free is at most the total", 0 < got["free"] <= LIMIT, got["free"])


def shared_by_two(suite, claims):
    """Two PyTorch processes of one tenant share one quota."""
    tenant = suite.tenant()
    part = 2 * GIB
    first = suite.hold(suite.python("torch_quota.py", "hold", part), limited(suite, tenant))
    try:
        one = claims.keep("first", first.line(90))
        claims.that("the library is in the process", one["libvgpu"], one["libvgpu"])
        claims.that("the first has its 2 GiB", one["held"] == part, one)
        two = claims.keep("second", suite.run(
            suite.python("torch_quota.py", "fill", 256 * MIB, CAP), limited(suite, tenant), 90).json())
        kind = (two["error"] or {}).get("kind")
        claims.that("the second gets OutOfMemoryError", kind == "torch.cuda.OutOfMemoryError", two["error"])
        claims.that("both together never exceed the limit", part + two["got"] <= LIMIT, part + two["got"])
        claims.that("the second could use the rest, less what contexts take",
                    part + two["got"] >= LIMIT - 2 * OVERHEAD, part + two["got"])
    finally:
        first.kill()


def bad_limit(suite, claims):
    """torch.cuda.init fails on a limit that is not understood, and one line gives the reason."""
    env = suite.environment(preload=True, VGPU_TENANT=suite.tenant(), VGPU_MEMORY_LIMIT="abc")
    finished = suite.run(suite.python("torch_quota.py", "init"), env, 90)
    got = claims.keep("init", finished.json())
    claims.keep("stderr", finished.err[-600:])
    lines = [line for line in finished.err.splitlines() if line.startswith("vgpu:")]
    claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
    claims.that("torch.cuda.init raises", got["error"] is not None, got["error"])
    claims.that("one line names the variable and the value",
                len(lines) == 1 and "VGPU_MEMORY_LIMIT" in lines[0] and "abc" in lines[0], lines)
    good = claims.keep("control", suite.run(suite.python("torch_quota.py", "init"), limited(suite), 90).json())
    claims.that("with a good limit it does not (control)", good["error"] is None, good["error"])


CHECKS = [
    ("torch present", "PyTorch runs, and the library without a limit changes nothing", present),
    ("torch numbers agree", "mem_get_info and properties show the limit", numbers_agree),
    ("torch caching allocator", "OutOfMemoryError at a 4 GiB limit",
     out_of_memory(None, lambda got: got["backend"] == "native" and not got["expandable"])),
    ("torch expandable segments", "OutOfMemoryError at a 4 GiB limit",
     out_of_memory("expandable_segments:True", lambda got: got["backend"] == "native" and got["expandable"])),
    ("torch cudaMallocAsync", "OutOfMemoryError at a 4 GiB limit",
     out_of_memory("backend:cudaMallocAsync", lambda got: got["backend"] == "cudaMallocAsync")),
    ("torch two processes", "one quota for both", shared_by_two),
    ("torch bad limit", "torch.cuda.init fails and says why", bad_limit),
]

"""The memory promises by ctypes alone: they hold for any program, and no framework can be the cause of a fault."""
import os
import shutil

from .runner import GIB, MIB, NotPossible

LIMIT = 4 * GIB
# Bytes that contexts may take beyond the charges before the claim "the quota can be used" fails.
OVERHEAD = GIB


def limited(suite, tenant=None, **extra):
    return suite.environment(preload=True, VGPU_TENANT=tenant or suite.tenant(), VGPU_MEMORY_LIMIT="4GiB", **extra)


def facts(suite, env):
    return suite.run(suite.python("quota.py", "facts"), env).json()


def null_control(suite, claims):
    """The library without limits changes no number."""
    bare = claims.keep("bare", facts(suite, suite.environment()))
    loaded = claims.keep("preloaded", facts(suite, suite.environment(preload=True, VGPU_TENANT=suite.tenant())))
    claims.that("the bare program does not have the library", not bare["libvgpu"], bare["libvgpu"])
    claims.that("the preloaded program has it", loaded["libvgpu"], loaded["libvgpu"])
    for name in ("cuda_total", "device_total"):
        claims.that(f"{name} is the same without a limit", bare[name] == loaded[name], [bare[name], loaded[name]])
    claims.that("NVML's total is the same without a limit", bare["nvml_v1"]["total"] == loaded["nvml_v1"]["total"],
                [bare["nvml_v1"]["total"], loaded["nvml_v1"]["total"]])
    cap = LIMIT + GIB
    filled = claims.keep("filled", suite.run(suite.python("quota.py", "fill", "plain", 256 * MIB, cap),
                                             suite.environment()).json())
    claims.that("5 GiB can be had where nothing limits", filled["got"] == cap and filled["code"] == 0,
                [filled["got"], filled["code"]])


def numbers_agree(suite, claims):
    """Every query gives the limit as total, and the same number as used."""
    tenant = suite.tenant()
    holder = suite.hold(suite.python("quota.py", "hold", GIB), limited(suite, tenant))
    held = claims.keep("holder", holder.line(60))
    claims.that("the holder has the library and its memory", held["libvgpu"] and held["held"] == GIB, held)
    seen = claims.keep("facts", facts(suite, limited(suite, tenant)))
    for name, value in (("cuMemGetInfo", seen["cuda_total"]), ("cuDeviceTotalMem", seen["device_total"]),
                        ("NVML v1", seen["nvml_v1"]["total"]), ("NVML v2", seen["nvml_v2"]["total"])):
        claims.that(f"{name} gives the limit as total", value == LIMIT, value)
    used = LIMIT - seen["cuda_free"]
    claims.that("the neighbour's memory counts as used", used >= GIB, used)
    claims.that("CUDA and NVML agree on what is used", seen["nvml_v1"]["used"] == used, [seen["nvml_v1"]["used"], used])


def nvidia_smi(suite, claims):
    """nvidia-smi under the same limit shows the limit."""
    program = os.environ.get("NVIDIA_SMI") or shutil.which("nvidia-smi")
    if not program:
        raise NotPossible("nvidia-smi is not on this machine")
    argv = [program, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    bare = suite.run(argv, suite.environment())
    tenant = suite.tenant()
    holder = suite.hold(suite.python("quota.py", "hold", GIB), limited(suite, tenant))
    held = claims.keep("holder", holder.line(60))
    seen = suite.run(argv, limited(suite, tenant))
    claims.keep("bare", (bare.out + bare.err).strip()[-400:])
    claims.keep("limited", (seen.out + seen.err).strip()[-400:])
    if bare.rc != 0:
        raise NotPossible(f"nvidia-smi fails without the library too: exit {bare.rc}, {(bare.out + bare.err)[-300:]}")
    try:
        total, used = (int(part) for part in seen.out.strip().splitlines()[0].split(","))
    except (ValueError, IndexError):
        claims.that("nvidia-smi under the limit prints two numbers", False, (seen.out + seen.err)[-400:])
        return
    claims.that("without a limit it shows more", int(bare.out.split(",")[0]) > 4096, bare.out.strip())
    claims.that("the total is the limit, in MiB", total == 4096, total)
    inside = (LIMIT - held["free"]) / MIB
    claims.that("used is what CUDA says, to one MiB", abs(used - inside) <= 1, [used, inside])


def refusal(family):
    def body(suite, claims):
        got = claims.keep("filled", suite.run(suite.python("quota.py", "fill", family, 64 * MIB, 8 * GIB),
                                              limited(suite)).json())
        claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
        claims.that("the total is the limit", got["mem_info_before"][1] == LIMIT, got["mem_info_before"])
        claims.that("the refusal is out of memory (2)", got["code"] == 2, got["code"])
        claims.that("never more than the limit", got["got"] <= LIMIT, got["got"])
        claims.that("the quota can be used, less what contexts take", got["got"] >= LIMIT - OVERHEAD, got["got"])
        claims.that("what was freed can be had again", got["code_after_free"] == 0, got["code_after_free"])
    return body


def last_byte(suite, claims):
    """Free memory can be allocated down to the last 512 bytes."""
    got = claims.keep("filled", suite.run(suite.python("quota.py", "last", 8 * GIB), limited(suite)).json())
    claims.that("the library is in the process", got["libvgpu"], got["libvgpu"])
    claims.that("every refusal is out of memory (2)", got["refusal_codes"] == [2], got["refusal_codes"])
    claims.that("what was free could be had, to the last 512 bytes",
                0 <= got["free_at_start"] - got["got"] < 512 + 512, [got["free_at_start"], got["got"]])
    claims.that("nothing is free at the end", got["free_at_end"] < 512, got["free_at_end"])


def shared_by_two(suite, claims):
    """Two processes of one tenant share one quota; a dead process's memory is released."""
    tenant = suite.tenant()
    part = 5 * GIB // 2
    first = suite.hold(suite.python("quota.py", "hold", part), limited(suite, tenant))
    second = None
    try:
        one = claims.keep("first", first.line(60))
        claims.that("the first has its 2.5 GiB", one["held"] == part, one)
        second = suite.hold(suite.python("quota.py", "hold", part), limited(suite, tenant))
        two = claims.keep("second", second.line(60))
        claims.that("the second is refused with out of memory (2)", two["code"] == 2, two)
        stranger = claims.keep("other tenant", suite.run(
            suite.python("quota.py", "fill", "plain", 512 * MIB, part), limited(suite)).json())
        claims.that("another tenant is not (control)", stranger["got"] == part, stranger["got"])
        first.kill()
        again = claims.keep("after the kill", suite.run(
            suite.python("quota.py", "fill", "plain", 512 * MIB, part), limited(suite, tenant)).json())
        claims.that("after kill -9 of the first its memory can be had", again["got"] == part, again["got"])
    finally:
        first.kill()
        if second:
            second.kill()


def bad_limit(suite, claims):
    """A limit that is not understood does not mean no limit: initialisation fails, with one line that gives the
    reason."""
    good = claims.keep("control", suite.run(suite.python("quota.py", "init"), limited(suite)).json())
    claims.that("with a good limit both initialise (control)", good["cuInit"] == 0 and good["nvmlInit"] == 0, good)
    env = suite.environment(preload=True, VGPU_TENANT=suite.tenant(), VGPU_MEMORY_LIMIT="abc")
    finished = suite.run(suite.python("quota.py", "init"), env)
    codes = claims.keep("codes", finished.json())
    lines = [line for line in finished.err.splitlines() if line.startswith("vgpu:")]
    claims.keep("stderr", finished.err[-600:])
    claims.that("the library is in the process", codes["libvgpu"], codes["libvgpu"])
    claims.that("cuInit answers not permitted (800)", codes["cuInit"] == 800, codes["cuInit"])
    claims.that("nvmlInit answers no permission (4)", codes["nvmlInit"] == 4, codes["nvmlInit"])
    claims.that("one line names the variable and the value",
                len(lines) == 1 and "VGPU_MEMORY_LIMIT" in lines[0] and "abc" in lines[0], lines)


CHECKS = [
    ("memory null control", "without a limit the library changes no number", null_control),
    ("memory numbers agree", "cuMemGetInfo, cuDeviceTotalMem, NVML v1 and v2 show the limit and the same use", numbers_agree),
    ("memory nvidia-smi", "nvidia-smi shows the limit as total", nvidia_smi),
    ("memory cuMemAlloc", "refused with code 2 at the limit, never beyond", refusal("plain")),
    ("memory cuMemAllocAsync", "refused with code 2 at the limit, never beyond", refusal("async")),
    ("memory cuMemCreate", "refused with code 2 at the limit, never beyond", refusal("vmm")),
    ("memory last byte", "what is free can be had", last_byte),
    ("memory two processes", "one quota for both; kill -9 gives back", shared_by_two),
    ("memory bad limit", "initialisation fails and says why", bad_limit),
]

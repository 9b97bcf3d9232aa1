"""Memory as an ordinary program sees it, by ctypes alone.

    quota.py facts                  totals and free memory by every way there is
    quota.py fill FAMILY CHUNK CAP  allocate CHUNK bytes at a time until refused or CAP bytes are held
    quota.py last CAP               allocate to the last 512 bytes
    quota.py hold BYTES             allocate BYTES, say so, keep them until the input ends
    quota.py init                   the bare codes of cuInit and nvmlInit

FAMILY is plain, async or vmm. The result is one line of JSON.
"""
import ctypes
import sys

from cuda import Cuda, Nvml, libvgpu_mapped, tell


def facts():
    cuda = Cuda()
    free, total = cuda.mem_info()
    first, second = Nvml(cuda.pci()).memory()
    return {"libvgpu": libvgpu_mapped(), "cuda_total": total, "cuda_free": free, "device_total": cuda.device_total(),
            "nvml_v1": first, "nvml_v2": second}


def fill(family, chunk, cap):
    cuda = Cuda()
    take, give = {"plain": (cuda.alloc, cuda.free), "async": (cuda.alloc_async, cuda.free_async),
                  "vmm": (cuda.create, cuda.release)}[family]
    before = cuda.mem_info()
    held, code = [], 0
    while (len(held) + 1) * chunk <= cap:
        code, what = take(chunk)
        if code != 0:
            break
        held.append(what)
    at_the_end = cuda.mem_info()
    got = len(held) * chunk
    for what in held:
        give(what)
    cuda.sync()
    again, what = take(chunk)
    if again == 0:
        give(what)
    return {"libvgpu": libvgpu_mapped(), "family": family, "chunk": chunk, "got": got, "code": code,
            "mem_info_before": before, "mem_info_at_the_end": at_the_end, "code_after_free": again}


def last(cap):
    cuda = Cuda()
    free, total = cuda.mem_info()
    held, got, refusals = [], 0, []
    chunk = 1 << 30
    while chunk >= 512:
        if got + chunk > cap:
            chunk //= 2
            continue
        code, address = cuda.alloc(chunk)
        if code == 0:
            held.append(address)
            got += chunk
        else:
            refusals.append(code)
            chunk //= 2
    left, _ = cuda.mem_info()
    for address in held:
        cuda.free(address)
    return {"libvgpu": libvgpu_mapped(), "free_at_start": free, "total": total, "got": got, "free_at_end": left,
            "refusal_codes": sorted(set(refusals)), "refusals": len(refusals)}


def hold(size):
    cuda = Cuda()
    code, _ = cuda.alloc(size)
    free, total = cuda.mem_info()
    tell({"libvgpu": libvgpu_mapped(), "code": code, "held": size if code == 0 else 0, "free": free, "total": total})
    sys.stdin.readline()
    return None


def init():
    cuda = ctypes.CDLL("libcuda.so.1")
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    return {"libvgpu": libvgpu_mapped(), "cuInit": cuda.cuInit(0), "nvmlInit": nvml.nvmlInit_v2()}


def main(arguments):
    what, *rest = arguments
    if what == "fill":
        result = fill(rest[0], int(rest[1]), int(rest[2]))
    else:
        result = {"facts": facts, "last": last, "hold": hold, "init": init}[what](*map(int, rest))
    if result is not None:
        tell(result)


if __name__ == "__main__":
    main(sys.argv[1:])

"""PyTorch as an ordinary program uses it, against a memory quota.

    torch_quota.py probe            is there a PyTorch with a device at all
    torch_quota.py facts            totals and free memory as PyTorch sees them
    torch_quota.py fill CHUNK CAP   tensors of CHUNK bytes until torch.cuda.OutOfMemoryError or CAP bytes are held
    torch_quota.py hold BYTES       a tensor of BYTES, kept until the input ends
    torch_quota.py init             torch.cuda.init() alone

The result is one line of JSON.
"""
import ctypes
import sys
import time

from cuda import libvgpu_mapped, tell

started = time.monotonic()
import torch  # noqa: E402  (the time that it takes is part of the evidence)

imported = time.monotonic() - started


def common():
    return {"libvgpu": libvgpu_mapped(), "torch": torch.__version__, "import_s": round(imported, 2),
            "backend": torch.cuda.memory.get_allocator_backend()}


def probe():
    return {**common(), "available": torch.cuda.is_available(), "devices": torch.cuda.device_count()}


def facts():
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    return {**common(), "free": free, "total": total, "properties_total": torch.cuda.get_device_properties(0).total_memory}


def tensor(size):
    # Written on the device, so that promised but missing memory would show.
    made = torch.empty(size, dtype=torch.uint8, device="cuda")
    made.fill_(7)
    return made


def driver_code(size):
    """The driver's own code for a plain allocation in this process, next to PyTorch."""
    address = ctypes.c_uint64()
    lib = ctypes.CDLL("libcuda.so.1")
    code = lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if code == 0:
        lib.cuMemFree_v2(address)
    return code


def fill(chunk, cap):
    torch.cuda.init()
    held, error = [], None
    while (len(held) + 1) * chunk <= cap:
        try:
            held.append(tensor(chunk))
        except torch.cuda.OutOfMemoryError as oom:
            error = {"kind": "torch.cuda.OutOfMemoryError", "text": str(oom).splitlines()[0][:300]}
            break
        except Exception as other:  # noqa: BLE001  (which kind it is, is the finding)
            error = {"kind": type(other).__name__, "text": str(other)[:300]}
            break
    got = len(held) * chunk
    # Every tensor has the right values, read without a further allocation: all granted memory is real.
    intact = all(int(t[at].item()) == 7 for t in held for at in (0, chunk // 2, chunk - 1))
    code = driver_code(cap)
    snapshot = torch.cuda.memory_snapshot() if torch.cuda.memory.get_allocator_backend() == "native" else []
    expandable = any(segment.get("is_expandable") for segment in snapshot)
    info = torch.cuda.mem_get_info()
    held.clear()
    torch.cuda.empty_cache()
    again = None
    try:
        tensor(chunk)
    except Exception as other:  # noqa: BLE001
        again = f"{type(other).__name__}: {str(other)[:200]}"
    return {**common(), "got": got, "error": error, "intact": intact, "driver_code": code, "expandable": expandable,
            "mem_get_info_at_the_end": info, "error_after_free": again}


def hold(size):
    made = error = None
    try:
        made = tensor(size)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        error = "torch.cuda.OutOfMemoryError"
    free, total = torch.cuda.mem_get_info()
    tell({**common(), "held": 0 if made is None else size, "error": error, "free": free, "total": total})
    sys.stdin.readline()


def init():
    try:
        torch.cuda.init()
        error = None
    except Exception as other:  # noqa: BLE001
        error = f"{type(other).__name__}: {str(other)[:300]}"
    return {**common(), "error": error}


def main(arguments):
    what, *rest = arguments
    result = {"probe": probe, "facts": facts, "fill": fill, "hold": hold, "init": init}[what](*map(int, rest))
    if result is not None:
        tell(result)


if __name__ == "__main__":
    main(sys.argv[1:])

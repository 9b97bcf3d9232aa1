#!/usr/bin/env python3
"""05: the driver from Python by ctypes alone. An ordinary program; nothing of vgpu is in it.

    vgpu run --sim --memory-limit 1GiB -- python3 examples/05_ctypes.py
"""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def must(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name} answered {code}")


context, address = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
must("cuCtxSetCurrent", context)
must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
print("total:", total.value)
print("free:", free.value)
must("cuMemAlloc_v2", ctypes.byref(address), free)  # all that is left
print("allocated:", free.value)
print("one byte more: code", cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1)))
must("cuMemFree_v2", address)

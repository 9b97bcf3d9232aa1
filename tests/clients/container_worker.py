"""Keeps the device busy with kernels of 1 ms until the file /gpu/enough appears.

usage: container_worker.py NAME       (creates /gpu/NAME when it begins; prints the code of the failed call, or 0)
"""
import ctypes
import os
import sys
import time

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)
{
ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")
dev, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()


def must(code):
    if code:
        print(code, flush=True)
        sys.exit(1)


must(cuda.cuInit(0))
must(cuda.cuDeviceGet(ctypes.byref(dev), 0))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, dev))
must(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
must(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"vgpu_spin_ns"))
length = ctypes.c_uint64(1_000_000)
parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
launch, one, nothing = cuda.cuLaunchKernel, ctypes.c_uint(1), ctypes.c_void_p()
with open("/gpu/" + sys.argv[1], "w", encoding="ascii"):
    pass
end = time.monotonic() + 120
while not os.path.exists("/gpu/enough") and time.monotonic() < end:
    for _ in range(32):
        must(launch(kernel, one, one, one, one, one, one, ctypes.c_uint(0), nothing, parameters, nothing))
    must(cuda.cuCtxSynchronize())
print(0)

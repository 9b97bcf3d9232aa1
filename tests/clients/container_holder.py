"""Takes device memory and holds it until the file /gpu/enough appears; then prints the result of a second such request.

usage: container_holder.py BYTES      (prints: holding / cuInit, cuCtxCreate, cuMemAlloc codes, then the second's code)

With BYTES:now it does not wait, for a second process in a running container.
"""
import ctypes
import os
import sys
import time

size, _, now = sys.argv[1].partition(":")
cuda = ctypes.CDLL("libcuda.so.1")
dev, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()


def alloc():
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size)))


codes = [cuda.cuInit(0)]
if codes == [0]:
    cuda.cuDeviceGet(ctypes.byref(dev), 0)
    codes.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, dev))
    if codes[-1] == 0:
        codes.append(alloc())
print(*codes, flush=True)
if not now:
    with open("/gpu/holding", "w", encoding="ascii"):
        pass
    end = time.monotonic() + 120
    while not os.path.exists("/gpu/enough") and time.monotonic() < end:
        time.sleep(0.02)
    print(alloc())

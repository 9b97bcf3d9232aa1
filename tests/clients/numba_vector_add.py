"""numba-cuda: a kernel compiled on the CPU, launched, waited for; memory there and back.

usage: numba_vector_add.py NAME_OF_THE_DEVICE [computes]
With `computes` the sums must be right: a simulated device launches kernels and computes nothing.
"""
import sys

import numpy as np
from numba import cuda

name, computes = sys.argv[1], "computes" in sys.argv[2:]


def same(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, should be {wanted!r}")


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


device = cuda.get_current_device()
found = device.name if isinstance(device.name, str) else device.name.decode()
same("name", found, name)
free, total = cuda.current_context().get_memory_info()
n = 1_000_003
x = np.random.default_rng(1).random(n, dtype=np.float32)
y = np.arange(n, dtype=np.float32)
stream = cuda.stream()
dx, dy = cuda.to_device(x, stream=stream), cuda.to_device(y, stream=stream)
out = cuda.device_array_like(dx)
begin, end = cuda.event(), cuda.event()
begin.record(stream)
for _ in range(3):
    add[(n + 255) // 256, 256, stream](dx, dy, out)
end.record(stream)
stream.synchronize()
same("the kernels took time", begin.elapsed_time(end) > 0, True)
same("x came back", np.array_equal(dx.copy_to_host(), x), True)
same("y came back", np.array_equal(dy.copy_to_host(), y), True)
# Device to device, and a slice.
copy = cuda.device_array_like(dx)
copy.copy_to_device(dx)
same("a slice came back", np.array_equal(copy[1000:2000].copy_to_host(), x[1000:2000]), True)
result = out.copy_to_host()
if computes:
    same("sums", np.allclose(result, x + y), True)
pinned = cuda.pinned_array(n, dtype=np.float32)
dx.copy_to_host(pinned, stream=stream)
stream.synchronize()
same("pinned memory", np.array_equal(pinned, x), True)
taken = free - cuda.current_context().get_memory_info()[0]
same("four arrays are there", taken >= 4 * 4 * n, True)
print(f"numba-cuda: {name}, {n} elements there and back, {total} bytes in all")

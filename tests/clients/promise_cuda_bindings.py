"""The view of a program with cuda-bindings under a limit: prints one line of JSON, which the test judges.

Knows nothing of vgpu. Requests all memory that is shown as free, in one piece, then more.
"""

import json
import os

from cuda.bindings import driver


def call(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else values or None


call(driver.cuInit(0))
device = call(driver.cuDeviceGet(0))
context = call(driver.cuDevicePrimaryCtxRetain(device))
call(driver.cuCtxSetCurrent(context))
free, total = call(driver.cuMemGetInfo())
seen = {"pid": os.getpid(), "total": total, "free": free, "device_total": call(driver.cuDeviceTotalMem(device))}
one_too_many, _ = driver.cuMemAlloc(free + 1)
pointer = call(driver.cuMemAlloc(free))
one_more, _ = driver.cuMemAlloc(1)
seen |= {"one_too_many": int(one_too_many), "one_more": int(one_more), "name": driver.cuGetErrorName(one_more)[1].decode()}
seen["free_when_full"], _ = call(driver.cuMemGetInfo())
# The memory is real: data written at its end can be read back.
data = bytearray(b"vgpu" * 256)
back = bytearray(1024)
call(driver.cuMemcpyHtoD(int(pointer) + free - 1024, data, 1024))
call(driver.cuMemcpyDtoH(back, int(pointer) + free - 1024, 1024))
seen["content"] = back == data
print(json.dumps(seen), flush=True)
input()  # holds it until the device's truth was read
call(driver.cuMemFree(pointer))
print(json.dumps(call(driver.cuMemGetInfo())), flush=True)

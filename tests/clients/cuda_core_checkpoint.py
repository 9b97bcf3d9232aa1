"""cuda.core as a program that checkpoints itself: its memory leaves the device and comes back with its content.

usage: cuda_core_checkpoint.py
Prints one JSON object: version, states (in order), same (the content), array (its width), managed.
"""
import json
import os
import sys

from cuda.bindings import driver as cu
from cuda.core import checkpoint


def ok(answer):
    if int(answer[0]) != 0:
        sys.exit(f"{answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


ok(cu.cuInit(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
n = 32 << 20
p, m = ok(cu.cuMemAlloc(n)), ok(cu.cuMemAllocManaged(n, 1))
ok(cu.cuMemsetD8(p, 42, n))
shape = cu.CUDA_ARRAY3D_DESCRIPTOR()
shape.Width, shape.Height, shape.Depth, shape.NumChannels = 640, 480, 0, 4
shape.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
array = ok(cu.cuArray3DCreate(shape))

me = checkpoint.Process(os.getpid())
states = [me.state]
for step in (lambda: me.lock(timeout_ms=10_000), me.checkpoint, me.restore, me.unlock):
    step()
    states.append(me.state)

back = bytearray(n)
ok(cu.cuMemcpyDtoH(back, p, n))
print(
    json.dumps(
        {
            "version": ok(cu.cuDriverGetVersion()),
            "states": states,
            "same": back == b"\x2a" * n,
            "array": ok(cu.cuArray3DGetDescriptor(array)).Width,
            "managed": bool(ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, m))),
        }
    )
)

"""cuda-bindings as an ordinary program that allocates until it is refused.

usage: cuda_bindings_quota.py [BYTES_PER_ALLOCATION]
Prints one JSON object: device_total, total, free_before, allocated, count, code (of the refusal), free_full, free_after.
"""
import json
import sys

from cuda.bindings import driver as cu


def ok(answer):
    if int(answer[0]) != 0:
        sys.exit(f"{answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


step = int(sys.argv[1]) if len(sys.argv) > 1 else 64 << 20
ok(cu.cuInit(0))
dev = ok(cu.cuDeviceGet(0))
device_total = ok(cu.cuDeviceTotalMem(dev))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(dev))))
free_before, total = ok(cu.cuMemGetInfo())
live, allocated = [], 0
while True:
    code, p = cu.cuMemAlloc(step)
    if int(code) != 0:
        # The rest in smaller and smaller pieces, down to the driver's smallest unit.
        if step <= 512:
            break
        step = max(512, step // 2)
        continue
    live.append(p)
    allocated += step
free_full = ok(cu.cuMemGetInfo())[0]
for p in live:
    ok(cu.cuMemFree(p))
print(
    json.dumps(
        {
            "device_total": device_total,
            "total": total,
            "free_before": free_before,
            "allocated": allocated,
            "count": len(live),
            "code": int(code),
            "free_full": free_full,
            "free_after": ok(cu.cuMemGetInfo())[0],
        }
    )
)

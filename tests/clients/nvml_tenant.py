"""Values that nvidia-ml-py shows a tenant of a device, as one line of JSON.

usage: nvml_tenant.py PID ...     (processes to ask for by number)
"""
import json
import sys

import pynvml as nv


def asked(f, *arguments):
    """The answer, or the error's code in a list."""
    try:
        return f(*arguments)
    except nv.NVMLError as error:
        return [error.value]


nv.nvmlInit()
dev = nv.nvmlDeviceGetHandleByIndex(0)
memory = nv.nvmlDeviceGetMemoryInfo(dev)
rates = nv.nvmlDeviceGetUtilizationRates(dev)
seen = {"total": memory.total, "used": memory.used, "gpu": rates.gpu, "memory": rates.memory}
for kind in ("Compute", "Graphics", "MPSCompute"):
    for version in ("", "_v2", "_v3"):
        name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
        seen[kind + version] = [[p.pid, p.usedGpuMemory] for p in getattr(nv, name)(dev)]
seen["details"] = [[p.pid, p.usedGpuMemory] for p in nv.nvmlDeviceGetRunningProcessDetailList(dev, nv.nvmlProcessDetailList_v1, 0)]
samples = asked(nv.nvmlDeviceGetProcessUtilization, dev, 0)
seen["sampled"] = samples if samples == [6] else [[s.pid, s.smUtil] for s in samples]
values = asked(nv.nvmlDeviceGetSamples, dev, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
seen["samples"] = sorted({s.sampleValue.uiVal for s in values[1]})
seen["accounting"] = nv.nvmlDeviceGetAccountingPids(dev)
pids = [int(word) for word in sys.argv[1:]]
seen["names"] = [asked(nv.nvmlSystemGetProcessName, pid) for pid in pids]
stats = [asked(nv.nvmlDeviceGetAccountingStats, dev, pid) for pid in pids]
seen["stats"] = [s if isinstance(s, list) else {"gpu": s.gpuUtilization, "most": s.maxMemoryUsage, "runs": s.isRunning} for s in stats]
seen["video"] = [asked(nv.nvmlDeviceGetEncoderUtilization, dev), asked(nv.nvmlDeviceGetDecoderUtilization, dev)]
seen["set"] = [asked(nv.nvmlDeviceSetPersistenceMode, dev, 1), asked(nv.nvmlDeviceSetComputeMode, dev, 0)]
print(json.dumps(seen))

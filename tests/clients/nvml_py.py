"""nvidia-ml-py on a device with one running process: its values must equal the given numbers.

usage: nvml_py.py JSON, an object with: index, count, name, uuid, total, reserved, used, pid, process_bytes, busy
"""
import json
import sys
import time

import pynvml as nv


def same(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, should be {wanted!r}")


want = json.loads(sys.argv[1])
nv.nvmlInit()
same("count", nv.nvmlDeviceGetCount(), want["count"])
dev = nv.nvmlDeviceGetHandleByIndex(want["index"])
same("name", nv.nvmlDeviceGetName(dev), want["name"])
same("uuid", nv.nvmlDeviceGetUUID(dev), want["uuid"])
same("by uuid", nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(want["uuid"])), want["index"])
pci = nv.nvmlDeviceGetPciInfo(dev)
same("by pci", nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(pci.busId)), want["index"])
serial = nv.nvmlDeviceGetSerial(dev)
same("by serial", nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleBySerial(serial)), want["index"])

v1 = nv.nvmlDeviceGetMemoryInfo(dev)
v2 = nv.nvmlDeviceGetMemoryInfo(dev, version=nv.nvmlMemory_v2)
same("v1 total", v1.total, want["total"])
same("v1 used", v1.used, want["used"] + want["reserved"])
same("v1 sum", v1.used + v1.free, v1.total)
same("v2 total", v2.total, want["total"])
same("v2 reserved", v2.reserved, want["reserved"])
same("v2 used", v2.used, want["used"])
same("v2 sum", v2.reserved + v2.used + v2.free, v2.total)

for version in ("", "_v2", "_v3"):
    lister = getattr(nv, "nvmlDeviceGetComputeRunningProcesses" + version)
    found = [(p.pid, p.usedGpuMemory) for p in lister(dev)]
    same("processes" + version, found, [(want["pid"], want["process_bytes"])])
same("graphics", nv.nvmlDeviceGetGraphicsRunningProcesses(dev), [])
same("mps", nv.nvmlDeviceGetMPSComputeRunningProcesses(dev), [])

# Samples arrive late: wait for them, with a limit.
if want["busy"]:
    end = time.monotonic() + 20
    while nv.nvmlDeviceGetUtilizationRates(dev).gpu < 90 and time.monotonic() < end:
        time.sleep(0.05)
    same("utilisation of a saturated device", nv.nvmlDeviceGetUtilizationRates(dev).gpu >= 90, True)
    samples = nv.nvmlDeviceGetProcessUtilization(dev, 0)
    same("sampled processes", [s.pid for s in samples], [want["pid"]])
    same("its share is there", samples[0].smUtil > 0, True)
    lag = time.time() - samples[0].timeStamp / 1e6
    same(f"samples are late, but not by much ({lag:.3f} s)", 0 < lag < 30, True)
else:
    same("utilisation of an idle device", nv.nvmlDeviceGetUtilizationRates(dev).gpu, 0)
    try:
        nv.nvmlDeviceGetProcessUtilization(dev, 0)
        sys.exit("an idle device has samples")
    except nv.NVMLError_NotFound:
        pass

try:
    nv.nvmlDeviceGetHandleByIndex(want["count"])
    sys.exit("there is a device too many")
except nv.NVMLError_InvalidArgument:
    pass
try:
    nv.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    sys.exit("there is a device nobody knows")
except nv.NVMLError_NotFound:
    pass
try:
    nv.nvmlDeviceGetTotalEccErrors(dev, 7, 7)
    sys.exit("an error type nobody knows")
except nv.NVMLError_InvalidArgument:
    pass

events = nv.nvmlEventSetCreate()
nv.nvmlDeviceRegisterEvents(dev, nv.nvmlEventTypeXidCriticalError, events)
try:
    nv.nvmlEventSetWait_v2(events, 10)
    sys.exit("an event nobody sent")
except nv.NVMLError_Timeout:
    pass
nv.nvmlEventSetFree(events)

nv.nvmlShutdown()
try:
    nv.nvmlDeviceGetCount()
    sys.exit("it works after shutdown")
except nv.NVMLError_Uninitialized:
    pass
print("nvidia-ml-py: ok")

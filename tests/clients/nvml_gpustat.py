"""gpustat's own query (what its command prints) on a device with one running process.

usage: nvml_gpustat.py JSON, an object with: index, count, name, uuid, total, reserved, used, pid, process_bytes
"""
import json
import sys

import gpustat

MIB = 1 << 20
want = json.loads(sys.argv[1])
stats = gpustat.GPUStatCollection.new_query()
if len(stats) != want["count"]:
    sys.exit(f"{len(stats)} devices, should be {want['count']}")
gpu = stats[want["index"]].jsonify()
expected = {
    "name": want["name"],
    "uuid": want["uuid"],
    "memory.total": want["total"] // MIB,
    "memory.used": want["used"] // MIB,
}
for key, value in expected.items():
    if gpu[key] != value:
        sys.exit(f"{key}: {gpu[key]!r}, should be {value!r}")
processes = [(p["pid"], p["gpu_memory_usage"]) for p in gpu["processes"]]
if processes != [(want["pid"], want["process_bytes"] // MIB)]:
    sys.exit(f"processes: {processes}")
print("gpustat: ok")

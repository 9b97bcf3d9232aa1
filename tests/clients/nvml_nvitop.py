"""nvitop's own view of a device with one running process, through its library and its one-shot screen (-1).

usage: nvml_nvitop.py JSON, an object with: index, count, name, uuid, total, used, pid, process_bytes
"""
import json
import re
import subprocess
import sys

from nvitop import Device

want = json.loads(sys.argv[1])


def same(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, should be {wanted!r}")


same("count", Device.count(), want["count"])
dev = Device(index=want["index"])
same("name", dev.name(), want["name"])
same("uuid", dev.uuid(), want["uuid"])
same("total", dev.memory_total(), want["total"])
same("used", dev.memory_used(), want["used"])
processes = {pid: p.gpu_memory() for pid, p in dev.processes().items()}
same("processes", processes, {want["pid"]: want["process_bytes"]})

screen = subprocess.run([sys.executable, "-m", "nvitop", "-1", "--ascii"], capture_output=True, text=True, check=False)
same(f"exit code of nvitop -1 ({screen.stderr})", screen.returncode, 0)
row = rf"^\W+{want['index']}\s+{want['pid']}\s"
same(f"the process is on the screen:\n{screen.stdout}", bool(re.search(row, screen.stdout, re.M)), True)
print("nvitop: ok")

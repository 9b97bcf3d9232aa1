"""Devices that nvidia-ml-py finds by each kind of lookup, as one line of JSON.

usage: nvml_devices.py JSON, a list of UUIDs to ask for
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


def found(handle):
    return handle if isinstance(handle, list) else nv.nvmlDeviceGetUUID(handle)


nv.nvmlInit()
count = nv.nvmlDeviceGetCount()
boards = [nv.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
seen = {"boards": [nv.nvmlDeviceGetUUID(board) for board in boards]}
seen["beyond"] = found(asked(nv.nvmlDeviceGetHandleByIndex, count))
seen["index"] = [nv.nvmlDeviceGetIndex(board) for board in boards]
seen["memory"] = [m if isinstance(m, list) else m.total for m in (asked(nv.nvmlDeviceGetMemoryInfo, b) for b in boards)]
seen["uuid"] = [found(asked(nv.nvmlDeviceGetHandleByUUID, uuid)) for uuid in json.loads(sys.argv[1])]
pci = [nv.nvmlDeviceGetPciInfo(board).busId for board in boards]
seen["pci"] = [found(asked(nv.nvmlDeviceGetHandleByPciBusId, place)) for place in pci]
seen["serial"] = [found(asked(nv.nvmlDeviceGetHandleBySerial, nv.nvmlDeviceGetSerial(board))) for board in boards]
# Every bus address that a board of the simulated machine can have.
places = (asked(nv.nvmlDeviceGetHandleByPciBusId, f"00000000:{bus:02X}:00.0") for bus in range(256))
seen["all places"] = sorted(found(handle) for handle in places if not isinstance(handle, list))
instances = [[found(asked(nv.nvmlDeviceGetMigDeviceHandleByIndex, board, index)) for index in range(3)] for board in boards]
seen["instances"] = instances
print(json.dumps(seen))

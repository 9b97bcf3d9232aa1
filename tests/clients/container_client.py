"""The view of a program in a container; needs nothing but Python and nvidia-ml-py. Prints one JSON object.

usage: container_client.py BYTES_THAT_FIT BYTES_THAT_DO_NOT

Queries NVML and the driver, by dlopen and dlsym, as any CUDA program does.
"""
import ctypes
import json
import os
import sys

import pynvml as nv

fits, too_much = int(sys.argv[1]), int(sys.argv[2])
seen = {"uid": os.getuid(), "pid": os.getpid(), "mapped": "libvgpu.so" in open("/proc/self/maps", encoding="ascii").read()}
try:
    open("/written", "w", encoding="ascii").close()
    os.unlink("/written")
    seen["root_is_writable"] = True
except OSError:
    seen["root_is_writable"] = False

nv.nvmlInit()
device = nv.nvmlDeviceGetHandleByIndex(0)
seen["nvml_total"] = nv.nvmlDeviceGetMemoryInfo(device).total
seen["nvml_total_v2"] = nv.nvmlDeviceGetMemoryInfo(device, version=nv.nvmlMemory_v2).total

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    return getattr(cuda, name)(*arguments)


def must(name, *arguments):
    code = call(name, *arguments)
    if code != 0:
        sys.exit(f"{name} = {code}")


dev, context = ctypes.c_int(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
must("cuInit", 0)
must("cuDeviceGet", ctypes.byref(dev), 0)
must("cuDeviceTotalMem_v2", ctypes.byref(total), dev)
seen["device_total"] = total.value
must("cuCtxCreate_v2", ctypes.byref(context), 0, dev)
must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
seen["cuda_total"], seen["cuda_free"] = total.value, free.value

pointer = ctypes.c_uint64()
seen["too_much"] = call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(too_much))
seen["fits"] = call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(fits))
must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
seen["cuda_free_after"] = free.value
seen["nvml_used_after"] = nv.nvmlDeviceGetMemoryInfo(device).used

# The allocated memory holds data.
text = b"the last byte can be written"
back = ctypes.create_string_buffer(len(text))
end = ctypes.c_uint64(pointer.value + fits - len(text))
must("cuMemcpyHtoD_v2", end, text, ctypes.c_size_t(len(text)))
must("cuMemcpyDtoH_v2", back, end, ctypes.c_size_t(len(text)))
seen["content"] = back.raw == text
must("cuMemFree_v2", pointer)
must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
seen["cuda_free_at_last"] = free.value
print(json.dumps(seen))

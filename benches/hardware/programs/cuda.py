"""The CUDA driver and NVML by ctypes, as an ordinary program uses them; nothing here knows of libvgpu.

Calls return the driver's code. The programs next to this file use it; no third-party module is needed.
"""
import ctypes
import json
import sys

u64 = ctypes.c_uint64
size_t = ctypes.c_size_t
pointer = ctypes.c_void_p


class AllocationProp(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_kind", ctypes.c_int),
                ("location_id", ctypes.c_int), ("security", pointer), ("flags", ctypes.c_ubyte * 8)]


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", u64), ("free", u64), ("used", u64)]


class NvmlMemory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("total", u64), ("reserved", u64), ("free", u64), ("used", u64)]


class Refused(Exception):
    """A call that must succeed failed."""


class Cuda:
    """One device, with its primary context current."""

    def __init__(self, ordinal=0):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.must("cuInit", 0)
        device = ctypes.c_int()
        self.must("cuDeviceGet", ctypes.byref(device), ordinal)
        self.device = device.value
        context = pointer()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.must("cuCtxSetCurrent", context)

    def code(self, name, *arguments):
        return getattr(self.lib, name)(*arguments)

    def must(self, name, *arguments):
        code = self.code(name, *arguments)
        if code != 0:
            raise Refused(f"{name} answered {code}")

    def mem_info(self):
        free, total = size_t(), size_t()
        self.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def device_total(self):
        total = size_t()
        self.must("cuDeviceTotalMem_v2", ctypes.byref(total), self.device)
        return total.value

    def pci(self):
        text = ctypes.create_string_buffer(32)
        self.must("cuDeviceGetPCIBusId", text, 32, self.device)
        return text.value

    def alloc(self, size):
        """(code, address)"""
        address = u64()
        return self.code("cuMemAlloc_v2", ctypes.byref(address), size_t(size)), address.value

    def free(self, address):
        self.must("cuMemFree_v2", u64(address))

    def alloc_async(self, size):
        address = u64()
        return self.code("cuMemAllocAsync", ctypes.byref(address), size_t(size), pointer()), address.value

    def free_async(self, address):
        self.must("cuMemFreeAsync", u64(address), pointer())

    def create(self, size):
        """A physical allocation of the VMM interface."""
        prop = AllocationProp(kind=1, location_kind=1, location_id=self.device)
        handle = u64()
        return self.code("cuMemCreate", ctypes.byref(handle), size_t(size), ctypes.byref(prop), u64(0)), handle.value

    def release(self, handle):
        self.must("cuMemRelease", u64(handle))

    def sync(self):
        self.must("cuCtxSynchronize")


class Nvml:
    """NVML with the device at a PCI address, or with its first device."""

    def __init__(self, pci=None):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.must("nvmlInit_v2")
        self.device = pointer()
        if pci is None:
            self.must("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self.device))
        else:
            self.must("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p(pci), ctypes.byref(self.device))

    def must(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            raise Refused(f"{name} answered {code}")

    def memory(self):
        first = NvmlMemory()
        self.must("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(first))
        second = NvmlMemory2(version=0x2000028)
        self.must("nvmlDeviceGetMemoryInfo_v2", self.device, ctypes.byref(second))
        return ({"total": first.total, "free": first.free, "used": first.used},
                {"total": second.total, "free": second.free, "used": second.used, "reserved": second.reserved})


def libvgpu_mapped():
    """True if libvgpu is really mapped in this process; checked before its limits are judged."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any("/libvgpu.so" in line for line in maps)


def tell(value):
    """Writes one line of JSON for the process that started this program."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()

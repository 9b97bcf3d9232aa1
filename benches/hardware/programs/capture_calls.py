"""Calls that use no stream, each made while a stream captures: which of them the driver treats as potentially unsafe.

NVIDIA publishes only examples of that list. Part of capture_rules.py.
"""
import ctypes

from capture_scene import MODES, SIZE, rule
from cuda import AllocationProp, pointer, size_t, u64
from kernels import PTX


class PoolProperties(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("location_kind", ctypes.c_int),
                ("location_id", ctypes.c_int), ("security", pointer), ("most", size_t), ("reserved", ctypes.c_ubyte * 56)]


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("width", size_t), ("height", size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint)]


def unsafe(s):
    """Calls without a stream: those that the simulated device treats as potentially unsafe, and some that it does
    not."""
    module, array, pool, host, count = pointer(), pointer(), pointer(), pointer(), size_t()
    free = (ctypes.c_ubyte * SIZE)()
    keep = s.left.append
    keep(lambda: free)
    descriptor = ArrayDescriptor(64, 64, 0x20, 1)
    properties = PoolProperties(kind=1, location_kind=1, location_id=s.d.cuda.device)
    physical = AllocationProp(kind=1, location_kind=1, location_id=s.d.cuda.device)
    text = PTX.encode() + b"\0"
    default, value = pointer(), u64()
    s.d.cuda.must("cuDeviceGetDefaultMemPool", ctypes.byref(default), s.d.cuda.device)
    old, graph, executable = pointer(), pointer(), pointer()
    s.d.cuda.must("cuModuleLoadData", ctypes.byref(old), ctypes.c_char_p(text))
    s.d.cuda.must("cuGraphCreate", ctypes.byref(graph), 0)
    s.d.cuda.must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, u64(0))
    keep(lambda: s.code("cuGraphDestroy", graph))
    _, taken = s.d.cuda.alloc(SIZE)
    granularity = size_t()
    s.d.cuda.must("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(physical), 0)

    def give_back(what, name):
        if what.value:
            keep(lambda: s.code(name, what))

    def made(call, what, name, *arguments):
        code = s.code(call, ctypes.byref(what), *arguments)
        give_back(what, name)
        return code

    def ended(name, what):
        code = s.code(name, what)
        if code != 0:
            keep(lambda: s.code(name, what))
        return code

    fresh = u64
    return {
        "cuMemFree_v2": lambda: ended("cuMemFree_v2", u64(taken)),
        "cuModuleUnload": lambda: ended("cuModuleUnload", old),
        "cuGraphExecDestroy": lambda: ended("cuGraphExecDestroy", executable),
        "cuMemAlloc_v2": lambda: made("cuMemAlloc_v2", fresh(), "cuMemFree_v2", size_t(SIZE)),
        "cuMemAllocManaged": lambda: made("cuMemAllocManaged", fresh(), "cuMemFree_v2", size_t(SIZE), 1),
        "cuMemHostAlloc": lambda: made("cuMemHostAlloc", pointer(), "cuMemFreeHost", size_t(SIZE), 0),
        "cuMemAllocHost_v2": lambda: made("cuMemAllocHost_v2", host, "cuMemFreeHost", size_t(SIZE)),
        "cuMemHostRegister_v2": lambda: registered(s, free),
        "cuArrayCreate_v2": lambda: made("cuArrayCreate_v2", array, "cuArrayDestroy", ctypes.byref(descriptor)),
        "cuMemPoolCreate": lambda: made("cuMemPoolCreate", pool, "cuMemPoolDestroy", ctypes.byref(properties)),
        "cuMemPoolGetAttribute": lambda: s.code("cuMemPoolGetAttribute", default, 4, ctypes.byref(value)),
        "cuMemPoolTrimTo": lambda: s.code("cuMemPoolTrimTo", default, size_t(1 << 40)),
        "cuModuleLoadData": lambda: made("cuModuleLoadData", module, "cuModuleUnload", ctypes.c_char_p(text)),
        "cuMemCreate": lambda: made("cuMemCreate", fresh(), "cuMemRelease", granularity, ctypes.byref(physical), u64(0)),
        "cuMemGetInfo_v2": lambda: s.code("cuMemGetInfo_v2", ctypes.byref(count), ctypes.byref(size_t())),
        "cuStreamQuery": lambda: s.code("cuStreamQuery", s.idle),
        "cuStreamSynchronize": lambda: s.code("cuStreamSynchronize", s.idle),
        "cuEventQuery": lambda: s.code("cuEventQuery", s.done),
        "cuEventSynchronize": lambda: s.code("cuEventSynchronize", s.done),
        "cuEventCreate": lambda: made("cuEventCreate", pointer(), "cuEventDestroy_v2", 2),
        "cuStreamCreate": lambda: made("cuStreamCreate", pointer(), "cuStreamDestroy_v2", 1),
        "cuDeviceGetAttribute": lambda: s.code("cuDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 75, s.d.cuda.device),
        "cuGraphCreate": lambda: made("cuGraphCreate", pointer(), "cuGraphDestroy", 0),
    }


def registered(s, room):
    # A page of its own inside the reserved range would need alignment; the driver accepts any address.
    code = s.code("cuMemHostRegister_v2", room, size_t(SIZE), 0)
    if code == 0:
        s.left.append(lambda: s.code("cuMemHostUnregister", room))
    return code


for _name, _mode in MODES.items():
    for _where in ("same thread", "another thread"):
        @rule(f"calls into no stream, {_name}, {_where}")
        def _(s, mode=_mode, where=_where):
            s.idle, s.done = s.stream(), s.event()
            s.record(s.done, s.idle)
            s.code("cuStreamSynchronize", s.idle)
            found = {}
            for name, call in unsafe(s).items():
                on = s.stream()
                s.begun(on, mode)
                found[name] = [call() if where == "same thread" else s.elsewhere(call), s.state(on), s.end(on)]
            return found

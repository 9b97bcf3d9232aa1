"""Actors and tasks that use the driver API by ctypes, as any CUDA program does. The nodes import this module."""

import ctypes
import os
import subprocess
import sys
import time

import ray

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)
{
ret;
}
"""
KERNEL_NS = 1_000_000


class Driver:
    """A context on the first device that this process sees. `codes` are the driver's answers."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.pointers = []
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.codes = [self.cuda.cuInit(0)]
        if self.codes == [0]:
            self.codes.append(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
            if self.codes[-1] == 0:
                self.codes.append(self.cuda.cuCtxCreate_v2(ctypes.byref(self.context), 0, device))

    def enter(self):
        """Ray may run the methods of an actor in another thread than its constructor."""
        self.cuda.cuCtxSetCurrent(self.context)

    def memory(self):
        self.enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value, total.value

    def alloc(self, size):
        self.enter()
        pointer = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        if code == 0:
            self.pointers.append(pointer)
        return code

    def burn(self, seconds):
        """Keeps the device busy; returns the time of the device that was launched, in seconds."""
        self.enter()
        module, kernel, launched = ctypes.c_void_p(), ctypes.c_void_p(), 0
        assert self.cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
        assert self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"vgpu_spin_ns") == 0
        length, one, nothing = ctypes.c_uint64(KERNEL_NS), ctypes.c_uint(1), ctypes.c_void_p()
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(4):
                code = self.cuda.cuLaunchKernel(
                    kernel, one, one, one, one, one, one, ctypes.c_uint(0), nothing, parameters, nothing
                )
                assert code == 0, code
            assert self.cuda.cuCtxSynchronize() == 0
            launched += 4 * KERNEL_NS
        return launched / 1e9


def hook():
    """A user's setup hook."""
    os.environ["HOOK_OF_THE_USER"] = "ran"


def identity():
    """What a test needs to know about the process that it runs in."""
    return {
        "pid": os.getpid(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "preload": os.environ.get("LD_PRELOAD", ""),
        "socket": os.environ.get("VGPU_SOCKET"),
        "hook": os.environ.get("HOOK_OF_THE_USER"),
    }


@ray.remote
class Member:
    """An actor with a context."""

    def __init__(self):
        self.driver = Driver()

    def who(self):
        return {**identity(), "codes": self.driver.codes}

    def memory(self):
        return self.driver.memory()

    def alloc(self, size):
        return self.driver.alloc(size)

    def burn(self, seconds):
        return self.driver.burn(seconds)

    def start_child(self, without=()):
        """Starts a child that makes a context and waits; its environment lacks the variables `without`."""
        environment = {name: value for name, value in os.environ.items() if name not in without}
        program = "import members, sys; print(*members.Driver().codes, flush=True); sys.stdin.read()"
        words = [sys.executable, "-c", program]
        self.child = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return {"pid": self.child.pid, "codes": [int(code) for code in self.child.stdout.readline().split()]}

    def end_child(self):
        self.child.communicate()


@ray.remote
def use_device(seconds=0):
    """A task that makes a context; returns the process, the driver's codes and its memory."""
    driver = Driver()
    if seconds:
        time.sleep(seconds)
    return {**identity(), "codes": driver.codes, "memory": driver.memory() if driver.codes == [0, 0, 0] else None}


@ray.remote
def look():
    """A task that needs no GPU; returns the process and whether CUDA can be initialised in it."""
    codes = Driver().codes
    return {**identity(), "codes": codes}

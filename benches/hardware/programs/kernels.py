"""Our own kernels, by PTX text or by NVRTC, that record when they ran; and their records.

`vgpu_spin_ns(ns, out, capacity)` takes `ns` of device time. Time between two readings of %globaltimer counts only if it
is below 200 us, so that the slices of other contexts do not count. With an address in `out` the kernel then writes its
begin, its end and the counted time, in nanoseconds of the device's own timer. So the device's work is known without any
counter of the library that limits it. A simulated device knows the kernel by its name and writes nothing.
"""
import ctypes
import glob
import os
import sys
from array import array

from cuda import Refused, pointer, u64

HEAD_WORDS = 8
RECORD_WORDS = 4
NON_BLOCKING = 1
RELAXED = 2

# A count of its own bounds the loop, so that a timer which stands still hangs nothing. The PTX version is deliberately
# old, so that every driver compiles it for its device.
PTX = """
.version 6.0
.target sm_50
.address_size 64

.visible .entry vgpu_spin_ns(
    .param .u64 vgpu_spin_ns_param_0,
    .param .u64 vgpu_spin_ns_param_1,
    .param .u64 vgpu_spin_ns_param_2
)
{
    .reg .pred  %p<5>;
    .reg .u64   %want, %out, %room, %spent, %now, %first, %last, %step, %left, %slot, %at;

    ld.param.u64    %want, [vgpu_spin_ns_param_0];
    ld.param.u64    %out, [vgpu_spin_ns_param_1];
    ld.param.u64    %room, [vgpu_spin_ns_param_2];
    mov.u64         %spent, 0;
    add.u64         %left, %want, 1000000;
    mov.u64         %first, %globaltimer;
    mov.u64         %last, %first;
    setp.eq.u64     %p1, %want, 0;
    @%p1 bra        SPIN_END;
SPIN_LOOP:
    mov.u64         %now, %globaltimer;
    sub.u64         %step, %now, %last;
    mov.u64         %last, %now;
    setp.lt.u64     %p2, %step, 200000;
    @%p2 add.u64    %spent, %spent, %step;
    sub.u64         %left, %left, 1;
    setp.eq.u64     %p3, %left, 0;
    @%p3 bra        SPIN_END;
    setp.lt.u64     %p1, %spent, %want;
    @%p1 bra        SPIN_LOOP;
SPIN_END:
    setp.eq.u64     %p4, %out, 0;
    @%p4 bra        SPIN_RETURN;
    cvta.to.global.u64 %out, %out;
    atom.global.add.u64 %slot, [%out], 1;
    setp.ge.u64     %p4, %slot, %room;
    @%p4 bra        SPIN_RETURN;
    shl.b64         %at, %slot, 5;
    add.u64         %at, %at, %out;
    st.global.u64   [%at+64], %first;
    st.global.u64   [%at+72], %last;
    st.global.u64   [%at+80], %spent;
SPIN_RETURN:
    ret;
}
"""

# The same in CUDA C++, for NVRTC.
SOURCE = r"""
static __device__ unsigned long long timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
extern "C" __global__ void vgpu_spin_ns(unsigned long long want, unsigned long long *out, unsigned long long room) {
    unsigned long long spent = 0, first = timer(), last = first;
    for (unsigned long long left = want + 1000000; spent < want && left != 0; left--) {
        unsigned long long now = timer(), step = now - last;
        last = now;
        if (step < 200000) spent += step;
    }
    if (!out) return;
    unsigned long long slot = atomicAdd(out, 1ull);
    if (slot >= room) return;
    unsigned long long *record = out + 8 + 4 * slot;
    record[0] = first, record[1] = last, record[2] = spent;
}
"""


class NoCompiler(Exception):
    """This machine has no NVRTC."""


def nvrtc_files():
    """Possible paths of NVRTC: VGPU_NVRTC, the loader's, PyTorch's, a toolkit's."""
    found = [os.environ["VGPU_NVRTC"]] if os.environ.get("VGPU_NVRTC") else []
    for place in sys.path:
        for pattern in ("nvidia/*/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"):
            found += sorted(glob.glob(os.path.join(place, pattern)), reverse=True)
    for place in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/*-linux-gnu"):
        found += sorted(glob.glob(os.path.join(place, "libnvrtc.so.*")), reverse=True)
    found += ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    return [name for name in found if "builtins" not in name and ".alt." not in name]


def nvrtc():
    """(library, file)"""
    tried = []
    for name in nvrtc_files():
        try:
            return ctypes.CDLL(name), name
        except OSError as error:
            tried.append(str(error))
    raise NoCompiler("no NVRTC: " + "; ".join(tried[-2:]))


def compiled(capability):
    """(code for a device of this capability, the compiler's version). Machine code, so that no driver is too old."""
    lib, name = nvrtc()
    major, minor = ctypes.c_int(), ctypes.c_int()
    lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    program = pointer()
    code = lib.nvrtcCreateProgram(ctypes.byref(program), ctypes.c_char_p(SOURCE.encode()), ctypes.c_char_p(b"spin.cu"), 0,
                                  None, None)
    if code != 0:
        raise Refused(f"nvrtcCreateProgram answered {code}")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode())
    code = lib.nvrtcCompileProgram(program, 1, options)
    if code != 0:
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(size.value, 1))
        lib.nvrtcGetProgramLog(program, log)
        raise Refused(f"nvrtcCompileProgram answered {code}: {log.value.decode(errors='replace')[:400]}")
    size = ctypes.c_size_t()
    if lib.nvrtcGetCUBINSize(program, ctypes.byref(size)) != 0 or size.value == 0:
        raise Refused("NVRTC gave no code")
    image = ctypes.create_string_buffer(size.value)
    if lib.nvrtcGetCUBIN(program, image) != 0:
        raise Refused("NVRTC gave no code")
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw, f"NVRTC {major.value}.{minor.value} ({name})"


def spin_function(cuda, source="ptx"):
    """(the function, how it was made)"""
    if source == "nvrtc":
        attribute = ctypes.c_int()
        capability = []
        for number in (75, 76):
            cuda.must("cuDeviceGetAttribute", ctypes.byref(attribute), number, cuda.device)
            capability.append(attribute.value)
        image, made = compiled(capability)
    else:
        image, made = PTX.encode() + b"\0", "PTX"
    module, function = pointer(), pointer()
    cuda.must("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image) if source == "ptx" else image)
    cuda.must("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"vgpu_spin_ns"))
    return function, made


class Launch:
    """A prepared launch: calling it costs little more than the driver's call."""

    def __init__(self, cuda, function, stream, *values):
        self.values = [u64(value) for value in values]
        self.parameters = (pointer * len(values))(*[ctypes.addressof(value) for value in self.values])
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        self.call = cuda.lib.cuLaunchKernel
        self.arguments = (function, one, one, one, one, one, one, none, stream, self.parameters, pointer())

    def code(self):
        return self.call(*self.arguments)

    def __call__(self):
        code = self.call(*self.arguments)
        if code != 0:
            raise Refused(f"cuLaunchKernel answered {code}")


class Recorder:
    """Device memory in which every kernel writes its begin, its end and its own time."""

    def __init__(self, cuda, room):
        self.cuda, self.room = cuda, room
        self.bytes = 8 * (HEAD_WORDS + RECORD_WORDS * room)
        code, self.at = cuda.alloc(self.bytes)
        if code != 0:
            raise Refused(f"cuMemAlloc of {self.bytes} bytes answered {code}")
        cuda.must("cuMemsetD8_v2", u64(self.at), ctypes.c_ubyte(0), ctypes.c_size_t(self.bytes))
        cuda.sync()

    def seen(self):
        """Number of kernels that have written; 0 on a device that executes no code."""
        word = u64()
        self.cuda.must("cuMemcpyDtoH_v2", ctypes.byref(word), u64(self.at), ctypes.c_size_t(8))
        return word.value

    def records(self):
        """Words of the records, RECORD_WORDS each, in the order in which kernels ended."""
        count = min(self.seen(), self.room)
        words = (u64 * (RECORD_WORDS * count))()
        if count:
            self.cuda.must("cuMemcpyDtoH_v2", words, u64(self.at + 8 * HEAD_WORDS), ctypes.c_size_t(ctypes.sizeof(words)))
        return array("Q", words)


def stream(cuda, flags=NON_BLOCKING):
    made = pointer()
    cuda.must("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(flags))
    return made


def captured(cuda, on, body):
    """An executable graph of the work that `body` submits to the stream."""
    graph, executable = pointer(), pointer()
    cuda.must("cuStreamBeginCapture_v2", on, RELAXED)
    body()
    cuda.must("cuStreamEndCapture", on, ctypes.byref(graph))
    cuda.must("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    return executable

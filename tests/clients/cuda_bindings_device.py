"""cuda-bindings on one device: identity, memory with its content, virtual memory, compiled kernels, time, refusal.

usage: cuda_bindings_device.py JSON, an object with: name, uuid (GPU-...), total, free (bytes, with one context)
Needs NVRTC, which compiles on the CPU. Prints one line at the end; any difference ends the program with words.
"""
import ctypes
import json
import sys

from cuda.bindings import driver as cu
from cuda.bindings import nvrtc

want = json.loads(sys.argv[1])


def same(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, should be {wanted!r}")


def ok(answer):
    if int(answer[0]) != 0:
        sys.exit(f"{answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


ok(cu.cuInit(0))
same("devices", ok(cu.cuDeviceGetCount()), 1)
dev = ok(cu.cuDeviceGet(0))
same("name", ok(cu.cuDeviceGetName(100, dev)).split(b"\0")[0].decode(), want["name"])
hexes = ok(cu.cuDeviceGetUuid(dev)).bytes.hex()
same("uuid", hexes, want["uuid"].removeprefix("GPU-").replace("-", ""))
same("total", ok(cu.cuDeviceTotalMem(dev)), want["total"])
ctx = ok(cu.cuDevicePrimaryCtxRetain(dev))
ok(cu.cuCtxSetCurrent(ctx))
same("info", tuple(ok(cu.cuMemGetInfo())), (want["free"], want["total"]))

# Content survives the round trip, through the legacy stream and through the program's own.
size = 5_000_001
data = (bytes(range(251)) * (size // 251 + 1))[:size]
back = bytearray(size)
p, q = ok(cu.cuMemAlloc(size)), ok(cu.cuMemAlloc(size))
stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
ok(cu.cuMemcpyHtoD(p, data, size))
ok(cu.cuMemcpyDtoDAsync(q, p, size, stream))
ok(cu.cuMemcpyDtoHAsync((ctypes.c_char * size).from_buffer(back), q, size, stream))
ok(cu.cuStreamSynchronize(stream))
same("content", bytes(back) == data, True)
ok(cu.cuMemFree(p))
ok(cu.cuMemFree(q))
same("double free", cu.cuMemFree(q)[0], cu.CUresult.CUDA_ERROR_INVALID_VALUE)
same("all is back", ok(cu.cuMemGetInfo())[0], want["free"])

# Virtual memory management: the memory is freed once it is released and unmapped.
prop = cu.CUmemAllocationProp()
prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
grain = ok(cu.cuMemGetAllocationGranularity(prop, cu.CUmemAllocationGranularity_flags(0)))
at = ok(cu.cuMemAddressReserve(32 << 30, 0, 0, 0))
handle = ok(cu.cuMemCreate(8 * grain, prop, 0))
ok(cu.cuMemMap(at, 8 * grain, 0, handle, 0))
access = cu.CUmemAccessDesc()
access.location = prop.location
access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(cu.cuMemSetAccess(at, 8 * grain, [access], 1))
ok(cu.cuMemRelease(handle))
same("mapped", ok(cu.cuMemGetInfo())[0], want["free"] - 8 * grain)
ok(cu.cuMemsetD8(at, 7, 8 * grain))
ok(cu.cuMemcpyDtoH((ctypes.c_char * 100).from_buffer(back), int(at) + 8 * grain - 100, 100))
same("filled", bytes(back[:100]), b"\7" * 100)
ok(cu.cuMemUnmap(at, 8 * grain))
ok(cu.cuMemAddressFree(at, 32 << 30))
same("unmapped", ok(cu.cuMemGetInfo())[0], want["free"])

# Kernels: text and binary, as modules and as libraries.
source = b"""
extern "C" __global__ void vgpu_spin_ns(unsigned long long ns) {}
extern "C" __global__ void axpy(float a, const float *x, float *y, unsigned long long n) {
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
major = ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev))
minor = ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev))
program = ok(nvrtc.nvrtcCreateProgram(source, b"client.cu", 0, [], []))
begin, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
for kind in ("compute", "sm"):
    ok(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={kind}_{major}{minor}".encode()]))
    get_size, get = (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if kind == "compute" else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    )
    image = b" " * ok(get_size(program))
    ok(get(program, image))
    module = ok(cu.cuModuleLoadData(image))
    axpy = ok(cu.cuModuleGetFunction(module, b"axpy"))
    registers = ok(cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, axpy))
    same(f"{registers} registers", 4 <= registers <= 64, True)
    x, y = ok(cu.cuMemAlloc(4096)), ok(cu.cuMemAlloc(4096))
    values = (2.0, x, y, 1024)
    types = (ctypes.c_float, None, None, ctypes.c_uint64)
    ok(cu.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 0, stream, (values, types), 0))
    same("no such kernel", cu.cuModuleGetFunction(module, b"nothing")[0], cu.CUresult.CUDA_ERROR_NOT_FOUND)
    library = ok(cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
    kernel = ok(cu.cuLibraryGetKernel(library, b"vgpu_spin_ns"))
    spin = ok(cu.cuKernelGetFunction(kernel))
    ok(cu.cuEventRecord(begin, stream))
    ok(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ((20_000_000,), (ctypes.c_uint64,)), 0))
    ok(cu.cuEventRecord(end, stream))
    same("running", cu.cuEventQuery(end)[0], cu.CUresult.CUDA_ERROR_NOT_READY)
    ok(cu.cuEventSynchronize(end))
    if "spin_is_exact" in want:
        elapsed = ok(cu.cuEventElapsedTime(begin, end))
        same(f"{elapsed} ms for 20", 19.9 < elapsed < 30, True)
    ok(cu.cuMemFree(x))
    ok(cu.cuMemFree(y))
    ok(cu.cuModuleUnload(module))
    ok(cu.cuLibraryUnload(library))

# The last byte, and one more.
free = ok(cu.cuMemGetInfo())[0]
everything = ok(cu.cuMemAlloc(free))
same("one byte too much", cu.cuMemAlloc(1)[0], cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
ok(cu.cuMemFree(everything))
ok(cu.cuStreamDestroy(stream))
ok(cu.cuDevicePrimaryCtxRelease(dev))
print(f"cuda-bindings: {want['name']}, {free} bytes allocated at once, one more refused")

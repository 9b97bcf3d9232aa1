//! The table, CUDA half: every function of the driver's headers, declared once.
//!
//! - `hooks`: functions that libvgpu hooks, by subject.
//! - `typed`: not hooked, but called (by libvgpu) or implemented (by the simulated driver), so that a signature is
//!   needed.
//! - `named`: only classified.
//!
//! `pass` gives the reason why a function needs no hook. A function of the headers that is missing here fails
//! `tests/coverage.rs`. All functions return `CUresult`.

/// Passes the whole CUDA table to the macro `$with`, after `$args`.
#[macro_export]
macro_rules! cuda_table {
    ($with:ident $(, $($args:tt)*)?) => { $with! { $($($args)*)?
        hooks {
            entry {
                cuInit(flags: u32);
            }
            ask {
                cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, version: i32, flags: u64);
                cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, version: i32, flags: u64, status: *mut u32);
            }
            context {
                cuCtxCreate(ctx: *mut CUcontext, flags: u32, dev: CUdevice);
                cuCtxCreate_v2(ctx: *mut CUcontext, flags: u32, dev: CUdevice);
                cuCtxCreate_v3(ctx: *mut CUcontext, params: *mut c_void, count: i32, flags: u32, dev: CUdevice);
                cuCtxCreate_v4(ctx: *mut CUcontext, params: *mut CUctxCreateParams, flags: u32, dev: CUdevice);
                cuGLCtxCreate(ctx: *mut CUcontext, flags: u32, dev: CUdevice);
                cuGLCtxCreate_v2(ctx: *mut CUcontext, flags: u32, dev: CUdevice);
                cuVDPAUCtxCreate(ctx: *mut CUcontext, flags: u32, dev: CUdevice, vdp_device: u32, vdp_lookup: *mut c_void);
                cuVDPAUCtxCreate_v2(ctx: *mut CUcontext, flags: u32, dev: CUdevice, vdp_device: u32, vdp_lookup: *mut c_void);
                cuCtxAttach(ctx: *mut CUcontext, flags: u32);
                cuCtxDetach(ctx: CUcontext);
                cuCtxDestroy(ctx: CUcontext);
                cuCtxDestroy_v2(ctx: CUcontext);
                cuDevicePrimaryCtxRetain(ctx: *mut CUcontext, dev: CUdevice);
                cuDevicePrimaryCtxRelease(dev: CUdevice);
                cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
                cuDevicePrimaryCtxReset(dev: CUdevice);
                cuDevicePrimaryCtxReset_v2(dev: CUdevice);
                cuGreenCtxCreate(green: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: u32);
                cuGreenCtxDestroy(green: CUgreenCtx);
            }
            charge {
                cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytes: u32);
                cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytes: usize);
                cuMemAllocPitch(dptr: *mut CUdeviceptr_v1, pitch: *mut u32, width: u32, height: u32, element: u32);
                cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32);
                cuMemAllocManaged(dptr: *mut CUdeviceptr, bytes: usize, flags: u32);
                cuMemAllocAsync(dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
                cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
                cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
                cuArrayCreate(array: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR_v1);
                cuArrayCreate_v2(array: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR);
                cuArray3DCreate(array: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR_v1);
                cuArray3DCreate_v2(array: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR);
                cuMipmappedArrayCreate(array: *mut CUmipmappedArray, desc: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32);
                cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: u64);
                cuMemMap(dptr: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
                cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void);
                cuGraphInstantiate(exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, size: usize);
                cuGraphInstantiate_v2(exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, size: usize);
                cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
                cuGraphInstantiateWithParams(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
                cuGraphInstantiateWithParams_ptsz(exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS);
                cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, result: *mut u32);
                cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo);
            }
            free {
                cuMemFree(dptr: CUdeviceptr_v1);
                cuMemFree_v2(dptr: CUdeviceptr);
                cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream);
                cuMemFreeAsync_ptsz(dptr: CUdeviceptr, stream: CUstream);
            }
            release {
                cuArrayDestroy(array: CUarray);
                cuMipmappedArrayDestroy(array: CUmipmappedArray);
                cuMemUnmap(dptr: CUdeviceptr, bytes: usize);
                cuMemRelease(handle: CUmemGenericAllocationHandle);
                cuIpcCloseMemHandle(dptr: CUdeviceptr);
                cuDestroyExternalMemory(memory: CUexternalMemory);
                cuMulticastUnbind(multicast: CUmemGenericAllocationHandle, dev: CUdevice, offset: usize, size: usize);
                cuMemPoolDestroy(pool: CUmemoryPool);
                cuGraphExecDestroy(exec: CUgraphExec);
            }
            module {
                cuModuleLoad(module: *mut CUmodule, path: *const c_char);
                cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
                cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: u32, options: *mut u32, values: *mut *mut c_void);
                cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void);
                cuModuleUnload(module: CUmodule);
                cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jit_options: *mut u32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut u32, values: *mut *mut c_void, count: u32);
                cuLibraryLoadFromFile(library: *mut CUlibrary, path: *const c_char, jit_options: *mut u32, jit_values: *mut *mut c_void, jit_count: u32, options: *mut u32, values: *mut *mut c_void, count: u32);
                cuLibraryUnload(library: CUlibrary);
                cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary);
                cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
                cuLibraryGetManaged(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
                cuKernelGetFunction(f: *mut CUfunction, kernel: CUkernel);
                cuFuncLoad(f: CUfunction);
                cuCtxSetLimit(limit: u32, value: usize);
            }
            share {
                cuIpcGetMemHandle(handle: *mut CUipcMemHandle, dptr: CUdeviceptr);
                cuIpcOpenMemHandle(dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32);
                cuIpcOpenMemHandle_v2(dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32);
                cuMemExportToShareableHandle(shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: u32, flags: u64);
                cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, kind: u32);
                cuMemPoolExportToShareableHandle(shareable: *mut c_void, pool: CUmemoryPool, kind: u32, flags: u64);
                cuMemPoolImportFromShareableHandle(pool: *mut CUmemoryPool, os_handle: *mut c_void, kind: u32, flags: u64);
                cuMemPoolImportPointer(dptr: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData);
                cuImportExternalMemory(memory: *mut CUexternalMemory, desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
                cuExternalMemoryGetMappedBuffer(dptr: *mut CUdeviceptr, memory: CUexternalMemory, desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
                cuExternalMemoryGetMappedMipmappedArray(array: *mut CUmipmappedArray, memory: CUexternalMemory, desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC);
                cuMemMapArrayAsync(list: *mut CUarrayMapInfo, count: u32, stream: CUstream);
                cuMemMapArrayAsync_ptsz(list: *mut CUarrayMapInfo, count: u32, stream: CUstream);
                cuMulticastCreate(multicast: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp);
                cuMulticastBindAddr(multicast: CUmemGenericAllocationHandle, offset: usize, dptr: CUdeviceptr, size: usize, flags: u64);
                cuMulticastBindAddr_v2(multicast: CUmemGenericAllocationHandle, dev: CUdevice, offset: usize, dptr: CUdeviceptr, size: usize, flags: u64);
                cuMulticastBindMem(multicast: CUmemGenericAllocationHandle, offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: u64);
                cuMulticastBindMem_v2(multicast: CUmemGenericAllocationHandle, dev: CUdevice, offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: u64);
            }
            view {
                cuMemGetInfo(free: *mut u32, total: *mut u32);
                cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
                cuDeviceTotalMem(bytes: *mut u32, dev: CUdevice);
                cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
                cuCheckpointProcessRestore(pid: i32, args: *mut CUcheckpointRestoreArgs);
            }
            kernel {
                cuLaunchKernel(f: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
                cuLaunchKernel_ptsz(f: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
                cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
                cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
                cuLaunchCooperativeKernel(f: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: CUstream, params: *mut *mut c_void);
                cuLaunchCooperativeKernel_ptsz(f: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: CUstream, params: *mut *mut c_void);
                cuLaunch(f: CUfunction);
                cuLaunchGrid(f: CUfunction, width: i32, height: i32);
                cuLaunchGridAsync(f: CUfunction, width: i32, height: i32, stream: CUstream);
                cuFuncSetBlockShape(f: CUfunction, x: i32, y: i32, z: i32);
                cuLaunchCooperativeKernelMultiDevice(list: *mut CUDA_LAUNCH_PARAMS, count: u32, flags: u32);
            }
            launch {
                cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
                cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream);
                cuGraphUpload(exec: CUgraphExec, stream: CUstream);
                cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream);
            }
            copy {
                cuFabricCpyBatchAsync(count: usize, list: *mut c_void, flags: u64, stream: CUstream);
                cuFabricCpyBatchAsync_ptsz(count: usize, list: *mut c_void, flags: u64, stream: CUstream);
                cuMemBatchDecompressAsync(list: *mut CUmemDecompressParams, count: usize, flags: u32, fail: *mut usize, stream: CUstream);
                cuMemBatchDecompressAsync_ptsz(list: *mut CUmemDecompressParams, count: usize, flags: u32, fail: *mut usize, stream: CUstream);
                cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemcpy2D(copy: *const CUDA_MEMCPY2D_v1);
                cuMemcpy2DAsync(copy: *const CUDA_MEMCPY2D_v1, stream: CUstream);
                cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
                cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream);
                cuMemcpy2DUnaligned(copy: *const CUDA_MEMCPY2D_v1);
                cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D);
                cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D);
                cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
                cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D);
                cuMemcpy3D(copy: *const CUDA_MEMCPY3D_v1);
                cuMemcpy3DAsync(copy: *const CUDA_MEMCPY3D_v1, stream: CUstream);
                cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream);
                cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D, stream: CUstream);
                cuMemcpy3DBatchAsync(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, fail: *mut usize, flags: u64, stream: CUstream);
                cuMemcpy3DBatchAsync_ptsz(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, fail: *mut usize, flags: u64, stream: CUstream);
                cuMemcpy3DBatchAsync_v2(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream);
                cuMemcpy3DBatchAsync_v2_ptsz(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream);
                cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER);
                cuMemcpy3DPeerAsync(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
                cuMemcpy3DPeerAsync_ptsz(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
                cuMemcpy3DPeer_ptds(copy: *const CUDA_MEMCPY3D_PEER);
                cuMemcpy3DWithAttributesAsync(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream);
                cuMemcpy3DWithAttributesAsync_ptsz(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream);
                cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D);
                cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D);
                cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyAtoA(dst: CUarray, dst_offset: u32, src: CUarray, src_offset: u32, bytes: u32);
                cuMemcpyAtoA_v2(dst: CUarray, dst_offset: usize, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyAtoA_v2_ptds(dst: CUarray, dst_offset: usize, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyAtoD(dst: CUdeviceptr_v1, src: CUarray, offset: u32, bytes: u32);
                cuMemcpyAtoD_v2(dst: CUdeviceptr, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyAtoD_v2_ptds(dst: CUdeviceptr, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, how_many: usize, fail: *mut usize, stream: CUstream);
                cuMemcpyBatchAsync_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, how_many: usize, fail: *mut usize, stream: CUstream);
                cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, how_many: usize, stream: CUstream);
                cuMemcpyBatchAsync_v2_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, how_many: usize, stream: CUstream);
                cuMemcpyDtoA(dst: CUarray, offset: u32, src: CUdeviceptr_v1, bytes: u32);
                cuMemcpyDtoA_v2(dst: CUarray, dst_offset: usize, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoA_v2_ptds(dst: CUarray, dst_offset: usize, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoD(dst: CUdeviceptr_v1, src: CUdeviceptr_v1, bytes: u32);
                cuMemcpyDtoDAsync(dst: CUdeviceptr_v1, src: CUdeviceptr_v1, bytes: u32, stream: CUstream);
                cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyDtoDAsync_v2_ptsz(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoD_v2_ptds(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemcpyPeer(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize);
                cuMemcpyPeerAsync(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize, stream: CUstream);
                cuMemcpyPeerAsync_ptsz(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize, stream: CUstream);
                cuMemcpyPeer_ptds(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize);
                cuMemcpyWithAttributesAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream);
                cuMemcpyWithAttributesAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream);
                cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemsetD16(dst: CUdeviceptr_v1, value: u16, count: u32);
                cuMemsetD16Async(dst: CUdeviceptr, value: u16, count: usize, stream: CUstream);
                cuMemsetD16Async_ptsz(dst: CUdeviceptr, value: u16, count: usize, stream: CUstream);
                cuMemsetD16_v2(dst: CUdeviceptr, value: u16, count: usize);
                cuMemsetD16_v2_ptds(dst: CUdeviceptr, value: u16, count: usize);
                cuMemsetD2D16(dst: CUdeviceptr_v1, pitch: u32, value: u16, width: u32, height: u32);
                cuMemsetD2D16Async(dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D16Async_ptsz(dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D16_v2(dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
                cuMemsetD2D16_v2_ptds(dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
                cuMemsetD2D32(dst: CUdeviceptr_v1, pitch: u32, value: u32, width: u32, height: u32);
                cuMemsetD2D32Async(dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D32Async_ptsz(dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D32_v2(dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
                cuMemsetD2D32_v2_ptds(dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
                cuMemsetD2D8(dst: CUdeviceptr_v1, pitch: u32, value: u8, width: u32, height: u32);
                cuMemsetD2D8Async(dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D8Async_ptsz(dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
                cuMemsetD2D8_v2(dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
                cuMemsetD2D8_v2_ptds(dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
                cuMemsetD32(dst: CUdeviceptr_v1, value: u32, count: u32);
                cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream);
                cuMemsetD32Async_ptsz(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream);
                cuMemsetD32_v2(dst: CUdeviceptr, value: u32, count: usize);
                cuMemsetD32_v2_ptds(dst: CUdeviceptr, value: u32, count: usize);
                cuMemsetD8(dst: CUdeviceptr_v1, value: u8, count: u32);
                cuMemsetD8Async(dst: CUdeviceptr, value: u8, count: usize, stream: CUstream);
                cuMemsetD8Async_ptsz(dst: CUdeviceptr, value: u8, count: usize, stream: CUstream);
                cuMemsetD8_v2(dst: CUdeviceptr, value: u8, count: usize);
                cuMemsetD8_v2_ptds(dst: CUdeviceptr, value: u8, count: usize);
            }
            pool {
                cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
                cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void);
                cuDeviceGraphMemTrim(device: CUdevice);
            }
            sync {
                cuStreamBeginCapture(stream: CUstream);
                cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, deps: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: u32);
                cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: CUgraph, deps: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, mode: u32);
                cuStreamBeginCapture_ptsz(stream: CUstream);
                cuStreamBeginCapture_v2(stream: CUstream, mode: u32);
                cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: u32);
                cuStreamBeginCaptureToCig(stream: CUstream, params: *mut c_void);
                cuStreamBeginCaptureToCig_ptsz(stream: CUstream, params: *mut c_void);
                cuStreamBeginRecaptureToGraph(stream: CUstream, mode: u32, graph: CUgraph, differs: *mut c_void, data: *mut c_void);
                cuStreamBeginRecaptureToGraph_ptsz(stream: CUstream, mode: u32, graph: CUgraph, differs: *mut c_void, data: *mut c_void);
                cuStreamDestroy(stream: CUstream);
                cuStreamDestroy_v2(stream: CUstream);
                cuStreamSynchronize(stream: CUstream);
                cuStreamSynchronize_ptsz(stream: CUstream);
                cuEventSynchronize(event: CUevent);
                cuCtxSynchronize();
                cuCtxSynchronize_v2(ctx: CUcontext);
            }
        }
        typed {
            pass "managed memory is charged in full when it is allocated, wherever its pages are" {
                cuMemAdvise(dptr: CUdeviceptr, count: usize, advice: u32, device: CUdevice);
                cuMemAdvise_v2(dptr: CUdeviceptr, count: usize, advice: u32, location: CUmemLocation);
                cuMemPrefetchAsync(dptr: CUdeviceptr, count: usize, dst: CUdevice, stream: CUstream);
                cuMemPrefetchAsync_ptsz(dptr: CUdeviceptr, count: usize, dst: CUdevice, stream: CUstream);
                cuMemPrefetchAsync_v2(dptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, stream: CUstream);
                cuMemPrefetchAsync_v2_ptsz(dptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, stream: CUstream);
                cuStreamAttachMemAsync(stream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32);
                cuStreamAttachMemAsync_ptsz(stream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32);
            }
            pass "the driver's own number, which the charge follows" {
                cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void);
                cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: u32, value: *mut c_void);
                cuDeviceSetGraphMemAttribute(device: CUdevice, attribute: u32, value: *mut c_void);
            }
            pass "which pool is current, and what it holds, is asked of the driver each time: there is no copy to go stale" {
                cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32);
                cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32);
                cuMemSetMemPool(location: *mut CUmemLocation, kind: u32, pool: CUmemoryPool);
                cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
                cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
                cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool);
                cuMemPoolGetAccess(flags: *mut u32, pool: CUmemoryPool, location: *mut CUmemLocation);
                cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
            }
            pass "takes neither memory nor device time" {
                cuFuncGetParamCount(f: CUfunction, count: *mut usize);
                cuKernelGetParamCount(kernel: CUkernel, count: *mut usize);
                cuUserObjectCreate(object: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, count: u32, flags: u32);
                cuUserObjectRelease(object: CUuserObject, count: u32);
                cuUserObjectRetain(object: CUuserObject, count: u32);
                cuDriverGetVersion(version: *mut i32);
                cuGetErrorName(error: CUresult, text: *mut DriverText);
                cuGetErrorString(error: CUresult, text: *mut DriverText);
                cuModuleGetLoadingMode(mode: *mut u32);
                cuModuleGetFunction(f: *mut CUfunction, module: CUmodule, name: *const c_char);
                cuModuleGetTexRef(texref: *mut CUtexref, module: CUmodule, name: *const c_char);
                cuModuleGetFunctionCount(count: *mut u32, module: CUmodule);
                cuModuleEnumerateFunctions(functions: *mut CUfunction, count: u32, module: CUmodule);
                cuLinkCreate(count: u32, options: *mut u32, values: *mut *mut c_void, state: *mut CUlinkState);
                cuLinkCreate_v2(count: u32, options: *mut u32, values: *mut *mut c_void, state: *mut CUlinkState);
                cuLinkAddData(state: CUlinkState, kind: u32, data: *mut c_void, size: usize, name: *const c_char, count: u32, options: *mut u32, values: *mut *mut c_void);
                cuLinkAddData_v2(state: CUlinkState, kind: u32, data: *mut c_void, size: usize, name: *const c_char, count: u32, options: *mut u32, values: *mut *mut c_void);
                cuLinkAddFile(state: CUlinkState, kind: u32, path: *const c_char, count: u32, options: *mut u32, values: *mut *mut c_void);
                cuLinkAddFile_v2(state: CUlinkState, kind: u32, path: *const c_char, count: u32, options: *mut u32, values: *mut *mut c_void);
                cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize);
                cuLinkDestroy(state: CUlinkState);
                cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
                cuLibraryGetKernelCount(count: *mut u32, library: CUlibrary);
                cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: u32, library: CUlibrary);
                cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel);
                cuKernelGetAttribute(value: *mut i32, attribute: u32, kernel: CUkernel, dev: CUdevice);
                cuKernelSetAttribute(attribute: u32, value: i32, kernel: CUkernel, dev: CUdevice);
                cuKernelSetCacheConfig(kernel: CUkernel, config: u32, dev: CUdevice);
                cuKernelGetName(name: *mut DriverText, kernel: CUkernel);
                cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize);
                cuFuncGetAttribute(value: *mut i32, attribute: u32, f: CUfunction);
                cuFuncSetAttribute(f: CUfunction, attribute: u32, value: i32);
                cuFuncSetCacheConfig(f: CUfunction, config: u32);
                cuFuncSetSharedMemConfig(f: CUfunction, config: u32);
                cuFuncGetModule(module: *mut CUmodule, f: CUfunction);
                cuFuncGetName(name: *mut DriverText, f: CUfunction);
                cuFuncGetParamInfo(f: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
                cuFuncIsLoaded(state: *mut u32, f: CUfunction);
                cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, f: CUfunction, block: i32, shared: usize);
                cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut i32, f: CUfunction, block: i32, shared: usize, flags: u32);
                cuOccupancyMaxPotentialBlockSize(grid: *mut i32, block: *mut i32, f: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: i32);
                cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut i32, block: *mut i32, f: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: i32, flags: u32);
                cuOccupancyAvailableDynamicSMemPerBlock(shared: *mut usize, f: CUfunction, blocks: i32, block: i32);
                cuProfilerStart();
                cuProfilerStop();
                cuFuncSetSharedSize(f: CUfunction, bytes: u32);
                cuParamSetSize(f: CUfunction, bytes: u32);
                cuParamSeti(f: CUfunction, offset: i32, value: u32);
                cuParamSetf(f: CUfunction, offset: i32, value: f32);
                cuParamSetv(f: CUfunction, offset: i32, from: *mut c_void, bytes: u32);
            }
            pass "private tables pass untouched" {
                cuGetExportTable(table: *mut *const c_void, id: *const CUuuid);
            }
            pass "facts about the device" {
                cuDeviceGet(dev: *mut CUdevice, ordinal: i32);
                cuDeviceGetCount(count: *mut i32);
                cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice);
                cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice);
                cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice);
                cuDeviceGetLuid(luid: *mut c_char, node_mask: *mut u32, dev: CUdevice);
                cuDeviceGetAttribute(value: *mut i32, attribute: u32, dev: CUdevice);
                cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice);
                cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, dev: CUdevice);
                cuDeviceGetPCIBusId(text: *mut c_char, len: i32, dev: CUdevice);
                cuDeviceGetByPCIBusId(dev: *mut CUdevice, text: *const c_char);
                cuDeviceCanAccessPeer(can: *mut i32, dev: CUdevice, peer: CUdevice);
                cuDeviceGetP2PAttribute(value: *mut i32, attribute: u32, from: CUdevice, to: CUdevice);
            }
            pass "the driver is asked each time: there is no copy of its state to go stale" {
                cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32);
                cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32);
                cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32);
                cuCtxGetCurrent(ctx: *mut CUcontext);
                cuCtxSetCurrent(ctx: CUcontext);
                cuCtxPushCurrent(ctx: CUcontext);
                cuCtxPushCurrent_v2(ctx: CUcontext);
                cuCtxPopCurrent(ctx: *mut CUcontext);
                cuCtxPopCurrent_v2(ctx: *mut CUcontext);
                cuCtxGetDevice(dev: *mut CUdevice);
                cuCtxGetFlags(flags: *mut u32);
                cuCtxSetFlags(flags: u32);
                cuCtxGetId(ctx: CUcontext, id: *mut u64);
                cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32);
                cuCtxGetCacheConfig(config: *mut u32);
                cuCtxSetCacheConfig(config: u32);
                cuCtxGetSharedMemConfig(config: *mut u32);
                cuCtxSetSharedMemConfig(config: u32);
                cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32);
                cuCtxResetPersistingL2Cache();
                cuCtxEnablePeerAccess(peer: CUcontext, flags: u32);
                cuCtxDisablePeerAccess(peer: CUcontext);
                cuCtxGetExecAffinity(affinity: *mut c_void, kind: u32);
            }
            pass "names a pointer of a pool that is shared as a whole" {
                cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, dptr: CUdeviceptr);
            }
            pass "the meter puts events of its own around what is launched, and asks those: what a program makes of streams, and asks of them, tells it nothing" {
                cuStreamCreate(stream: *mut CUstream, flags: u32);
                cuStreamCreateWithPriority(stream: *mut CUstream, flags: u32, priority: i32);
                cuStreamQuery(stream: CUstream);
                cuStreamQuery_ptsz(stream: CUstream);
                cuEventQuery(event: CUevent);
            }
            pass "a share of the multiprocessors, cut and described: the launches in it pay device time like any other, and its making is charged" {
                cuDeviceGetDevResource(dev: CUdevice, resource: *mut CUdevResource, kind: u32);
                cuDevSmResourceSplitByCount(groups: *mut CUdevResource, count: *mut u32, input: *const CUdevResource, rest: *mut CUdevResource, flags: u32, least: u32);
                cuDevResourceGenerateDesc(desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: u32);
                cuCtxFromGreenCtx(ctx: *mut CUcontext, green: CUgreenCtx);
                cuGreenCtxStreamCreate(stream: *mut CUstream, green: CUgreenCtx, flags: u32, priority: i32);
                cuGreenCtxGetDevResource(green: CUgreenCtx, resource: *mut CUdevResource, kind: u32);
            }
            pass "asks, takes nothing" {
                cuArray3DGetDescriptor(desc: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: CUarray);
                cuArray3DGetDescriptor_v2(desc: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
                cuArrayGetDescriptor(desc: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: CUarray);
                cuArrayGetDescriptor_v2(desc: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray);
                cuArrayGetMemoryRequirements(requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice);
                cuArrayGetPlane(plane: *mut CUarray, array: CUarray, index: u32);
                cuArrayGetSparseProperties(properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray);
                cuMemRangeGetAttribute(data: *mut c_void, data_size: usize, attribute: u32, dptr: CUdeviceptr, count: usize);
                cuMemRangeGetAttributes(data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut u32, how_many: usize, dptr: CUdeviceptr, count: usize);
                cuMipmappedArrayGetLevel(out: *mut CUarray, array: CUmipmappedArray, level: u32);
                cuMipmappedArrayGetMemoryRequirements(requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUmipmappedArray, device: CUdevice);
                cuMipmappedArrayGetSparseProperties(properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUmipmappedArray);
                cuCtxGetLimit(value: *mut usize, limit: u32);
                cuMemHostGetDevicePointer_v2(dptr: *mut CUdeviceptr, host: *mut c_void, flags: u32);
                cuMemHostGetFlags(flags: *mut u32, host: *mut c_void);
                cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, dptr: CUdeviceptr);
                cuPointerGetAttribute(data: *mut c_void, attribute: u32, ptr: CUdeviceptr);
                cuPointerGetAttributes(count: u32, attributes: *mut u32, data: *mut *mut c_void, ptr: CUdeviceptr);
                cuPointerSetAttribute(value: *const c_void, attribute: u32, ptr: CUdeviceptr);
            }
            pass "tells where a module's global is: it came with the module" {
                cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
            }
            pass "host code in stream order; takes no device time" {
                cuLaunchHostFunc(stream: CUstream, f: CUhostFn, data: *mut c_void);
                cuLaunchHostFunc_ptsz(stream: CUstream, f: CUhostFn, data: *mut c_void);
                cuStreamAddCallback(stream: CUstream, f: CUstreamCallback, data: *mut c_void, flags: u32);
                cuStreamAddCallback_ptsz(stream: CUstream, f: CUstreamCallback, data: *mut c_void, flags: u32);
            }
            pass "host memory is not charged to a device" {
                cuMemAllocHost(host: *mut *mut c_void, bytes: usize);
                cuMemAllocHost_v2(host: *mut *mut c_void, bytes: usize);
                cuMemHostAlloc(host: *mut *mut c_void, bytes: usize, flags: u32);
                cuMemFreeHost(host: *mut c_void);
                cuMemHostRegister(host: *mut c_void, bytes: usize, flags: u32);
                cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: u32);
                cuMemHostUnregister(host: *mut c_void);
            }
            pass "addresses and rights cost nothing" {
                cuMemAddressReserve(ptr: *mut CUdeviceptr, bytes: usize, alignment: usize, addr: CUdeviceptr, flags: u64);
                cuMemAddressFree(ptr: CUdeviceptr, bytes: usize);
                cuMemSetAccess(ptr: CUdeviceptr, bytes: usize, desc: *const CUmemAccessDesc, count: usize);
                cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr);
                cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: u32);
                cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
            }
            pass "for devices of other makers: no function of the driver makes memory of it again" {
                cuMemGetHandleForAddressRange(handle: *mut c_void, dptr: CUdeviceptr, size: usize, handle_type: u32, flags: u64);
            }
            pass "between host and device: an engine of its own, beside which kernels run; the option charges what stays on devices" {
                cuMemcpyAtoH(dst: *mut c_void, src: CUarray, offset: u32, bytes: u32);
                cuMemcpyAtoHAsync(dst: *mut c_void, src: CUarray, offset: u32, bytes: u32, stream: CUstream);
                cuMemcpyAtoHAsync_v2(dst: *mut c_void, src: CUarray, src_offset: usize, bytes: usize, stream: CUstream);
                cuMemcpyAtoHAsync_v2_ptsz(dst: *mut c_void, src: CUarray, src_offset: usize, bytes: usize, stream: CUstream);
                cuMemcpyAtoH_v2(dst: *mut c_void, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyAtoH_v2_ptds(dst: *mut c_void, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyHtoA(dst: CUarray, offset: u32, src: *const c_void, bytes: u32);
                cuMemcpyHtoAAsync(dst: CUarray, offset: u32, src: *const c_void, bytes: u32, stream: CUstream);
                cuMemcpyHtoAAsync_v2(dst: CUarray, dst_offset: usize, src: *const c_void, bytes: usize, stream: CUstream);
                cuMemcpyHtoAAsync_v2_ptsz(dst: CUarray, dst_offset: usize, src: *const c_void, bytes: usize, stream: CUstream);
                cuMemcpyHtoA_v2(dst: CUarray, dst_offset: usize, src: *const c_void, bytes: usize);
                cuMemcpyHtoA_v2_ptds(dst: CUarray, dst_offset: usize, src: *const c_void, bytes: usize);
                cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize);
                cuMemcpyHtoD_v2_ptds(dst: CUdeviceptr, src: *const c_void, bytes: usize);
                cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
                cuMemcpyHtoDAsync_v2_ptsz(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
                cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoH_v2_ptds(dst: *mut c_void, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyDtoHAsync_v2_ptsz(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
            }
            pass "order only" {
                cuStreamUpdateCaptureDependencies(stream: CUstream, deps: *mut CUgraphNode, count: usize, flags: u32);
                cuStreamUpdateCaptureDependencies_ptsz(stream: CUstream, deps: *mut CUgraphNode, count: usize, flags: u32);
                cuStreamUpdateCaptureDependencies_v2(stream: CUstream, deps: *mut CUgraphNode, edges: *const CUgraphEdgeData, count: usize, flags: u32);
                cuStreamUpdateCaptureDependencies_v2_ptsz(stream: CUstream, deps: *mut CUgraphNode, edges: *const CUgraphEdgeData, count: usize, flags: u32);
                cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32);
                cuStreamWaitEvent_ptsz(stream: CUstream, event: CUevent, flags: u32);
                cuStreamGetFlags(stream: CUstream, flags: *mut u32);
                cuStreamGetFlags_ptsz(stream: CUstream, flags: *mut u32);
                cuStreamGetPriority(stream: CUstream, priority: *mut i32);
                cuStreamGetPriority_ptsz(stream: CUstream, priority: *mut i32);
                cuStreamGetCtx(stream: CUstream, ctx: *mut CUcontext);
                cuStreamGetCtx_ptsz(stream: CUstream, ctx: *mut CUcontext);
                cuStreamGetId(stream: CUstream, id: *mut u64);
                cuStreamGetId_ptsz(stream: CUstream, id: *mut u64);
                cuEventCreate(event: *mut CUevent, flags: u32);
                cuEventDestroy(event: CUevent);
                cuEventDestroy_v2(event: CUevent);
                cuEventRecord(event: CUevent, stream: CUstream);
                cuEventRecord_ptsz(event: CUevent, stream: CUstream);
                cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32);
                cuEventRecordWithFlags_ptsz(event: CUevent, stream: CUstream, flags: u32);
                cuEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent);
            }
            pass "that a capture begins is noted, so that calls of ours do not disturb it; when it ends need not be known" {
                cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
                cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph);
                cuStreamGetCaptureInfo_v3(stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, deps: *mut *const c_void, edges: *mut *const CUgraphEdgeData, count: *mut usize);
                cuStreamGetCaptureInfo_v3_ptsz(stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, deps: *mut *const c_void, edges: *mut *const CUgraphEdgeData, count: *mut usize);
                cuStreamIsCapturing(stream: CUstream, status: *mut u32);
                cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut u32);
                cuStreamGetCaptureInfo(stream: CUstream, status: *mut u32, id: *mut u64);
                cuStreamGetCaptureInfo_ptsz(stream: CUstream, status: *mut u32, id: *mut u64);
                cuStreamGetCaptureInfo_v2(stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, deps: *mut *const c_void, count: *mut usize);
                cuStreamGetCaptureInfo_v2_ptsz(stream: CUstream, status: *mut u32, id: *mut u64, graph: *mut CUgraph, deps: *mut *const c_void, count: *mut usize);
                cuThreadExchangeStreamCaptureMode(mode: *mut u32);
            }
            pass "a checkpointed process keeps its charges: its restore needs the memory again" {
                cuCheckpointProcessCheckpoint(pid: i32, args: *mut CUcheckpointCheckpointArgs);
                cuCheckpointProcessGetRestoreThreadId(pid: i32, tid: *mut i32);
                cuCheckpointProcessGetState(pid: i32, state: *mut u32);
                cuCheckpointProcessLock(pid: i32, args: *mut CUcheckpointLockArgs);
                cuCheckpointProcessUnlock(pid: i32, args: *mut CUcheckpointUnlockArgs);
            }
            pass "describes a graph; nothing is taken before it is launched" {
                cuGraphAddBatchMemOpNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
                cuGraphAddChildGraphNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, child_graph: CUgraph);
                cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize);
                cuGraphAddDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize);
                cuGraphAddEmptyNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize);
                cuGraphAddEventRecordNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, event: CUevent);
                cuGraphAddEventWaitNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, event: CUevent);
                cuGraphAddExternalSemaphoresSignalNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const c_void);
                cuGraphAddExternalSemaphoresWaitNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const c_void);
                cuGraphAddHostNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const CUDA_HOST_NODE_PARAMS);
                cuGraphAddKernelNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
                cuGraphAddKernelNode_v2(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS);
                cuGraphAddMemcpyNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, copy: *const CUDA_MEMCPY3D, ctx: CUcontext);
                cuGraphAddMemsetNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, fill: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext);
                cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, params: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS);
                cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
                cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
                cuGraphClone(clone: *mut CUgraph, graph: CUgraph);
                cuGraphConditionalHandleCreate(handle: *mut u64, graph: CUgraph, ctx: CUcontext, value: u32, flags: u32);
                cuGraphCreate(graph: *mut CUgraph, flags: u32);
                cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: u32);
                cuGraphDestroyNode(node: CUgraphNode);
                cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: *mut CUevent);
                cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent);
                cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: *mut CUevent);
                cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent);
                cuGraphExecEventRecordNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);
                cuGraphExecEventWaitNodeSetEvent(exec: CUgraphExec, node: CUgraphNode, event: CUevent);
                cuGraphExecGetFlags(exec: CUgraphExec, flags: *mut u64);
                cuGraphExecGetId(exec: CUgraphExec, graph_id: *mut u32);
                cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
                cuGraphExternalSemaphoresSignalNodeGetParams(node: CUgraphNode, params: *mut c_void);
                cuGraphExternalSemaphoresSignalNodeSetParams(node: CUgraphNode, params: *const c_void);
                cuGraphExternalSemaphoresWaitNodeGetParams(node: CUgraphNode, params: *mut c_void);
                cuGraphExternalSemaphoresWaitNodeSetParams(node: CUgraphNode, params: *const c_void);
                cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize);
                cuGraphGetEdges_v2(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edges: *mut CUgraphEdgeData, count: *mut usize);
                cuGraphGetId(graph: CUgraph, graph_id: *mut u32);
                cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
                cuGraphGetRootNodes(graph: CUgraph, root_nodes: *mut CUgraphNode, count: *mut usize);
                cuGraphHostNodeGetParams(node: CUgraphNode, params: *mut CUDA_HOST_NODE_PARAMS);
                cuGraphHostNodeSetParams(node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS);
                cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode);
                cuGraphKernelNodeGetAttribute(node: CUgraphNode, attribute: u32, value: *mut c_void);
                cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
                cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
                cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: u32, value: *const c_void);
                cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
                cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
                cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
                cuGraphMemFreeNodeGetParams(node: CUgraphNode, dptr: *mut CUdeviceptr);
                cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMCPY3D);
                cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMCPY3D);
                cuGraphMemsetNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS);
                cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS);
                cuGraphNodeFindInClone(node: *mut CUgraphNode, node_of: CUgraphNode, clone: CUgraph);
                cuGraphNodeGetContainingGraph(node: CUgraphNode, graph: *mut CUgraph);
                cuGraphNodeGetDependencies(node: CUgraphNode, deps: *mut CUgraphNode, count: *mut usize);
                cuGraphNodeGetDependencies_v2(node: CUgraphNode, deps: *mut CUgraphNode, edges: *mut CUgraphEdgeData, count: *mut usize);
                cuGraphNodeGetDependentNodes(node: CUgraphNode, dependent_nodes: *mut CUgraphNode, count: *mut usize);
                cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edges: *mut CUgraphEdgeData, count: *mut usize);
                cuGraphNodeGetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: *mut u32);
                cuGraphNodeGetLocalId(node: CUgraphNode, node_id: *mut u32);
                cuGraphNodeGetParams(node: CUgraphNode, params: *mut CUgraphNodeParams);
                cuGraphNodeGetToolsId(node: CUgraphNode, tools_node_id: *mut u64);
                cuGraphNodeGetType(node: CUgraphNode, kind: *mut u32);
                cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32);
                cuGraphRemoveDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize);
                cuGraphRemoveDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize);
                cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32);
                cuGraphAddMemAllocNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
                cuGraphAddMemFreeNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, dptr: CUdeviceptr);
                cuGraphAddNode(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, count: usize, params: *mut CUgraphNodeParams);
                cuGraphAddNode_v2(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams);
                cuGraphAddNode_v3(node: *mut CUgraphNode, graph: CUgraph, deps: *const CUgraphNode, edges: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams);
                cuGraphDestroy(graph: CUgraph);
                cuGraphNodeSetParams(node: CUgraphNode, params: *mut CUgraphNodeParams);
                cuGraphNodeSetParams_v2(node: CUgraphNode, params: *mut CUgraphNodeParams);
            }
            pass "changes what an executable graph does: nothing is allocated by it, and what its next launches take is measured and learned as for a kernel with other arguments" {
                cuGraphExecBatchMemOpNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
                cuGraphExecChildGraphNodeSetParams(exec: CUgraphExec, node: CUgraphNode, child_graph: CUgraph);
                cuGraphExecExternalSemaphoresSignalNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const c_void);
                cuGraphExecExternalSemaphoresWaitNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const c_void);
                cuGraphExecHostNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS);
                cuGraphExecKernelNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
                cuGraphExecMemcpyNodeSetParams(exec: CUgraphExec, node: CUgraphNode, copy: *const CUDA_MEMCPY3D, ctx: CUcontext);
                cuGraphExecMemsetNodeSetParams(exec: CUgraphExec, node: CUgraphNode, fill: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext);
                cuGraphNodeSetEnabled(exec: CUgraphExec, node: CUgraphNode, enabled: u32);
                cuGraphExecNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams);
            }
            pass "a multicast object has no memory of its own" {
                cuMulticastAddDevice(multicast: CUmemGenericAllocationHandle, dev: CUdevice);
                cuMulticastGetGranularity(granularity: *mut usize, prop: *const CUmulticastObjectProp, option: u32);
            }
        }
        named {
            pass "asks, takes nothing" {
                cuMemGetAddressRange cuMemGetAttribute cuMemGetAttribute_v2 cuMemGetLocationInfo
                cuMemHostGetDevicePointer
            }
            pass "a checkpointed process keeps its charges: its restore needs the memory again" {
                cuCheckpointOperationComplete
            }
            pass "core dumps" {
                cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback
                cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpRegisterCompleteCallback
                cuCoredumpRegisterStartCallback cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal
            }
            pass "a share of the multiprocessors, cut and described: the launches in it pay device time like any other, and its making is charged" {
                cuCtxGetDevResource cuDevSmResourceSplit cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxWaitEvent
                cuStreamGetDevResource cuStreamGetDevResource_ptsz
            }
            pass "the driver is asked each time: there is no copy of its state to go stale" {
                cuCtxGetDevice_v2 cuCtxRecordEvent cuCtxWaitEvent
            }
            pass "order and completion only" {
                cuDestroyExternalSemaphore cuFlushGPUDirectRDMAWrites cuImportExternalSemaphore
                cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz cuStreamBatchMemOp
                cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz cuStreamWaitValue32
                cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz
                cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2
                cuStreamWaitValue64_v2_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz
                cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz cuStreamWriteValue64
                cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz
                cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz
            }
            pass "facts about the device" {
                cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceGetExecAffinitySupport
                cuDeviceGetFabricClusterUuid cuDeviceGetHostAtomicCapabilities
                cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities
                cuDeviceGetTexture1DLinearMaxWidth
            }
            pass "notices about the device as a whole, in the driver's own numbers" {
                cuDeviceRegisterAsyncNotification cuDeviceUnregisterAsyncNotification
            }
            pass "graphics interop: the memory belongs to the graphics API" {
                cuEGLApiInit cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect
                cuEGLStreamConsumerConnectWithFlags cuEGLStreamConsumerDisconnect
                cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
                cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame cuGLGetDevices
                cuGLGetDevices_v2 cuGLInit cuGLMapBufferObject cuGLMapBufferObjectAsync
                cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz cuGLMapBufferObject_v2
                cuGLMapBufferObject_v2_ptds cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags
                cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject
                cuGraphicsEGLRegisterImage cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
                cuGraphicsMapResources cuGraphicsMapResources_ptsz cuGraphicsResourceGetMappedEglFrame
                cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
                cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags
                cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray
                cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz cuGraphicsUnregisterResource
                cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface cuVDPAUGetDevice
            }
            pass "order only" {
                cuEventElapsedTime_v2 cuStreamCopyAttributes cuStreamCopyAttributes_ptsz
                cuStreamGetAttribute cuStreamGetAttribute_ptsz cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz
                cuStreamGetDevice cuStreamGetDevice_ptsz cuStreamGetGreenCtx cuStreamSetAttribute
                cuStreamSetAttribute_ptsz
            }
            pass "between host and device: an engine of its own, beside which kernels run; the option charges what stays on devices" {
                cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoD cuMemcpyHtoDAsync
            }
            pass "takes neither memory nor device time" {
                cuIpcGetEventHandle cuIpcOpenEventHandle cuLibraryGetUnifiedFunction cuLogsCurrent
                cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback
                cuModuleGetSurfRef cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize
                cuParamSetTexRef cuProfilerInitialize cuSurfObjectCreate cuSurfObjectDestroy
                cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col
                cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
                cuTensorMapSetAllocationClass cuTexObjectCreate cuTexObjectDestroy
                cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
                cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode
                cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode
                cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode
                cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray
                cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3
                cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetBorderColor
                cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy
                cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
                cuTexRefSetMipmappedArray
            }
            pass "host code in stream order; takes no device time" {
                cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz
            }
            pass "a way to memory of several devices; what is bound is charged where it was made" {
                cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem
                cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
                cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
                cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind
            }
            pass "managed memory is charged in full when it is allocated, wherever its pages are" {
                cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz
                cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz cuMemPrefetchBatchAsync
                cuMemPrefetchBatchAsync_ptsz
            }
            pass "tells where a module's global is: it came with the module" {
                cuModuleGetGlobal
            }
            pass "that a capture begins is noted, so that calls of ours do not disturb it; when it ends need not be known" {
                cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz
            }
        }
    } };
}

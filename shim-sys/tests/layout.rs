//! Compares our C types and signatures with two independent sets of bindings: cudarc and nvml-wrapper-sys.
//!
//! A wrong size, alignment or offset corrupts memory in somebody else's process, and a wrong number of arguments is a
//! wrong call. The comparison is by shape, since the types themselves differ on purpose.

use core::mem::{align_of, offset_of, size_of};
use cudarc::driver::sys as cuda;
use nvml_wrapper_sys::bindings as nvml;
use shim_sys::table::{cuda_fn, nvml_fn};

macro_rules! same_layout {
    ($($ours:path = $theirs:path { $($field:ident $their_field:ident)* })*) => {$(
        assert_eq!(
            (size_of::<$ours>(), align_of::<$ours>()),
            (size_of::<$theirs>(), align_of::<$theirs>()),
            stringify!($ours)
        );
        $(assert_eq!(
            offset_of!($ours, $field), offset_of!($theirs, $their_field), "{}.{}", stringify!($ours), stringify!($field)
        );)*
    )*};
}

#[test]
fn structs_lie_in_memory_as_in_cudarc() {
    use shim_sys::cuda as ours;
    same_layout! {
        ours::CUuuid = cuda::CUuuid_st { bytes bytes }
        ours::CUmemLocation = cuda::CUmemLocation_st { kind type_ id id }
        ours::CUmemAllocationProp = cuda::CUmemAllocationProp_st {
            kind type_ requestedHandleTypes requestedHandleTypes location location
            win32HandleMetaData win32HandleMetaData allocFlags allocFlags
        }
        ours::CUmemAccessDesc = cuda::CUmemAccessDesc_st { location location flags flags }
        ours::CUmemPoolProps = cuda::CUmemPoolProps_st {
            allocType allocType handleTypes handleTypes location location
            win32SecurityAttributes win32SecurityAttributes maxSize maxSize
        }
        ours::CUDA_ARRAY_DESCRIPTOR = cuda::CUDA_ARRAY_DESCRIPTOR_st {
            Width Width Height Height Format Format NumChannels NumChannels
        }
        ours::CUDA_ARRAY3D_DESCRIPTOR = cuda::CUDA_ARRAY3D_DESCRIPTOR_st {
            Width Width Height Height Depth Depth Format Format NumChannels NumChannels Flags Flags
        }
        ours::CUDA_MEMCPY2D = cuda::CUDA_MEMCPY2D_st {
            srcXInBytes srcXInBytes srcMemoryType srcMemoryType srcHost srcHost srcDevice srcDevice srcArray srcArray
            srcPitch srcPitch dstXInBytes dstXInBytes dstHost dstHost dstPitch dstPitch WidthInBytes WidthInBytes
            Height Height
        }
        ours::CUlaunchConfig = cuda::CUlaunchConfig_st {
            gridDimX gridDimX blockDimZ blockDimZ sharedMemBytes sharedMemBytes hStream hStream attrs attrs
            numAttrs numAttrs
        }
        ours::CUdevprop = cuda::CUdevprop_st { maxThreadsDim maxThreadsDim textureAlign textureAlign }
        ours::CUDA_MEMCPY3D = cuda::CUDA_MEMCPY3D_st {
            srcLOD srcLOD srcMemoryType srcMemoryType srcHost srcHost srcPitch srcPitch srcHeight srcHeight
            dstXInBytes dstXInBytes dstMemoryType dstMemoryType dstArray dstArray reserved1 reserved1 Depth Depth
        }
        ours::CUDA_MEMCPY3D_PEER = cuda::CUDA_MEMCPY3D_PEER_st { srcContext srcContext dstContext dstContext Depth Depth }
        ours::CUDA_ARRAY_MEMORY_REQUIREMENTS = cuda::CUDA_ARRAY_MEMORY_REQUIREMENTS_st { size size alignment alignment }
        ours::CUDA_ARRAY_SPARSE_PROPERTIES = cuda::CUDA_ARRAY_SPARSE_PROPERTIES_st {
            tileWidth tileExtent miptailFirstLevel miptailFirstLevel miptailSize miptailSize flags flags
        }
        ours::CUipcMemHandle = cuda::CUipcMemHandle_st { reserved reserved }
        ours::CUmemPoolPtrExportData = cuda::CUmemPoolPtrExportData_st { reserved reserved }
        ours::CUDA_EXTERNAL_MEMORY_HANDLE_DESC = cuda::CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st {
            kind type_ handle handle size size flags flags
        }
        ours::CUDA_EXTERNAL_MEMORY_BUFFER_DESC = cuda::CUDA_EXTERNAL_MEMORY_BUFFER_DESC_st {
            offset offset size size flags flags
        }
        ours::CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC = cuda::CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_st {
            offset offset arrayDesc arrayDesc numLevels numLevels
        }
        ours::CUmulticastObjectProp = cuda::CUmulticastObjectProp_st {
            numDevices numDevices size size handleTypes handleTypes flags flags
        }
        ours::CUarrayMapInfo = cuda::CUarrayMapInfo_st {
            resourceType resourceType resource resource subresourceType subresourceType subresource subresource
            memOperationType memOperationType memHandleType memHandleType memHandle memHandle offset offset
            deviceBitMask deviceBitMask flags flags
        }
        ours::CUDA_KERNEL_NODE_PARAMS = cuda::CUDA_KERNEL_NODE_PARAMS_v2_st {
            func func gridDimX gridDimX sharedMemBytes sharedMemBytes kernelParams kernelParams kern kern ctx ctx
        }
        ours::CUDA_KERNEL_NODE_PARAMS_v1 = cuda::CUDA_KERNEL_NODE_PARAMS_st { extra extra }
        ours::CUDA_MEMSET_NODE_PARAMS = cuda::CUDA_MEMSET_NODE_PARAMS_st { elementSize elementSize height height }
        ours::CUDA_HOST_NODE_PARAMS = cuda::CUDA_HOST_NODE_PARAMS_st { userData userData }
        ours::CUDA_MEM_ALLOC_NODE_PARAMS = cuda::CUDA_MEM_ALLOC_NODE_PARAMS_v1_st {
            poolProps poolProps accessDescs accessDescs bytesize bytesize dptr dptr
        }
        ours::CUDA_BATCH_MEM_OP_NODE_PARAMS = cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st {
            count count paramArray paramArray flags flags
        }
        ours::CUDA_GRAPH_INSTANTIATE_PARAMS = cuda::CUDA_GRAPH_INSTANTIATE_PARAMS_st {
            flags flags hErrNode_out hErrNode_out result_out result_out
        }
        ours::CUgraphExecUpdateResultInfo = cuda::CUgraphExecUpdateResultInfo_st { errorFromNode errorFromNode }
        ours::CUgraphNodeParams = cuda::CUgraphNodeParams_st { kind type_ reserved2 reserved2 }
        ours::CUDA_LAUNCH_PARAMS = cuda::CUDA_LAUNCH_PARAMS_st { hStream hStream kernelParams kernelParams }
        ours::CUresult = cuda::CUresult {}
        ours::CUstream = cuda::CUstream {}
        ours::CUdeviceptr = cuda::CUdeviceptr {}
    }
}

#[test]
fn structs_lie_in_memory_as_in_nvml_wrapper() {
    use shim_sys::nvml as ours;
    same_layout! {
        ours::nvmlMemory_t = nvml::nvmlMemory_t { total total free free used used }
        ours::nvmlMemory_v2_t = nvml::nvmlMemory_v2_t { version version total total reserved reserved free free used used }
        ours::nvmlProcessInfo_v1_t = nvml::nvmlProcessInfo_v1_t { pid pid usedGpuMemory usedGpuMemory }
        ours::nvmlProcessInfo_t = nvml::nvmlProcessInfo_v2_t {
            pid pid usedGpuMemory usedGpuMemory gpuInstanceId gpuInstanceId computeInstanceId computeInstanceId
        }
        ours::nvmlUtilization_t = nvml::nvmlUtilization_t { gpu gpu memory memory }
        ours::nvmlProcessUtilizationSample_t = nvml::nvmlProcessUtilizationSample_t {
            pid pid timeStamp timeStamp smUtil smUtil decUtil decUtil
        }
        ours::nvmlPciInfo_t = nvml::nvmlPciInfo_t {
            busIdLegacy busIdLegacy domain domain pciDeviceId pciDeviceId busId busId
        }
        ours::nvmlBAR1Memory_t = nvml::nvmlBAR1Memory_t { bar1Total bar1Total bar1Free bar1Free bar1Used bar1Used }
        ours::nvmlDeviceAttributes_t = nvml::nvmlDeviceAttributes_t {
            multiprocessorCount multiprocessorCount memorySizeMB memorySizeMB
        }
        ours::nvmlAccountingStats_t = nvml::nvmlAccountingStats_t {
            gpuUtilization gpuUtilization memoryUtilization memoryUtilization maxMemoryUsage maxMemoryUsage time time
            startTime startTime isRunning isRunning reserved reserved
        }
        ours::nvmlReturn_t = nvml::nvmlReturn_t {}
        ours::nvmlDevice_t = nvml::nvmlDevice_t {}
    }
}

/// Size and alignment of each argument and of the result.
trait Shape {
    fn shape() -> Vec<(usize, usize)>;
}

macro_rules! shapes {
    ($($($arg:ident)*;)*) => {$(
        impl<Res $(, $arg)*> Shape for unsafe extern "C" fn($($arg),*) -> Res {
            fn shape() -> Vec<(usize, usize)> {
                vec![$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<Res>(), align_of::<Res>())]
            }
        }
        impl<Res $(, $arg)*> Shape for unsafe fn($($arg),*) -> Res {
            fn shape() -> Vec<(usize, usize)> {
                vec![$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<Res>(), align_of::<Res>())]
            }
        }
    )*};
}

shapes! { ; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; A B C D E F G H I J;
A B C D E F G H I J K; }

fn shape_of<F: Shape>(_: F) -> Vec<(usize, usize)> {
    F::shape()
}

macro_rules! same_cuda_signature {
    ($($name:ident ( $($arg:tt)* );)*) => {$(
        assert_eq!(
            <cuda_fn::$name as Shape>::shape(),
            shape_of(cuda::$name as unsafe fn($($arg),*) -> _),
            stringify!($name)
        );
    )*};
}

#[test]
fn cuda_functions_take_what_cudarc_passes() {
    same_cuda_signature! {
        cuInit(_);
        cuGetProcAddress_v2(_ _ _ _ _);
        cuCtxCreate_v2(_ _ _);
        cuCtxCreate_v3(_ _ _ _ _);
        cuCtxAttach(_ _);
        cuCtxDetach(_);
        cuCtxDestroy_v2(_);
        cuDevicePrimaryCtxRetain(_ _);
        cuDevicePrimaryCtxRelease_v2(_);
        cuDevicePrimaryCtxReset_v2(_);
        cuMemAlloc_v2(_ _);
        cuMemAllocPitch_v2(_ _ _ _ _);
        cuMemAllocManaged(_ _ _);
        cuMemAllocAsync(_ _ _);
        cuMemAllocFromPoolAsync(_ _ _ _);
        cuMemPoolCreate(_ _);
        cuArrayCreate_v2(_ _);
        cuArray3DCreate_v2(_ _);
        cuMipmappedArrayCreate(_ _ _);
        cuMemCreate(_ _ _ _);
        cuMemMap(_ _ _ _ _);
        cuMemRetainAllocationHandle(_ _);
        cuMemFree_v2(_);
        cuMemFreeAsync(_ _);
        cuArrayDestroy(_);
        cuMipmappedArrayDestroy(_);
        cuMemUnmap(_ _);
        cuMemRelease(_);
        cuMemGetInfo_v2(_ _);
        cuDeviceTotalMem_v2(_ _);
        cuLaunchKernel(_ _ _ _ _ _ _ _ _ _ _);
        cuLaunchKernelEx(_ _ _ _);
        cuLaunchCooperativeKernelMultiDevice(_ _ _);
        cuFuncSetBlockShape(_ _ _ _);
        cuFuncSetSharedSize(_ _);
        cuParamSetSize(_ _);
        cuParamSeti(_ _ _);
        cuParamSetf(_ _ _);
        cuParamSetv(_ _ _ _);
        cuDriverGetVersion(_);
        cuGetErrorName(_ _);
        cuGetErrorString(_ _);
        cuModuleGetLoadingMode(_);
        cuModuleGetFunction(_ _ _);
        cuModuleGetTexRef(_ _ _);
        cuLinkCreate_v2(_ _ _ _);
        cuLinkAddData_v2(_ _ _ _ _ _ _ _);
        cuLinkAddFile_v2(_ _ _ _ _ _);
        cuLinkComplete(_ _ _);
        cuLinkDestroy(_);
        cuLibraryGetKernel(_ _ _);
        cuKernelGetAttribute(_ _ _ _);
        cuKernelSetAttribute(_ _ _ _);
        cuKernelSetCacheConfig(_ _ _);
        cuFuncGetAttribute(_ _ _);
        cuFuncSetAttribute(_ _ _);
        cuFuncSetCacheConfig(_ _);
        cuFuncSetSharedMemConfig(_ _);
        cuFuncGetModule(_ _);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(_ _ _ _);
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(_ _ _ _ _);
        cuOccupancyMaxPotentialBlockSize(_ _ _ _ _ _);
        cuOccupancyMaxPotentialBlockSizeWithFlags(_ _ _ _ _ _ _);
        cuOccupancyAvailableDynamicSMemPerBlock(_ _ _ _);
        cuProfilerStart();
        cuProfilerStop();
        cuGetExportTable(_ _);
        cuDeviceGet(_ _);
        cuDeviceGetCount(_);
        cuDeviceGetName(_ _ _);
        cuDeviceGetUuid(_ _);
        cuDeviceGetUuid_v2(_ _);
        cuDeviceGetLuid(_ _ _);
        cuDeviceGetAttribute(_ _ _);
        cuDeviceGetProperties(_ _);
        cuDeviceComputeCapability(_ _ _);
        cuDeviceGetPCIBusId(_ _ _);
        cuDeviceGetByPCIBusId(_ _);
        cuDeviceCanAccessPeer(_ _ _);
        cuDeviceGetP2PAttribute(_ _ _ _);
        cuDevicePrimaryCtxGetState(_ _ _);
        cuDevicePrimaryCtxSetFlags_v2(_ _);
        cuCtxGetCurrent(_);
        cuCtxSetCurrent(_);
        cuCtxPushCurrent_v2(_);
        cuCtxPopCurrent_v2(_);
        cuCtxGetDevice(_);
        cuCtxGetFlags(_);
        cuCtxSetFlags(_);
        cuCtxGetId(_ _);
        cuCtxGetApiVersion(_ _);
        cuCtxGetCacheConfig(_);
        cuCtxSetCacheConfig(_);
        cuCtxGetSharedMemConfig(_);
        cuCtxSetSharedMemConfig(_);
        cuCtxGetStreamPriorityRange(_ _);
        cuCtxResetPersistingL2Cache();
        cuCtxEnablePeerAccess(_ _);
        cuCtxDisablePeerAccess(_);
        cuCtxGetExecAffinity(_ _);
        cuDeviceGetDefaultMemPool(_ _);
        cuDeviceGetMemPool(_ _);
        cuDeviceSetMemPool(_ _);
        cuMemPoolDestroy(_);
        cuMemPoolTrimTo(_ _);
        cuMemPoolSetAttribute(_ _ _);
        cuMemPoolGetAccess(_ _ _);
        cuMemPoolSetAccess(_ _ _);
        cuCtxSynchronize();
        cuStreamCreate(_ _);
        cuStreamCreateWithPriority(_ _ _);
        cuStreamDestroy_v2(_);
        cuStreamQuery(_);
        cuStreamSynchronize(_);
        cuEventQuery(_);
        cuEventSynchronize(_);
        cuCtxGetLimit(_ _);
        cuMemHostGetDevicePointer_v2(_ _ _);
        cuMemHostGetFlags(_ _);
        cuMemGetAddressRange_v2(_ _ _);
        cuPointerGetAttribute(_ _ _);
        cuPointerGetAttributes(_ _ _ _);
        cuPointerSetAttribute(_ _ _);
        cuCtxSetLimit(_ _);
        cuModuleLoad(_ _);
        cuModuleLoadData(_ _);
        cuModuleLoadDataEx(_ _ _ _ _);
        cuModuleLoadFatBinary(_ _);
        cuModuleUnload(_);
        cuModuleGetGlobal_v2(_ _ _ _);
        cuLibraryLoadData(_ _ _ _ _ _ _ _);
        cuLibraryLoadFromFile(_ _ _ _ _ _ _ _);
        cuLibraryUnload(_);
        cuLibraryGetModule(_ _);
        cuLibraryGetGlobal(_ _ _ _);
        cuLibraryGetManaged(_ _ _ _);
        cuKernelGetFunction(_ _);
        cuLaunchCooperativeKernel(_ _ _ _ _ _ _ _ _ _);
        cuLaunchHostFunc(_ _ _);
        cuStreamAddCallback(_ _ _ _);
        cuMemAllocHost_v2(_ _);
        cuMemHostAlloc(_ _ _);
        cuMemFreeHost(_);
        cuMemHostRegister_v2(_ _ _);
        cuMemHostUnregister(_);
        cuMemAddressReserve(_ _ _ _ _);
        cuMemAddressFree(_ _);
        cuMemSetAccess(_ _ _ _);
        cuMemGetAccess(_ _ _);
        cuMemGetAllocationGranularity(_ _ _);
        cuMemGetAllocationPropertiesFromHandle(_ _);
        cuMemExportToShareableHandle(_ _ _ _);
        cuMemImportFromShareableHandle(_ _ _);
        cuMemPoolGetAttribute(_ _ _);
        cuMemcpy(_ _ _);
        cuMemcpyAsync(_ _ _ _);
        cuMemcpyPeer(_ _ _ _ _);
        cuMemcpyPeerAsync(_ _ _ _ _ _);
        cuMemcpyHtoD_v2(_ _ _);
        cuMemcpyHtoDAsync_v2(_ _ _ _);
        cuMemcpyDtoH_v2(_ _ _);
        cuMemcpyDtoHAsync_v2(_ _ _ _);
        cuMemcpyDtoD_v2(_ _ _);
        cuMemcpyDtoDAsync_v2(_ _ _ _);
        cuMemcpy2D_v2(_);
        cuMemcpy2DUnaligned_v2(_);
        cuMemcpy2DAsync_v2(_ _);
        cuMemsetD8_v2(_ _ _);
        cuMemsetD16_v2(_ _ _);
        cuMemsetD32_v2(_ _ _);
        cuMemsetD2D8_v2(_ _ _ _ _);
        cuMemsetD2D16_v2(_ _ _ _ _);
        cuMemsetD2D32_v2(_ _ _ _ _);
        cuMemsetD8Async(_ _ _ _);
        cuMemsetD16Async(_ _ _ _);
        cuMemsetD32Async(_ _ _ _);
        cuMemsetD2D8Async(_ _ _ _ _ _);
        cuMemsetD2D16Async(_ _ _ _ _ _);
        cuMemsetD2D32Async(_ _ _ _ _ _);
        cuStreamWaitEvent(_ _ _);
        cuStreamGetFlags(_ _);
        cuStreamGetPriority(_ _);
        cuStreamGetCtx(_ _);
        cuStreamGetId(_ _);
        cuEventCreate(_ _);
        cuEventDestroy_v2(_);
        cuEventRecord(_ _);
        cuEventRecordWithFlags(_ _ _);
        cuEventElapsedTime(_ _ _);
        cuStreamIsCapturing(_ _);
        cuStreamGetCaptureInfo_v2(_ _ _ _ _ _);
        cuThreadExchangeStreamCaptureMode(_);
    }
}

macro_rules! same_nvml_signature {
    ($($name:ident;)*) => {$({
        fn theirs<F: Shape, E>(_: fn(&nvml::NvmlLib) -> &Result<F, E>) -> Vec<(usize, usize)> {
            F::shape()
        }
        assert_eq!(<nvml_fn::$name as Shape>::shape(), theirs(|lib| &lib.$name), stringify!($name));
    })*};
}

#[test]
fn nvml_functions_take_what_nvml_wrapper_passes() {
    same_nvml_signature! {
        nvmlInit;
        nvmlInit_v2;
        nvmlShutdown;
        nvmlDeviceGetMemoryInfo;
        nvmlDeviceGetMemoryInfo_v2;
        nvmlDeviceGetComputeRunningProcesses;
        nvmlDeviceGetComputeRunningProcesses_v2;
        nvmlDeviceGetComputeRunningProcesses_v3;
        nvmlDeviceGetGraphicsRunningProcesses;
        nvmlDeviceGetGraphicsRunningProcesses_v2;
        nvmlDeviceGetGraphicsRunningProcesses_v3;
        nvmlDeviceGetMPSComputeRunningProcesses;
        nvmlDeviceGetMPSComputeRunningProcesses_v2;
        nvmlDeviceGetMPSComputeRunningProcesses_v3;
        nvmlDeviceGetProcessUtilization;
        nvmlSystemGetDriverVersion;
        nvmlSystemGetNVMLVersion;
        nvmlSystemGetCudaDriverVersion;
        nvmlSystemGetCudaDriverVersion_v2;
        nvmlDeviceGetBoardId;
        nvmlDeviceGetBoardPartNumber;
        nvmlDeviceGetBrand;
        nvmlDeviceGetBusType;
        nvmlDeviceGetMultiGpuBoard;
        nvmlDeviceGetMemoryBusWidth;
        nvmlDeviceGetVbiosVersion;
        nvmlDeviceGetGspFirmwareVersion;
        nvmlDeviceGetGspFirmwareMode;
        nvmlDeviceGetComputeMode;
        nvmlDeviceGetPersistenceMode;
        nvmlDeviceGetDisplayMode;
        nvmlDeviceGetDisplayActive;
        nvmlDeviceGetVirtualizationMode;
        nvmlDeviceGetAPIRestriction;
        nvmlDeviceGetEccMode;
        nvmlDeviceGetDefaultEccMode;
        nvmlDeviceGetMemoryErrorCounter;
        nvmlDeviceGetRetiredPagesPendingStatus;
        nvmlDeviceGetRemappedRows;
        nvmlDeviceGetNumFans;
        nvmlDeviceGetDefaultApplicationsClock;
        nvmlDeviceGetMaxCustomerBoostClock;
        nvmlDeviceGetCurrentClocksThrottleReasons;
        nvmlDeviceGetCurrentClocksEventReasons;
        nvmlDeviceGetGpuMaxPcieLinkGeneration;
        nvmlDeviceGetEncoderStats;
        nvmlDeviceGetCpuAffinity;
        nvmlDeviceGetCpuAffinityWithinScope;
        nvmlDeviceGetMemoryAffinity;
        nvmlDeviceGetTopologyCommonAncestor;
        nvmlDeviceGetTopologyNearestGpus;
        nvmlSystemGetTopologyGpuSet;
        nvmlDeviceGetP2PStatus;
        nvmlDeviceOnSameBoard;
        nvmlUnitGetCount;
        nvmlGetExcludedDeviceCount;
        nvmlSystemGetHicVersion;
        nvmlSystemGetProcessName;
        nvmlDeviceGetCount;
        nvmlDeviceGetCount_v2;
        nvmlDeviceGetHandleByIndex;
        nvmlDeviceGetHandleByIndex_v2;
        nvmlDeviceGetHandleByUUID;
        nvmlDeviceGetHandleByPciBusId;
        nvmlDeviceGetHandleByPciBusId_v2;
        nvmlDeviceGetHandleBySerial;
        nvmlDeviceGetIndex;
        nvmlDeviceGetAttributes_v2;
        nvmlDeviceGetAttributes;
        nvmlDeviceGetMinorNumber;
        nvmlDeviceGetName;
        nvmlDeviceGetUUID;
        nvmlDeviceGetSerial;
        nvmlDeviceGetPciInfo;
        nvmlDeviceGetPciInfo_v2;
        nvmlDeviceGetPciInfo_v3;
        nvmlDeviceGetArchitecture;
        nvmlDeviceGetCudaComputeCapability;
        nvmlDeviceGetNumGpuCores;
        nvmlDeviceGetBAR1MemoryInfo;
        nvmlDeviceGetUtilizationRates;
        nvmlDeviceGetEncoderUtilization;
        nvmlDeviceGetDecoderUtilization;
        nvmlDeviceGetJpgUtilization;
        nvmlDeviceGetOfaUtilization;
        nvmlDeviceGetSamples;
        nvmlDeviceGetFieldValues;
        nvmlDeviceGetMigMode;
        nvmlDeviceGetMaxMigDeviceCount;
        nvmlDeviceGetMigDeviceHandleByIndex;
        nvmlDeviceIsMigDeviceHandle;
        nvmlDeviceGetAccountingMode;
        nvmlDeviceGetAccountingBufferSize;
        nvmlDeviceGetTotalEccErrors;
        nvmlDeviceGetFanSpeed;
        nvmlDeviceGetFanSpeed_v2;
        nvmlDeviceGetClockInfo;
        nvmlDeviceGetMaxClockInfo;
        nvmlDeviceGetApplicationsClock;
        nvmlDeviceGetClock;
        nvmlDeviceGetSupportedMemoryClocks;
        nvmlDeviceGetSupportedGraphicsClocks;
        nvmlDeviceGetSupportedClocksThrottleReasons;
        nvmlDeviceGetSupportedClocksEventReasons;
        nvmlDeviceGetTemperature;
        nvmlDeviceGetTemperatureThreshold;
        nvmlDeviceGetPerformanceState;
        nvmlDeviceGetPowerState;
        nvmlDeviceGetPowerUsage;
        nvmlDeviceGetPowerManagementMode;
        nvmlDeviceGetPowerManagementLimit;
        nvmlDeviceGetPowerManagementDefaultLimit;
        nvmlDeviceGetPowerManagementLimitConstraints;
        nvmlDeviceGetEnforcedPowerLimit;
        nvmlDeviceGetTotalEnergyConsumption;
        nvmlDeviceGetCurrPcieLinkGeneration;
        nvmlDeviceGetCurrPcieLinkWidth;
        nvmlDeviceGetMaxPcieLinkGeneration;
        nvmlDeviceGetMaxPcieLinkWidth;
        nvmlDeviceGetPcieThroughput;
        nvmlDeviceGetPcieReplayCounter;
        nvmlDeviceGetSupportedEventTypes;
        nvmlDeviceRegisterEvents;
        nvmlEventSetWait;
        nvmlEventSetWait_v2;
    }
}

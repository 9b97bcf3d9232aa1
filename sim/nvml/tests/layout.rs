//! Tests that our NVML structs have the sizes, alignments and field offsets of nvml-wrapper-sys, which bindgen
//! made from NVIDIA's header.

use core::mem::{align_of, offset_of, size_of};
use nvml_wrapper_sys::bindings as theirs;
use shim_sys::nvml as ours;

macro_rules! same {
    ($($ours:ident = $theirs:ident { $($field:ident $(= $their_field:ident)?),* $(,)? })*) => { $(
        assert_eq!(size_of::<ours::$ours>(), size_of::<theirs::$theirs>(), concat!(stringify!($ours), ": size"));
        assert_eq!(align_of::<ours::$ours>(), align_of::<theirs::$theirs>(), concat!(stringify!($ours), ": alignment"));
        $(assert_eq!(
            offset_of!(ours::$ours, $field),
            same!(@offset $theirs $field $($their_field)?),
            concat!(stringify!($ours), ".", stringify!($field))
        );)*
    )* };
    (@offset $theirs:ident $field:ident) => { offset_of!(theirs::$theirs, $field) };
    (@offset $theirs:ident $field:ident $other:ident) => { offset_of!(theirs::$theirs, $other) };
}

#[test]
fn structs_are_laid_out_as_in_the_header() {
    same! {
        nvmlMemory_t = nvmlMemory_t { total, free, used }
        nvmlMemory_v2_t = nvmlMemory_v2_t { version, total, reserved, free, used }
        nvmlProcessInfo_v1_t = nvmlProcessInfo_v1_t { pid, usedGpuMemory }
        nvmlProcessInfo_t = nvmlProcessInfo_v2_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId }
        nvmlUtilization_t = nvmlUtilization_t { gpu, memory }
        nvmlProcessUtilizationSample_t = nvmlProcessUtilizationSample_t { pid, timeStamp, smUtil, memUtil, encUtil, decUtil }
        nvmlPciInfo_t = nvmlPciInfo_t { busIdLegacy, domain, bus, device, pciDeviceId, pciSubSystemId, busId }
        nvmlBAR1Memory_t = nvmlBAR1Memory_t { bar1Total, bar1Free, bar1Used }
        nvmlDeviceAttributes_t = nvmlDeviceAttributes_t {
            multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
            sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount, memorySizeMB,
        }
        nvmlSample_t = nvmlSample_t { timeStamp, sampleValue }
        nvmlFieldValue_t = nvmlFieldValue_t { fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value }
        nvmlEventData_t = nvmlEventData_t { device, eventType, eventData, gpuInstanceId, computeInstanceId }
    }
    assert_eq!(size_of::<ours::nvmlValue_t>(), size_of::<theirs::nvmlValue_t>());
    assert_eq!(size_of::<ours::nvmlDevice_t>(), size_of::<theirs::nvmlDevice_t>());
    assert_eq!(size_of::<ours::nvmlReturn_t>(), size_of::<theirs::nvmlReturn_t>());
}

#[test]
fn codes_have_the_headers_numbers() {
    let pairs = [
        (ours::nvmlReturn_t::SUCCESS, theirs::nvmlReturn_enum_NVML_SUCCESS),
        (ours::nvmlReturn_t::UNINITIALIZED, theirs::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
        (ours::nvmlReturn_t::INVALID_ARGUMENT, theirs::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT),
        (ours::nvmlReturn_t::NOT_SUPPORTED, theirs::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        (ours::nvmlReturn_t::NO_PERMISSION, theirs::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION),
        (ours::nvmlReturn_t::NOT_FOUND, theirs::nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
        (ours::nvmlReturn_t::INSUFFICIENT_SIZE, theirs::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE),
        (ours::nvmlReturn_t::DRIVER_NOT_LOADED, theirs::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED),
        (ours::nvmlReturn_t::TIMEOUT, theirs::nvmlReturn_enum_NVML_ERROR_TIMEOUT),
        (ours::nvmlReturn_t::LIBRARY_NOT_FOUND, theirs::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND),
        (ours::nvmlReturn_t::FUNCTION_NOT_FOUND, theirs::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND),
        (ours::nvmlReturn_t::ARGUMENT_VERSION_MISMATCH, theirs::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
        (ours::nvmlReturn_t::UNKNOWN, theirs::nvmlReturn_enum_NVML_ERROR_UNKNOWN),
    ];
    for (ours, theirs) in pairs {
        assert_eq!(ours.0, theirs);
    }
}

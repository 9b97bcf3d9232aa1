//! Field values: each field has its own result code; the few fields that monitors need have values.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::NvmlGpu,
    telemetry, utilization,
};
use shim_sys::nvml::{nvmlFieldValue_t, nvmlReturn_t, nvmlValue_t};

const MEMORY_TEMPERATURE: u32 = 82;
const TOTAL_ENERGY: u32 = 83;
const POWER_AVERAGE: u32 = 185;
const POWER_INSTANT: u32 = 186;

const TYPE_UNSIGNED: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;

pub fn nvmlDeviceGetFieldValues(dev: NvmlGpu, count: i32, values: CallerPlace<nvmlFieldValue_t>) -> NvmlAnswer {
    let view = dev.current_view()?;
    let count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or(code::ERROR_INVALID)?;
    let at = i64::try_from(view.wall_us).unwrap_or(i64::MAX);
    let percent = utilization::gpu_percent(&view);
    values.edit_each(count, |field| {
        field.timestamp = at;
        field.latencyUsec = 0;
        field.nvmlReturn = nvmlReturn_t::SUCCESS;
        field.value = nvmlValue_t { ullVal: 0 };
        match field.fieldId {
            TOTAL_ENERGY => {
                field.valueType = UNSIGNED_LONG_LONG;
                field.value.ullVal = telemetry::energy_millijoules(&view);
            }
            POWER_AVERAGE | POWER_INSTANT => {
                field.valueType = TYPE_UNSIGNED;
                field.value.uiVal = view.power_milliwatts(percent);
            }
            MEMORY_TEMPERATURE if view.profile.bus_bits >= 4096 => {
                field.valueType = TYPE_UNSIGNED;
                field.value.uiVal = 35 + percent * 30 / 100;
            }
            _ => field.nvmlReturn = code::ERROR_UNSUPPORTED,
        }
    })
}

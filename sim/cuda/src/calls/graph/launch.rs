//! Launches and uploads of executable graphs.

use super::executable_of_handle;
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::graph::exec::ExecutableGraph;
use crate::graph::memory::DeviceStream;
use crate::graph::run;
use crate::host_time::TimedCall;
use shim_sys::cuda::*;

/// The stream of a handle, with its device.
pub(crate) fn stream_line(d: &CallFrame, stream: CUstream) -> Result<DeviceStream, CUresult> {
    let (context, id) = d.resolve_stream(stream)?;
    let engine = d.initialised_driver()?.device_of_ordinal(context.device)?.engine.clone();
    Ok(DeviceStream { device: context.device, engine, stream: id })
}

pub(super) fn upload_graph(d: &CallFrame, exec: &ExecutableGraph, stream: CUstream) -> CallResult {
    run::upload_memory(d.initialised_driver()?, exec, &stream_line(d, stream)?)
}

pub(crate) unsafe fn cuGraphLaunch(d: &CallFrame, exec: CUgraphExec, stream: CUstream) -> CallResult {
    static CALL: TimedCall = TimedCall::new();
    let begin = vgpu_sim::now();
    let x = executable_of_handle(d, exec)?;
    let (driver, line) = (d.initialised_driver()?, stream_line(d, stream)?);
    let device = driver.device_of_ordinal(line.device)?;
    CALL.run(begin, &device.profile, &device.engine, device.profile.launch_host_ns, || run::launch(driver, &x, &line))
}

pub(crate) unsafe fn cuGraphUpload(d: &CallFrame, exec: CUgraphExec, stream: CUstream) -> CallResult {
    let x = executable_of_handle(d, exec)?;
    upload_graph(d, &x, stream)
}

//! Tests enforcement with child processes, and judges their observations ([`super::seen`]).
//!
//! One child runs without limits, to observe the real device and to look up every function. Another runs as any
//! program started here would, and allocates: a small amount must be granted, and more than the limit must be
//! refused. Each must end within [`CHILD_TIMEOUT`]. Without limits and without a loaded library there is nothing to
//! test; then the first child runs only to show the devices to [`mps`].

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vgpu_core::limits::{DeviceLimits, LimitError, Mode, RawLimits, Source};
use vgpu_core::units::bytes::Bytes;

use super::seen::{CHILD_ARGUMENT, ChildReport, ControlCodes, LookupResults, SMALL_ALLOCATION_BYTES, SeenDevice};
use super::{DoctorReport, daemon, environment_text, mps};
use crate::library;

/// Longest run of a child: a driver's first initialisation takes seconds on a machine with many devices.
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: u32 = 2;
/// CUDA_ERROR_NO_DEVICE.
const NO_DEVICE: u32 = 100;
/// CUDA_ERROR_NOT_PERMITTED.
const NOT_PERMITTED: u32 = 800;

pub fn examine_control(report: &mut DoctorReport) {
    let environment: Vec<(Vec<u8>, Vec<u8>)> =
        std::env::vars_os().map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes())).collect();
    // Variables that cannot be parsed are already a finding.
    let written = RawLimits::from_vars(environment).unwrap_or_default();
    let terms = environment_text("VGPU_SOCKET").and_then(|socket| daemon::ask_terms(socket.as_ref()).ok());
    let limits = match &terms {
        Some(said) => written.with_daemon(said.terms.memory_limit, said.terms.sm_limit),
        None => written,
    };
    let observes = match &terms {
        Some(said) => said.mode == Mode::Observe,
        None => limits.asked_mode() == Mode::Observe,
    };
    let asked = limits.asked_for_anything() || observes;
    let mapped = mapped_library();
    report_loaded(report, mapped.as_deref(), asked);
    report_deepbind(report);
    let list = mps::environment_list();
    if mapped.is_none() && list.is_none() {
        return;
    }
    let bare = match run_child(false) {
        Ok(seen) => seen,
        Err(why) => return report.add_finding("control", format!("the child that looks at the driver {why}")),
    };
    if let (Some(list), Some(0)) = (&list, bare.init) {
        mps::examine_devices(report, list, &bare.devices);
    }
    if mapped.is_none() {
        return;
    }
    report_bypasses(report, &bare);
    if let (Some(0), Some(code @ 1..)) = (bare.init, bare.nvml_init) {
        report.add_finding("driver", format!("nvmlInit answers {code}: {}", super::driver::NVML_MISSING));
    }
    if let (Mode::Off, Some((name, word))) = (limits.asked_mode(), limits.mode_from()) {
        return report.add_fine("control", format!("{name}={word} switches limits off: there is nothing to prove"));
    }
    if !asked {
        return report.add_fine("control", "no limit is asked for: there is nothing to prove");
    }
    if let Some(why) = &bare.trouble {
        return report.add_finding("control", format!("limits are asked for and cannot be proved here: {why}"));
    }
    match bare.init {
        Some(0) => {}
        Some(NO_DEVICE) => {
            return report.add_finding("control", "limits are asked for and there is no device: cuInit answers 100");
        }
        code => {
            return report
                .add_finding("control", format!("cuInit fails without limits, too: {}", code.unwrap_or_default()));
        }
    }
    match run_child(true) {
        Err(why) => report.add_finding("control", format!("the child that allocates {why}")),
        Ok(seen) if seen.init != Some(0) => {
            for device in &bare.devices {
                if let Err(why) = limits_on(&limits, device) {
                    report.add_finding("in force", format!("device {} ({}): {why}", device.ordinal, device.uuid));
                }
            }
            let code = seen.init.unwrap_or_default();
            let why = if code == NOT_PERMITTED { ": limits cannot be kept here, as other lines say" } else { "" };
            report.add_finding("control", format!("cuInit answers {code} under the limits{why}"));
        }
        Ok(seen) => {
            for device in &seen.devices {
                let real = bare.devices.iter().find(|real| real.uuid == device.uuid);
                if observes {
                    report_observed(report, real, device);
                } else {
                    report_enforced(report, &limits, real, device);
                }
            }
        }
    }
}

/// Returns the path of libvgpu.so if it is mapped in this process, which was started as any program is.
fn mapped_library() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = |line: &str| line.get(line.find('/')?..).map(str::to_owned);
    maps.lines().filter_map(file).find(|file| file.rsplit('/').next() == Some(library::LIBRARY_NAME))
}

fn report_loaded(report: &mut DoctorReport, mapped: Option<&str>, asked: bool) {
    match mapped {
        Some(file) => {
            report.add_fine("loaded", format!("{file} is mapped in programs started here, this one among them"))
        }
        None if asked => report.add_finding(
            "loaded",
            "limits are asked for, and libvgpu.so is not mapped in programs started here: they run WITHOUT limits; \
             start them by `vgpu run -- ...`, or set LD_PRELOAD to its absolute path",
        ),
        None => {
            report.add_fine("loaded", "libvgpu.so is not mapped in programs started here, and no limit is asked for")
        }
    }
}

fn report_deepbind(report: &mut DoctorReport) {
    let strict = environment_text("VGPU_STRICT").is_some_and(|value| value == "1");
    let deepbind = match environment_text("VGPU_DEEPBIND").as_deref() {
        Some("keep") if !strict => "RTLD_DEEPBIND is kept (VGPU_DEEPBIND=keep): each use is a bypass",
        _ => "RTLD_DEEPBIND is cleared where limits are asked for",
    };
    let rest = if strict {
        "other namespaces of the loader, unknown variants and second copies of the driver are refused (VGPU_STRICT=1)"
    } else {
        "other namespaces of the loader, unknown variants and second copies of the driver are counted; VGPU_STRICT=1 refuses them"
    };
    report.add_fine("bypasses", format!("{deepbind}; {rest}"));
}

fn report_bypasses(report: &mut DoctorReport, seen: &ChildReport) {
    for (name, results) in [("libcuda.so.1", &seen.cuda), ("libnvidia-ml.so.1", &seen.nvml)] {
        let LookupResults { rows, hooked, lacking, open, refused } = results;
        if *rows == lacking.len() {
            report.add_fine("bypasses", format!("{name} is not there, or has none of the {rows} hooked functions"));
            continue;
        }
        let lacks = match lacking.len() {
            0 => String::new(),
            some => format!("; this driver lacks {some}: {}", first_names(lacking)),
        };
        if open.is_empty() {
            report.add_fine(
                "bypasses",
                format!("{name}: {hooked} of {rows} functions are hooked, none bypasses the hooks{lacks}"),
            );
        } else {
            let what = first_names(open);
            report.add_finding(
                "bypasses",
                format!(
                    "{name}: {hooked} of {rows} functions are hooked, {} bypass the hooks: {what}{lacks}; \
                     VGPU_STRICT=1 refuses variants that are not known",
                    open.len()
                ),
            );
        }
        if !refused.is_empty() {
            report.add_finding(
                "preload",
                format!(
                    "another preloaded library refuses cuGetProcAddress for {} hooked functions ({}), because they are \
                     not in the driver; limits hold, and programs that look functions up this way get 801; take it out \
                     of LD_PRELOAD",
                    refused.len(),
                    first_names(refused)
                ),
            );
        }
    }
}

/// Returns the first few names.
fn first_names(names: &[String]) -> String {
    const NAMES_SHOWN: usize = 4;
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    if names.len() > NAMES_SHOWN { format!("{shown}, and {} more", names.len() - NAMES_SHOWN) } else { shown }
}

/// Checks a device whose use is only measured: programs must see it unchanged.
fn report_observed(report: &mut DoctorReport, real: Option<&SeenDevice>, device: &SeenDevice) {
    let name = format!("device {} ({})", device.ordinal, device.uuid);
    match (real, &device.control) {
        (Some(real), _) if real.total != device.total => report.add_finding(
            "control",
            format!(
                "{name}: programs see {} instead of {}, though use is only to be measured",
                Bytes(device.total),
                Bytes(real.total)
            ),
        ),
        (_, Some(control)) if control.below.is_some_and(|code| code != 0) => report.add_finding(
            "control",
            format!("{name}: {} were refused, though use is only to be measured", Bytes(SMALL_ALLOCATION_BYTES)),
        ),
        _ => report.add_fine("control", format!("{name}: programs get what the device has; use is only measured")),
    }
}

/// Returns the limits on a device. A percentage is of NVML's size, as in the library: without one it is an error.
fn limits_on(limits: &RawLimits, real: &SeenDevice) -> Result<DeviceLimits, LimitError> {
    limits.for_named_device(&mps::names_of(real), real.memory.map(Bytes))
}

/// Checks a device: which limits are in force, where they come from, and whether they hold.
fn report_enforced(report: &mut DoctorReport, limits: &RawLimits, real: Option<&SeenDevice>, device: &SeenDevice) {
    let name = format!("device {} ({})", device.ordinal, device.uuid);
    let Some(real) = real else {
        return report.add_finding("in force", format!("{name} is not there without limits"));
    };
    let limits = match limits_on(limits, real) {
        Ok(limits) => limits,
        Err(why) => return report.add_finding("in force", format!("{name}: {why}")),
    };
    report.add_fine("in force", format!("{name}: {}", in_words(&limits, real.memory.unwrap_or(real.total))));
    let Some(memory) = limits.memory else { return };
    let Some(control) = &device.control else { return };
    // CUDA's total is less than the board's memory.
    let (shown, memory) = (Bytes(device.total), memory.min(Bytes(real.total)));
    if shown != memory {
        return report.add_finding(
            "control",
            format!("{name}: programs see {shown} instead of the limit of {memory}: it is NOT enforced"),
        );
    }
    judge_memory(report, &name, memory, memory.0 < real.total, control);
}

fn judge_memory(report: &mut DoctorReport, name: &str, memory: Bytes, below_the_device: bool, control: &ControlCodes) {
    let step = Bytes(SMALL_ALLOCATION_BYTES);
    match (control.context, control.above, control.below) {
        (OUT_OF_MEMORY, ..) => report.add_fine(
            "control",
            format!("{name}: a context is refused, the limit of {memory} is used up or too small for one"),
        ),
        (code @ 1.., ..) => report.add_finding("control", format!("{name}: no context can be made (code {code})")),
        (_, 0, _) => report.add_finding(
            "control",
            format!("{name}: {memory} and {step} more were granted: the limit is NOT enforced"),
        ),
        (_, OUT_OF_MEMORY, Some(0)) if below_the_device => {
            report.add_fine(
                "control",
                format!("{name}: {step} were granted, {memory} and {step} more were refused: the limit holds"),
            );
        }
        (_, OUT_OF_MEMORY, Some(0)) => {
            report.add_fine(
                "control",
                format!("{name}: the limit is all of the device; what is more is refused by the device itself"),
            );
        }
        (_, OUT_OF_MEMORY, None) => {
            report.add_fine(
                "control",
                format!("{name}: {memory} and {step} more were refused; less than {step} are free to try a grant with"),
            );
        }
        (_, OUT_OF_MEMORY, Some(code)) => {
            report.add_finding(
                "control",
                format!("{name}: {step} were refused (code {code}) though {} are free", Bytes(control.free)),
            );
        }
        (_, code, _) => report.add_finding(
            "control",
            format!("{name}: {memory} and {step} more were refused with code {code} instead of 2"),
        ),
    }
}

fn in_words(limits: &DeviceLimits, total: u64) -> String {
    let from = |source: Option<Source>| match source {
        Some(Source::Daemon) => " from the daemon".to_owned(),
        Some(Source::Variable(variable)) => format!(" from {variable}"),
        None => String::new(),
    };
    let memory = match limits.memory {
        Some(memory) => format!("memory {memory} of {}{}", Bytes(total), from(limits.memory_from)),
        None => format!("memory without a limit ({})", Bytes(total)),
    };
    let time = match limits.sm {
        Some(share) => format!("device time {share}{}", from(limits.sm_from)),
        None => "device time without a limit".to_owned(),
    };
    format!("{memory}; {time}")
}

/// Runs this program as the child, with or without limits, and reads its observations.
fn run_child(limited: bool) -> Result<ChildReport, String> {
    let program = std::env::current_exe().map_err(|why| format!("cannot be started: {why}"))?;
    let mut command = Command::new(program);
    command.arg(CHILD_ARGUMENT).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if limited {
        command.arg("control");
    } else {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let foreign = [
                "CUDA_DEVICE_MEMORY_LIMIT",
                "CUDA_DEVICE_SM_LIMIT",
                "NVIDIA_GPU_MEMORY_LIMIT",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            ];
            if ["VGPU_SOCKET", "VGPU_MODE"].contains(&&*text)
                || super::limits::is_limit(&text)
                || foreign.iter().any(|name| text.starts_with(name))
            {
                command.env_remove(&name);
            }
        }
    }
    let mut child = command.spawn().map_err(|why| format!("cannot be started: {why}"))?;
    let end = Instant::now() + CHILD_TIMEOUT;
    // The output is far smaller than a pipe's buffer, so waiting first cannot deadlock.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {} s", CHILD_TIMEOUT.as_secs()));
            }
            Err(why) => return Err(format!("is lost: {why}")),
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
    let said = err.lines().next().map_or(String::new(), |line| format!("; it said: {line}"));
    if !status.success() {
        return Err(format!("ended with {status}{said}"));
    }
    // The driver may print as well; the child's own line is the last one.
    let line = out.lines().next_back().unwrap_or_default();
    serde_json::from_str(line).map_err(|why| format!("is not understood ({why}){said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(total: u64, control: Option<ControlCodes>) -> SeenDevice {
        SeenDevice { ordinal: 0, uuid: "GPU-1".into(), index: Some(0), total, memory: Some(total), control }
    }

    /// Returns whether the last line is a finding, and its text.
    fn said(look: impl FnOnce(&mut DoctorReport)) -> (bool, String) {
        let mut report = DoctorReport::default();
        look(&mut report);
        let line = report.lines.pop().unwrap();
        (!line.ok, line.words)
    }

    #[test]
    fn what_the_child_was_granted_and_refused_is_judged_for_what_it_is() {
        let answers = |context, below, above| ControlCodes { context, free: 5 * SMALL_ALLOCATION_BYTES, below, above };
        for (control, below_the_device, finding, words) in [
            (answers(0, Some(0), 2), true, false, "the limit holds"),
            (answers(0, Some(0), 2), false, false, "the limit is all of the device"),
            (answers(0, None, 2), true, false, "less than 2 MiB are free"),
            (answers(2, None, 0), true, false, "a context is refused"),
            (answers(0, Some(0), 0), true, true, "1 GiB and 2 MiB more were granted: the limit is NOT enforced"),
            (answers(0, Some(2), 2), true, true, "were refused (code 2) though 10 MiB are free"),
            (answers(0, Some(0), 1), true, true, "with code 1 instead of 2"),
            (answers(999, None, 0), true, true, "no context can be made (code 999)"),
        ] {
            let told = said(|report| judge_memory(report, "x", Bytes(GIB), below_the_device, &control));
            assert!(told.0 == finding && told.1.contains(words), "{control:?}: {told:?}");
        }
    }

    #[test]
    fn a_program_that_is_only_observed_sees_the_device_as_it_is_and_is_refused_nothing() {
        let granted = ControlCodes { below: Some(0), ..ControlCodes::default() };
        let refused = ControlCodes { below: Some(2), ..ControlCodes::default() };
        let real = device(8 * GIB, None);
        let told = |seen: SeenDevice| said(|report| report_observed(report, Some(&real), &seen));
        assert!(!told(device(8 * GIB, Some(granted))).0);
        let limited = told(device(GIB, None));
        assert!(limited.0 && limited.1.contains("see 1 GiB instead of 8 GiB"), "{limited:?}");
        let refused = told(device(8 * GIB, Some(refused)));
        assert!(refused.0 && refused.1.contains("2 MiB were refused"), "{refused:?}");
    }
}

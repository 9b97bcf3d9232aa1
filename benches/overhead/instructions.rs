//! Instructions per call, counted by callgrind: a second figure that a busy machine does not change.
//!
//! A process of its own repeats a call N and 3 N times under valgrind. The difference of the two counts, divided by 2
//! N, is the cost of one call. This is done with the driver's own function and with the one that a program finds. Both
//! contain the simulated driver's instructions, so their difference is the library's.

use crate::calls::{
    self, Alloc, AllocAsync, Dlsym, Free, FreeAsync, Init, Launch, MemInfo, ProcAddress, Retain, SetCurrent,
    typed_function,
};
use crate::child::require_ok;
use crate::launches::KernelLauncher;
use core::ffi::{CStr, c_void};
use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

/// Names of the calls whose instructions are counted.
pub const COUNTED_CALLS: [&str; 13] = [
    "launch that the driver refuses",
    "alloc + free, 0 live",
    "alloc + free, 10000 live",
    "pool pair, 0 live",
    "cuMemGetInfo",
    "cuGetProcAddress, hooked",
    "cuGetProcAddress, not hooked",
    "dlsym of getpid",
    "dlsym of cuserid",
    "dlsym of cudnnCreate",
    "dlsym of nvrtcVersion",
    "dlsym of cuMyOwn",
    "dlsym of cuMemAlloc_v2",
];

/// Largest number of instructions that the library may add: as many as the bare call for cuGetProcAddress, a fixed
/// number for `dlsym`. Instruction counts do not depend on the load of the machine, so they can be checked anywhere.
fn instruction_budget(name: &str, bare: f64) -> f64 {
    match name {
        _ if name.starts_with("cuGetProcAddress, ") => bare,
        "dlsym of cuMemAlloc_v2" => f64::INFINITY, // the library decides this answer itself, it does not pass it on
        _ if name.starts_with("dlsym of ") => 150.0,
        _ => f64::INFINITY,
    }
}

/// A launch under a ceiling. It is split by object and has no row among [`COUNTED_CALLS`].
const LAUNCH: &str = "launch, positive balance";

/// One count: the bare call, and the library's addition.
pub struct InstructionCount {
    /// Name of the counted call.
    pub name: &'static str,
    /// Instructions of the driver's own function.
    pub bare: f64,
    /// Additional instructions with the hook.
    pub added: f64,
}

impl InstructionCount {
    /// True if the addition is within the budget, or there is no budget.
    pub fn is_kept(&self) -> bool {
        self.added <= instruction_budget(self.name, self.bare)
    }
}

/// Counts all calls in processes made by `command`, which gets this program's arguments. Returns an error if valgrind
/// is missing.
pub fn count_instructions(command: impl Fn() -> Command) -> Result<Vec<InstructionCount>, String> {
    let one = |name: &str, variant: &str, times: u32| -> Result<f64, String> {
        let out = command().args(["--repeat", name, variant, &times.to_string()]).output();
        let out = out.map_err(|e| format!("valgrind: {e}"))?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let collected = said.lines().find_map(|line| line.split("Collected : ").nth(1)?.trim().parse().ok());
        collected.filter(|_| out.status.success()).ok_or_else(|| format!("{name}, {variant}: {}: {said}", out.status))
    };
    let per_call = |name: &str, variant: &str| -> Result<f64, String> {
        let times = 2_000;
        Ok((one(name, variant, 3 * times)? - one(name, variant, times)?) / f64::from(2 * times))
    };
    COUNTED_CALLS
        .iter()
        .map(|name| {
            let bare = per_call(name, "bare")?;
            Ok(InstructionCount { name, bare, added: per_call(name, "ours")? - bare })
        })
        .collect()
}

/// Instructions of one launch under a ceiling, by the object that contains them: the library, the driver (including the
/// library's event records and queries), others.
pub struct LaunchSplit {
    /// Instructions of the driver's own function.
    pub bare: f64,
    /// Instructions in the library's own code.
    pub own: f64,
    /// Instructions in the driver beyond `bare`: the library's calls of it.
    pub driver: f64,
    /// Instructions in the C library and elsewhere.
    pub other: f64,
}

/// Splits a launch under a ceiling. `command` is as for [`count_instructions`], and gets a path for callgrind's output.
pub fn split_launch(command: impl Fn(&Path) -> Command, scratch: &Path) -> Result<LaunchSplit, String> {
    let one = |variant: &str, times: u32| -> Result<[u64; 3], String> {
        let file = scratch.join(format!("callgrind-{variant}-{times}"));
        let out = command(&file).args(["--repeat", LAUNCH, variant, &times.to_string()]).output();
        let out = out.map_err(|why| format!("valgrind: {why}"))?;
        if !out.status.success() {
            return Err(format!("{LAUNCH}, {variant}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
        }
        let text = std::fs::read_to_string(&file).map_err(|why| format!("{}: {why}", file.display()))?;
        Ok(by_object(&text))
    };
    let per_launch = |variant: &str| -> Result<[f64; 3], String> {
        let times = 2_000;
        let (few, many) = (one(variant, times)?, one(variant, 3 * times)?);
        Ok(std::array::from_fn(|at| (many[at] as f64 - few[at] as f64) / f64::from(2 * times)))
    };
    let (bare, ours) = (per_launch("bare")?, per_launch("ours")?);
    let more = |at: usize| ours[at] - bare[at];
    Ok(LaunchSplit { bare: bare.iter().sum(), own: more(0), driver: more(1), other: more(2) })
}

/// Instructions executed in the library, in the driver and elsewhere, from callgrind's output format. A cost belongs to
/// the object named last. A line after `calls=` is the inclusive cost of the called function, which is listed
/// separately again, so it is skipped.
fn by_object(text: &str) -> [u64; 3] {
    let (mut names, mut at, mut sums, mut called) = (HashMap::new(), 2, [0; 3], false);
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            let (id, name) = object.split_once(' ').unwrap_or((object, ""));
            if !name.is_empty() {
                names.insert(id.to_owned(), name.to_owned());
            }
            let name = names.get(id).map_or("", String::as_str);
            at = if name.contains("libvgpu") { 0 } else { 1 + usize::from(!name.contains("libcuda")) };
        } else if let Some(object) = line.strip_prefix("cob=") {
            // A name is written in full only at its first occurrence.
            if let Some((id, name)) = object.split_once(' ') {
                names.insert(id.to_owned(), name.to_owned());
            }
        } else if line.starts_with("calls=") {
            called = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok()).unwrap_or(0);
            sums[at] += if std::mem::take(&mut called) { 0 } else { cost };
        }
    }
    sums
}

/// One variant of a function: the library's hook or the bare function.
fn chosen_variant<F: Copy>(driver: *mut c_void, name: &CStr, ours: bool) -> F {
    let address = if ours { calls::found_function(driver, name) } else { calls::bare_function(c"libcuda.so.1", name) };
    // SAFETY: the address is that of the driver's function `name` or its hook, and `F` is its signature.
    unsafe { typed_function(address) }
}

/// Repeats one call, in a process that valgrind counts.
///
/// # Panics
/// If a call fails.
pub fn repeat_call(name: &str, variant: &str, times: u32) {
    let driver = calls::driver_handle();
    let ours = variant == "ours";
    if name == LAUNCH {
        let launcher = KernelLauncher::new(driver);
        // No wait between the launches: it would spin for as long as the kernel takes. A kernel of no length is
        // complete at the next check.
        return (0..times).for_each(|_| launcher.launch_once(ours));
    }
    // SAFETY: the driver's functions have their own signatures and get valid pointers to locals; device memory is never
    // touched, and every pointer is freed once.
    unsafe {
        let mut context = null_mut();
        require_ok(chosen_variant::<Init>(driver, c"cuInit", true)(0), "cuInit");
        require_ok(
            chosen_variant::<Retain>(driver, c"cuDevicePrimaryCtxRetain", true)(&raw mut context, 0),
            "cuDevicePrimaryCtxRetain",
        );
        require_ok(chosen_variant::<SetCurrent>(driver, c"cuCtxSetCurrent", true)(context), "cuCtxSetCurrent");
        let all = 0..times;
        match name {
            "launch that the driver refuses" => {
                let launch = chosen_variant::<Launch>(driver, c"cuLaunchKernel", ours);
                all.for_each(|_| {
                    black_box(launch(null_mut(), 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()));
                });
            }
            "alloc + free, 0 live" | "alloc + free, 10000 live" => {
                let alloc = chosen_variant::<Alloc>(driver, c"cuMemAlloc_v2", ours);
                let free = chosen_variant::<Free>(driver, c"cuMemFree_v2", ours);
                let mut address = 0;
                for _ in 0..if name.contains("10000") { 10_000 } else { 0 } {
                    require_ok(
                        chosen_variant::<Alloc>(driver, c"cuMemAlloc_v2", true)(&raw mut address, 512),
                        "cuMemAlloc",
                    );
                }
                for _ in all {
                    require_ok(alloc(&raw mut address, 4096), "cuMemAlloc");
                    require_ok(free(address), "cuMemFree");
                }
            }
            "pool pair, 0 live" => {
                let alloc = chosen_variant::<AllocAsync>(driver, c"cuMemAllocAsync", ours);
                let free = chosen_variant::<FreeAsync>(driver, c"cuMemFreeAsync", ours);
                let mut address = 0;
                for _ in all {
                    require_ok(alloc(&raw mut address, 4096, null_mut()), "cuMemAllocAsync");
                    require_ok(free(address, null_mut()), "cuMemFreeAsync");
                }
            }
            "cuMemGetInfo" => {
                let info = chosen_variant::<MemInfo>(driver, c"cuMemGetInfo_v2", ours);
                let (mut left, mut total) = (0, 0);
                all.for_each(|_| require_ok(info(&raw mut left, &raw mut total), "cuMemGetInfo"));
            }
            _ if name.starts_with("cuGetProcAddress, ") => {
                let (_, symbol) =
                    calls::ASKED_NAMES.iter().find(|(kind, _)| name.ends_with(&format!(", {kind}"))).expect(name);
                let look = chosen_variant::<ProcAddress>(driver, c"cuGetProcAddress_v2", ours);
                let (mut address, mut status) = (null_mut(), 0);
                all.for_each(|_| {
                    require_ok(look(symbol.as_ptr(), &raw mut address, 12_000, 0, &raw mut status), "cuGetProcAddress");
                });
            }
            _ if name.starts_with("dlsym of ") => {
                let own = typed_function::<Dlsym>(calls::bare_function(c"libc.so.6", c"dlsym"));
                let look = if ours { typed_function::<Dlsym>(calls::linked_dlsym()) } else { own };
                let foreign = calls::foreign_names(driver);
                let found = foreign.iter().find(|(_, symbol)| name.as_bytes().ends_with(symbol.to_bytes()));
                let (handle, symbol) = found.copied().unwrap_or((driver, c"cuMemAlloc_v2"));
                all.for_each(|_| {
                    black_box(look(handle, symbol.as_ptr()));
                });
            }
            _ => panic!("{name} is not counted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_belong_to_the_object_they_were_spent_in() {
        let text = "events: Ir\n\nob=(1) /x/libvgpu.so\nfl=(1) a\nfn=(1) hook\n10 5\n+1 7\ncob=(2) /sim/libcuda.so\ncfn=(2) \
                    launch\ncalls=3 4\n* 900\n-2 1\n\nob=(2)\nfn=(2)\n4 900\n\nob=(3) /lib/libc.so.6\nfn=(3) memcpy\n0 40\n\
                    totals: 953\n";
        assert_eq!(by_object(text), [13, 900, 40]);
    }
}

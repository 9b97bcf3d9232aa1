//! The cost of a launch under a ceiling while the balance is positive, split into the library's own code and its calls
//! of the driver (event records, queries).
//!
//! The nanoseconds are measured with `nothing.c`, a driver whose calls cost almost nothing, so that the library's own
//! code remains. [`crate::child`] has the same with the simulated driver and its real costs. The instructions are split
//! by object ([`crate::instructions`]). A ceiling that is not in force would make every figure look good, so that is
//! checked first.

use crate::calls::{self, GetFunction, Init, Launch, LoadData, Retain, SetCurrent};
use crate::child::{DifferenceRow, bare_and_found, compare_bodies, require_ok};
use core::ffi::{CStr, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Ceiling of these scenarios, in percent.
pub const CEILING_PERCENT: u64 = 95;
/// Device time launched to check that the ceiling is in force.
const CEILING_CHECK_TIME: Duration = Duration::from_millis(200);
/// Device time of a measured launch, and the pause after a block in which the account refills. The device keeps up with
/// the launches: otherwise some wait up to 40 us for an idle stream, and that is no code. A launch that is measured
/// alone costs half a microsecond with its event marker, so a block of them costs 510 us.
const SHORT: (Duration, Duration) = (Duration::from_nanos(10), Duration::from_micros(1000));
/// Number of launches in a measured block.
const BLOCK: u32 = 1000;

/// Kinds of calls that `nothing.c` counts.
const COUNTED_KINDS: [&str; 6] =
    ["launches", "records", "event queries", "stream queries", "questions about captures", "exchanges of modes"];

/// A kernel whose length is its parameter, and both variants of the launch function.
pub struct KernelLauncher {
    kernel: *mut c_void,
    bare: Launch,
    ours: Launch,
}

// SAFETY of the calls below: the driver's functions have their own signatures and get pointers to locals.
#[allow(clippy::undocumented_unsafe_blocks)]
impl KernelLauncher {
    /// Creates a context and loads the kernel.
    ///
    /// # Panics
    /// If a call fails.
    pub fn new(driver: *mut c_void) -> KernelLauncher {
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        let image = concat!(include_str!("../../examples/kernels/spin.ptx"), "\0");
        unsafe {
            require_ok(bare_and_found::<Init>(driver, c"cuInit").1(0), "cuInit");
            let retain = bare_and_found::<Retain>(driver, c"cuDevicePrimaryCtxRetain").1;
            require_ok(retain(&raw mut context, 0), "cuDevicePrimaryCtxRetain");
            require_ok(bare_and_found::<SetCurrent>(driver, c"cuCtxSetCurrent").1(context), "cuCtxSetCurrent");
            let load = bare_and_found::<LoadData>(driver, c"cuModuleLoadData").1;
            require_ok(load(&raw mut module, image.as_ptr().cast()), "cuModuleLoadData");
            let function = bare_and_found::<GetFunction>(driver, c"cuModuleGetFunction").1;
            require_ok(function(&raw mut kernel, module, c"vgpu_spin_ns".as_ptr()), "cuModuleGetFunction");
        }
        let (bare, ours) = bare_and_found::<Launch>(driver, c"cuLaunchKernel");
        KernelLauncher { kernel, bare, ours }
    }

    fn launch(&self, launch: Launch, mut ns: u64) {
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let code = unsafe {
            black_box(launch)(black_box(self.kernel), 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters, null_mut())
        };
        require_ok(code, "cuLaunchKernel");
    }

    /// Makes an empty launch, as a program would or past the library.
    pub fn launch_once(&self, ours: bool) {
        self.launch(if ours { self.ours } else { self.bare }, 0);
    }

    /// Launches kernels that report [`CEILING_CHECK_TIME`] of device time together, then short ones until their cost
    /// is forgotten.
    ///
    /// # Panics
    /// If the launches took almost no time with this driver, which does nothing: then no ceiling is in force.
    fn try_ceiling(&self, nothing: NothingDriver) {
        const LAUNCHES: u32 = 100;
        nothing.set_launch_time(CEILING_CHECK_TIME / LAUNCHES);
        let begun = Instant::now();
        for _ in 0..LAUNCHES {
            self.launch_once(true);
        }
        let took = begun.elapsed();
        assert!(
            took > CEILING_CHECK_TIME / 2,
            "{CEILING_CHECK_TIME:?} of work under {CEILING_PERCENT} % took {took:?}: the ceiling is not in force"
        );
        nothing.set_launch_time(SHORT.0);
        for _ in 0..200 {
            for _ in 0..BLOCK {
                self.launch_once(true);
            }
            std::thread::sleep(SHORT.1);
        }
    }
}

/// The variables of `nothing.c`: its counters, and the kernel length that it reports.
#[derive(Clone, Copy)]
struct NothingDriver {
    counts: *const u64,
    takes_ms: *mut f32,
}

impl NothingDriver {
    /// Finds the variables; `None` if the driver is another one.
    fn find(driver: *mut c_void) -> Option<NothingDriver> {
        let find = |name: &CStr| calls::found_function(driver, name);
        let (counts, takes) = (find(c"nothing_counts"), find(c"nothing_takes_ms"));
        (counts != 0 && takes != 0)
            .then_some(NothingDriver { counts: counts as *const u64, takes_ms: takes as *mut f32 })
    }

    /// Sets the length that each launch reports from now on.
    fn set_launch_time(self, time: Duration) {
        // SAFETY: a variable of that type, which only this thread's calls of the driver read.
        unsafe { self.takes_ms.write_volatile(time.as_secs_f32() * 1e3) };
    }

    fn call_counts(self) -> [u64; COUNTED_KINDS.len()] {
        // SAFETY: an array of that many words, which only this thread's calls write.
        unsafe { self.counts.cast::<[u64; COUNTED_KINDS.len()]>().read_volatile() }
    }
}

/// The row of a launch under a ceiling with `nothing.c`, and the number of driver calls per thousand launches.
///
/// # Panics
/// If the driver is another one, the ceiling is not in force, or a call fails.
pub fn measure_launches(effort: u32) -> Vec<DifferenceRow> {
    let driver = calls::driver_handle();
    let launcher = KernelLauncher::new(driver);
    let nothing = NothingDriver::find(driver).expect("the driver that does nothing");
    launcher.try_ceiling(nothing);
    let before = nothing.call_counts();
    let rest = || std::thread::sleep(SHORT.1);
    let row = compare_bodies(
        "launch, own code",
        400 * effort,
        BLOCK,
        || launcher.launch_once(false),
        || launcher.launch_once(true),
        rest,
    );
    let after = nothing.call_counts();
    // Every second launch was bare.
    let launches = (after[0] - before[0]) as f64 / 2000.0;
    let counted = COUNTED_KINDS.iter().zip(before).zip(after).skip(1).map(|((kind, before), after)| {
        let each = (after - before) as f64 / launches;
        DifferenceRow { name: format!("{kind} per 1000 launches"), bare: 0.0, added: each, low: each, high: each }
    });
    [row].into_iter().chain(counted).collect()
}

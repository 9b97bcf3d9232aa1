//! Measurements in the preloaded process: blocks of each call alternate between the bare function and the found one.

use crate::calls::{self, *};
use crate::stats::median_interval;
use crate::threads::FunctionPairs;
use core::ffi::{c_int, c_void};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

/// A measured difference, in nanoseconds per call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DifferenceRow {
    /// Name of the measured call.
    pub name: String,
    /// Median of the bare call.
    pub bare: f64,
    /// Median of the paired differences.
    pub added: f64,
    /// Lower end of the 95 % interval of `added`.
    pub low: f64,
    /// Upper end of the 95 % interval of `added`.
    pub high: f64,
}

/// Number of times that a row is measured. A guest on the other half of the processor's core slows both bodies for a
/// second or more: the bare pool pair then takes 1.6 to 2.2 us instead of 1.1 to 1.3.
const ATTEMPTS: u32 = 3;

/// Times two bodies in `rounds` pairs of blocks of `calls`. The order within a pair alternates, and `rest` runs between
/// blocks. All of it happens [`ATTEMPTS`] times, and the attempt with the fastest bare calls counts.
pub fn compare_bodies(
    name: &str,
    rounds: u32,
    calls: u32,
    mut bare: impl FnMut(),
    mut ours: impl FnMut(),
    mut rest: impl FnMut(),
) -> DifferenceRow {
    let attempts = (0..ATTEMPTS).map(|_| compare_once(name, rounds, calls, &mut bare, &mut ours, &mut rest));
    attempts.min_by(|one, other| one.bare.total_cmp(&other.bare)).expect("there are attempts")
}

fn compare_once(
    name: &str,
    rounds: u32,
    calls: u32,
    bare: &mut impl FnMut(),
    ours: &mut impl FnMut(),
    rest: &mut impl FnMut(),
) -> DifferenceRow {
    let mut time = |body: &mut dyn FnMut()| {
        let started = Instant::now();
        body();
        let took = started.elapsed().as_nanos() as f64 / f64::from(calls);
        rest();
        took
    };
    let mut block_bare = || (0..calls).for_each(|_| bare());
    let mut block_ours = || (0..calls).for_each(|_| ours());
    let (mut bares, mut differences) = (Vec::new(), Vec::new());
    for round in 0..rounds + rounds / 10 {
        let (b, o) = if round % 2 == 0 {
            let b = time(&mut block_bare);
            (b, time(&mut block_ours))
        } else {
            let o = time(&mut block_ours);
            (time(&mut block_bare), o)
        };
        if round >= rounds / 10 {
            bares.push(b);
            differences.push(o - b);
        }
    }
    let (bare, added) = (median_interval(&mut bares), median_interval(&mut differences));
    DifferenceRow { name: name.to_owned(), bare: bare.value, added: added.value, low: added.low, high: added.high }
}

/// Panics if a call failed.
///
/// # Panics
/// Unless `code` is 0.
pub fn require_ok(code: c_int, what: &str) {
    assert_eq!(code, 0, "{what}");
}

/// The bare function and the found one, typed.
pub fn bare_and_found<F: Copy>(driver: *mut c_void, name: &core::ffi::CStr) -> (F, F) {
    // SAFETY: both addresses are those of the driver's function `name` or its hook, and `F` is its signature: each
    // caller passes a matching pair.
    unsafe {
        (
            typed_function(calls::bare_function(c"libcuda.so.1", name)),
            typed_function(calls::found_function(driver, name)),
        )
    }
}

/// Parameters of a measurement, and the conditions that the process must satisfy.
pub struct OverheadScenario {
    /// True if the library is preloaded.
    pub preloaded: bool,
    /// The memory limit, if there is one.
    pub limit: Option<u64>,
    /// True if there is a ceiling on device time; then only launches are measured.
    pub ceiling: bool,
    /// True if only the calls of memory pools are measured.
    pub only_pools: bool,
    /// Length of the run: multiplies the rounds.
    pub effort: u32,
}

/// Makes all measurements in this process.
///
/// # Panics
/// If the library is active when it should not be, or the other way round: then every number would be wrong.
pub fn measure_scenario(scenario: &OverheadScenario) -> Vec<DifferenceRow> {
    let driver = calls::driver_handle();
    let (rounds, mut rows) = (200 * scenario.effort, Vec::new());
    // SAFETY: the driver's functions have their own signatures and get valid pointers to locals; device memory is never
    // touched, and every pointer is freed once.
    unsafe {
        let (_, init) = bare_and_found::<Init>(driver, c"cuInit");
        let (_, retain) = bare_and_found::<Retain>(driver, c"cuDevicePrimaryCtxRetain");
        let (set_current, _) = bare_and_found::<SetCurrent>(driver, c"cuCtxSetCurrent");
        let (synchronize, _) = bare_and_found::<Synchronize>(driver, c"cuCtxSynchronize");
        let (alloc, our_alloc) = bare_and_found::<Alloc>(driver, c"cuMemAlloc_v2");
        let (free, our_free) = bare_and_found::<Free>(driver, c"cuMemFree_v2");
        let (info, our_info) = bare_and_found::<MemInfo>(driver, c"cuMemGetInfo_v2");
        let (launch, our_launch) = bare_and_found::<Launch>(driver, c"cuLaunchKernel");
        let (proc, our_proc) = bare_and_found::<ProcAddress>(driver, c"cuGetProcAddress_v2");

        // Controls: the library is preloaded as requested, and the limit is in force.
        assert_eq!(alloc as usize != our_alloc as usize, scenario.preloaded, "the preload is not what was asked for");
        let mut context = null_mut();
        require_ok(init(0), "cuInit");
        require_ok(retain(&raw mut context, 0), "cuDevicePrimaryCtxRetain");
        require_ok(set_current(context), "cuCtxSetCurrent");
        let (mut left, mut total) = (0, 0);
        require_ok(our_info(&raw mut left, &raw mut total), "cuMemGetInfo");
        if let Some(limit) = scenario.limit {
            assert_eq!(total as u64, limit, "the limit is not in force");
        }

        if scenario.only_pools {
            return measure_pools(driver, rounds);
        }

        // Launches of a kernel that takes no time, and launches that the driver refuses at once, where almost nothing
        // hides the difference.
        let (mut module, mut kernel, mut nanoseconds) = (null_mut(), null_mut(), 0u64);
        let (load, _) = bare_and_found::<LoadData>(driver, c"cuModuleLoadData");
        let (function, _) = bare_and_found::<GetFunction>(driver, c"cuModuleGetFunction");
        let image = concat!(include_str!("../../examples/kernels/spin.ptx"), "\0");
        require_ok(load(&raw mut module, image.as_ptr().cast()), "cuModuleLoadData");
        require_ok(function(&raw mut kernel, module, c"vgpu_spin_ns".as_ptr()), "cuModuleGetFunction");
        let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let one = |f: Launch| {
            require_ok(black_box(f)(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters, null_mut()), "launch")
        };
        let drain = || require_ok(synchronize(), "cuCtxSynchronize");
        if scenario.ceiling {
            // The library must ask which context is current, so the bare side asks too. All further calls of the
            // library, and its event markers, count as its own cost.
            let (current, _) = bare_and_found::<SetCurrent>(driver, c"cuCtxGetCurrent");
            let asking = |f: Launch| {
                let mut now: *mut c_void = null_mut();
                require_ok(black_box(current)((&raw mut now).cast()), "cuCtxGetCurrent");
                one(f);
            };
            rows.push(compare_bodies("launch, ceiling", 4 * rounds, 64, || asking(launch), || one(our_launch), drain));
            let (mut fast, mut slow) = (0, 0);
            let each = |f: Launch, sum: &mut u128| {
                let started = Instant::now();
                one(f);
                *sum += started.elapsed().as_nanos();
                drain();
            };
            rows.push(compare_bodies(
                "launch + wait, ceiling",
                rounds,
                20,
                || each(launch, &mut fast),
                || each(our_launch, &mut slow),
                || {},
            ));
            return rows;
        }
        rows.push(compare_bodies("launch", 4 * rounds, 64, || one(launch), || one(our_launch), drain));
        let none = |f: Launch| {
            black_box(black_box(f)(null_mut(), 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()));
        };
        rows.push(compare_bodies(
            "launch that the driver refuses",
            rounds,
            1000,
            || none(launch),
            || none(our_launch),
            || {},
        ));

        // Pairs of allocation and release, with an increasing number of live allocations.
        let mut live = Vec::new();
        for target in [0, 10_000, 100_000] {
            while live.len() < target {
                let mut address = 0;
                require_ok(our_alloc(&raw mut address, 512), "cuMemAlloc");
                live.push(address);
            }
            let both = |alloc: Alloc, free: Free| {
                let mut address = 0;
                require_ok(black_box(alloc)(&raw mut address, 4096), "cuMemAlloc");
                require_ok(black_box(free)(address), "cuMemFree");
            };
            let name = format!("alloc + free, {target} live");
            rows.push(compare_bodies(&name, rounds, 200, || both(alloc, free), || both(our_alloc, our_free), || {}));
            let pairs = FunctionPairs {
                bare: (alloc, free),
                ours: (our_alloc, our_free),
                set_current,
                context: context as usize,
            };
            for threads in [1, 2, 4] {
                let name = format!("the same, {threads} thread{}", if threads == 1 { "" } else { "s" });
                rows.push(pairs.thread_row(&format!("{name}, {target} live"), threads, rounds / 4));
            }
        }
        for address in live {
            require_ok(our_free(address), "cuMemFree");
        }

        rows.extend(measure_pools(driver, rounds));

        let ask = |f: MemInfo| {
            let (mut left, mut total) = (0, 0);
            require_ok(black_box(f)(&raw mut left, &raw mut total), "cuMemGetInfo");
            black_box((left, total));
        };
        rows.push(compare_bodies("cuMemGetInfo", rounds, 500, || ask(info), || ask(our_info), || {}));

        // A starting program looks up about five hundred names this way; most of them have no hook.
        for (kind, name) in calls::ASKED_NAMES {
            let look = |f: ProcAddress| {
                let (mut address, mut status) = (null_mut(), 0);
                require_ok(
                    black_box(f)(name.as_ptr(), &raw mut address, 12_000, 0, &raw mut status),
                    "cuGetProcAddress",
                );
                black_box(address);
            };
            let title = format!("cuGetProcAddress, {kind}");
            rows.push(compare_bodies(&title, rounds, 500, || look(proc), || look(our_proc), || {}));
        }

        let bare_dlsym = typed_function::<Dlsym>(calls::bare_function(c"libc.so.6", c"dlsym"));
        let our_dlsym = typed_function::<Dlsym>(calls::linked_dlsym());
        for (handle, name) in calls::foreign_names(driver) {
            let look = |f: Dlsym| {
                black_box(black_box(f)(handle, name.as_ptr()));
            };
            let title = format!("dlsym of {}", name.to_str().expect("plain letters"));
            rows.push(compare_bodies(&title, 2 * rounds, 500, || look(bare_dlsym), || look(our_dlsym), || {}));
        }
    }
    rows
}

/// Measures the stream-ordered calls: with an increasing number of live allocations in the pool, and with 5,000 free
/// pieces. The context is current.
fn measure_pools(driver: *mut c_void, rounds: u32) -> Vec<DifferenceRow> {
    let mut rows = Vec::new();
    let (alloc, our_alloc) = bare_and_found::<AllocAsync>(driver, c"cuMemAllocAsync");
    let (free, our_free) = bare_and_found::<FreeAsync>(driver, c"cuMemFreeAsync");
    let (synchronize, _) = bare_and_found::<Synchronize>(driver, c"cuCtxSynchronize");
    // SAFETY: the driver's functions have their own signatures and get valid pointers to locals; device memory is never
    // touched, and every pointer is freed once.
    unsafe {
        let drain = || require_ok(synchronize(), "cuCtxSynchronize");
        let (mut live, mut rest) = (Vec::new(), Vec::new());
        let both = |alloc: AllocAsync, free: FreeAsync| {
            let mut address = 0;
            require_ok(black_box(alloc)(&raw mut address, 4096, null_mut()), "cuMemAllocAsync");
            require_ok(black_box(free)(address, null_mut()), "cuMemFreeAsync");
        };
        let row_with = |target: usize, live: &mut Vec<u64>| {
            while live.len() < target {
                let mut address = 0;
                require_ok(our_alloc(&raw mut address, 4096, null_mut()), "cuMemAllocAsync");
                live.push(address);
            }
            let name = format!("pool pair, {target} live");
            compare_bodies(&name, rounds, 50, || both(alloc, free), || both(our_alloc, our_free), drain)
        };
        for target in [0, 1_000, 10_000] {
            rows.push(row_with(target, &mut live));
        }
        for (at, address) in live.drain(..).enumerate() {
            // Frees every second piece first, so that the free pieces are not adjacent.
            if at % 2 == 0 {
                require_ok(our_free(address, null_mut()), "cuMemFreeAsync");
            } else {
                rest.push(address);
            }
        }
        drain();
        let name = format!("pool pair among {} free pieces", rest.len());
        rows.push(compare_bodies(&name, rounds / 4, 50, || both(alloc, free), || both(our_alloc, our_free), || {}));
        for address in rest {
            require_ok(our_free(address, null_mut()), "cuMemFreeAsync");
        }
        // Last, and without a wait after the frees: the simulated driver needs 20 s for that wait.
        rows.push(row_with(100_000, &mut live));
        for address in live {
            require_ok(our_free(address, null_mut()), "cuMemFreeAsync");
        }
    }
    rows
}

/// Time in nanoseconds of a process's first call, `cuInit`, with everything that it sets up.
pub fn first_call() -> u128 {
    let driver = calls::driver_handle();
    // SAFETY: the driver's function has its own signature.
    let init = unsafe { typed_function::<Init>(calls::found_function(driver, c"cuInit")) };
    let started = Instant::now();
    // SAFETY: the driver's function has its own signature.
    require_ok(unsafe { init(0) }, "cuInit");
    started.elapsed().as_nanos()
}

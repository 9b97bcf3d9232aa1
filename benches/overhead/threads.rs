//! Pairs of allocation and release by several threads at the same time: the processor time that the library adds to
//! each.
//!
//! Wall time would measure how many threads share a core; a thread's own processor time does not. Both variants include
//! the driver's lock, and the report shows their difference.

use crate::calls::{Alloc, Free, SetCurrent};
use crate::child::{DifferenceRow, require_ok};
use crate::stats::median_interval;
use core::ffi::c_void;
use std::hint::black_box;
use std::sync::{Barrier, Mutex};

const CALLS: u32 = 500;

/// Processor time of this thread in nanoseconds.
fn processor_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The driver's functions and their hooks.
#[derive(Clone, Copy)]
pub struct FunctionPairs {
    /// The driver's own functions, without the library.
    pub bare: (Alloc, Free),
    /// The functions that a program finds, with the library's hooks.
    pub ours: (Alloc, Free),
    /// Function that makes a context current in a new thread.
    pub set_current: SetCurrent,
    /// The context, as a number so that threads can share it.
    pub context: usize,
}

impl FunctionPairs {
    /// Runs `threads` threads, all with the same variant at the same moment, `rounds` times for each variant.
    pub fn thread_row(self, name: &str, threads: usize, rounds: u32) -> DifferenceRow {
        let (start, all) = (Barrier::new(threads), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    // SAFETY: the driver's function has its own signature; the context lives as long as the process.
                    require_ok(unsafe { (self.set_current)(self.context as *mut c_void) }, "cuCtxSetCurrent");
                    let mut own = Vec::new();
                    for round in 0..rounds + rounds / 10 {
                        let order = if round % 2 == 0 { [self.bare, self.ours] } else { [self.ours, self.bare] };
                        let took = order.map(|pair| {
                            start.wait();
                            block_ns(pair)
                        });
                        let (bare, ours) = if round % 2 == 0 { (took[0], took[1]) } else { (took[1], took[0]) };
                        if round >= rounds / 10 {
                            own.push((bare, ours - bare));
                        }
                    }
                    all.lock().expect("no thread panics with it").extend(own);
                });
            }
        });
        let all = all.into_inner().expect("no thread panics with it");
        let (mut bares, mut differences): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        let (bare, added) = (median_interval(&mut bares), median_interval(&mut differences));
        DifferenceRow { name: name.to_owned(), bare: bare.value, added: added.value, low: added.low, high: added.high }
    }
}

/// Nanoseconds per pair in one block.
fn block_ns((alloc, free): (Alloc, Free)) -> f64 {
    let begin = processor_ns();
    for _ in 0..CALLS {
        let mut address = 0;
        // SAFETY: the driver's functions have their own signatures and get a pointer to a local; the address is freed
        // once.
        unsafe {
            require_ok(black_box(alloc)(&raw mut address, 4096), "cuMemAlloc");
            require_ok(black_box(free)(address), "cuMemFree");
        }
    }
    (processor_ns() - begin) as f64 / f64::from(CALLS)
}

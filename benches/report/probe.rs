//! The queried process: it takes memory until none is left, fails, recovers and works, and knows nothing of vgpu.
//!
//!     vgpu-bench-report --probe
//!
//! It prints `ready`, and then answers each line with one line of JSON. It ends when its input closes. A call with an
//! unexpected code ends it with the call's name and code. Not here: the meaning of the answers (`memory`).

use crate::calls::{self, Alloc, Free, GetFunction, Init, Launch, LoadData, MemInfo, Retain, SetCurrent, Synchronize};
use core::ffi::{CStr, c_int, c_void};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Argument that makes this program a probe.
pub const PROBE_WORD: &str = "--probe";
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const CUDA_OUT_OF_MEMORY: c_int = 2;
const MIB_BYTES: usize = 1 << 20;
/// Sizes with which the probe fills memory, one after the other.
const PIECE_SIZES: [usize; 5] = [256 * MIB_BYTES, 64 * MIB_BYTES, 16 * MIB_BYTES, 4 * MIB_BYTES, MIB_BYTES];
/// Number of calls that are timed together.
const BLOCK: u32 = 50;

fn require_ok(code: c_int, what: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {code}")) }
}

/// A context and its allocations.
struct MemoryProbe {
    alloc: Alloc,
    free: Free,
    info: MemInfo,
    launch: Launch,
    synchronize: Synchronize,
    kernel: *mut c_void,
    taken: Vec<(u64, usize)>,
}

/// Answers until the input ends.
///
/// # Errors
/// A call of the driver returns an unexpected code, or a line is unknown.
pub fn run() -> Result<(), String> {
    // SAFETY: the call has no preconditions. It ends this process if the process that queries it is killed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut probe = MemoryProbe::open()?;
    let mut out = std::io::stdout().lock();
    let mut say = |line: &str| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|why| why.to_string());
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|why| why.to_string())?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || rest.parse::<usize>().map_err(|why| format!("{line}: {why}"));
        let answer = match word {
            "look" => {
                let (free, total) = probe.told_memory()?;
                json!({ "free": free, "total": total })
            }
            "take" => {
                probe.must_take(number()?)?;
                json!({})
            }
            "fill" => json!({ "got": probe.fill_memory()? }),
            "refuse" => json!({ "ns": probe.time_refusals(number()?)? }),
            "recover" => json!({ "ns": probe.time_recovery(number()?)? }),
            "exhaust" => probe.exhaust_memory()?,
            "work" => probe.work_for(Duration::from_millis(number()? as u64)),
            _ => return Err(format!("{line}: no such question")),
        };
        say(&answer.to_string())?;
    }
    Ok(())
}

// SAFETY of the calls below: the driver's functions have their own signatures; outputs are locals, device memory is
// never touched, and each address is freed once.
#[allow(clippy::undocumented_unsafe_blocks)]
impl MemoryProbe {
    fn open() -> Result<MemoryProbe, String> {
        let driver = calls::driver_handle();
        fn found_function<F: Copy>(driver: *mut c_void, name: &CStr) -> F {
            unsafe { calls::typed_function(calls::found_function(driver, name)) }
        }
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        let image = concat!(include_str!("../../examples/kernels/spin.ptx"), "\0");
        unsafe {
            require_ok(found_function::<Init>(driver, c"cuInit")(0), "cuInit")?;
            require_ok(
                found_function::<Retain>(driver, c"cuDevicePrimaryCtxRetain")(&raw mut context, 0),
                "cuDevicePrimaryCtxRetain",
            )?;
            require_ok(found_function::<SetCurrent>(driver, c"cuCtxSetCurrent")(context), "cuCtxSetCurrent")?;
            let load = found_function::<LoadData>(driver, c"cuModuleLoadData");
            require_ok(load(&raw mut module, image.as_ptr().cast()), "cuModuleLoadData")?;
            let function = found_function::<GetFunction>(driver, c"cuModuleGetFunction");
            require_ok(function(&raw mut kernel, module, c"vgpu_spin_ns".as_ptr()), "cuModuleGetFunction")?;
        }
        Ok(MemoryProbe {
            alloc: found_function(driver, c"cuMemAlloc_v2"),
            free: found_function(driver, c"cuMemFree_v2"),
            info: found_function(driver, c"cuMemGetInfo_v2"),
            launch: found_function(driver, c"cuLaunchKernel"),
            synchronize: found_function(driver, c"cuCtxSynchronize"),
            kernel,
            taken: Vec::new(),
        })
    }

    /// Free and total memory as shown.
    fn told_memory(&self) -> Result<(usize, usize), String> {
        let (mut free, mut total) = (0, 0);
        require_ok(unsafe { (self.info)(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok((free, total))
    }

    /// Allocates and returns the code; a granted allocation is kept.
    fn take_bytes(&mut self, bytes: usize) -> c_int {
        let mut address = 0;
        let code = unsafe { (self.alloc)(&raw mut address, bytes) };
        if code == 0 {
            self.taken.push((address, bytes));
        }
        code
    }

    fn must_take(&mut self, bytes: usize) -> Result<(), String> {
        require_ok(self.take_bytes(bytes), "cuMemAlloc")
    }

    /// Frees one allocation; false if there is none.
    fn give_back(&mut self) -> Result<bool, String> {
        let Some((address, _)) = self.taken.pop() else { return Ok(false) };
        require_ok(unsafe { (self.free)(address) }, "cuMemFree")?;
        Ok(true)
    }

    /// Takes all memory that the probe can get. Returns the bytes held.
    fn fill_memory(&mut self) -> Result<usize, String> {
        for piece in PIECE_SIZES {
            loop {
                match self.take_bytes(piece) {
                    0 => {}
                    CUDA_OUT_OF_MEMORY => break,
                    code => return Err(format!("cuMemAlloc of {piece} bytes beyond the limit: {code}, not 2")),
                }
            }
        }
        Ok(self.taken.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Times refused allocations in blocks, ns each.
    fn time_refusals(&mut self, blocks: usize) -> Result<Vec<f64>, String> {
        self.time_blocks(blocks, |probe| match probe.take_bytes(MIB_BYTES) {
            CUDA_OUT_OF_MEMORY => Ok(()),
            code => Err(format!("cuMemAlloc with everything taken: {code}, not 2")),
        })
    }

    /// Times the release of 1 MiB and its new allocation in blocks, ns each.
    fn time_recovery(&mut self, blocks: usize) -> Result<Vec<f64>, String> {
        // Splits the last piece into pieces of 1 MiB if it was larger.
        self.give_back()?;
        while self.take_bytes(MIB_BYTES) == 0 {}
        self.time_blocks(blocks, |probe| {
            probe.give_back()?;
            probe.must_take(MIB_BYTES)
        })
    }

    fn time_blocks(
        &mut self,
        blocks: usize,
        one: impl Fn(&mut MemoryProbe) -> Result<(), String>,
    ) -> Result<Vec<f64>, String> {
        (0..blocks)
            .map(|_| {
                let begun = Instant::now();
                (0..BLOCK).try_for_each(|_| one(self))?;
                Ok(begun.elapsed().as_nanos() as f64 / f64::from(BLOCK))
            })
            .collect()
    }

    /// Launches one kernel and waits for it.
    fn run_kernel(&self, mut ns: u64) -> c_int {
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let launched = unsafe { (self.launch)(self.kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters, null_mut()) };
        if launched == 0 { unsafe { (self.synchronize)() } } else { launched }
    }

    /// Checks the promises that hold when no memory is left.
    fn exhaust_memory(&mut self) -> Result<Value, String> {
        let (at_first, _) = self.told_memory()?;
        self.fill_memory()?;
        let refused = self.take_bytes(MIB_BYTES) == CUDA_OUT_OF_MEMORY;
        let refused_again = self.take_bytes(MIB_BYTES) == CUDA_OUT_OF_MEMORY;
        let runs = self.run_kernel(1000) == 0;
        let (left, _) = self.told_memory()?;
        let told_truly = left < 2 * MIB_BYTES;
        let last = self.taken.last().map_or(0, |piece| piece.1);
        let gives_back = self.give_back() == Ok(true);
        let has_again = self.take_bytes(last) == 0;
        while self.give_back()? {}
        let as_before = self.told_memory()?.0 == at_first;
        Ok(json!({
            "refused": refused, "refused again": refused_again, "a kernel runs": runs, "free is told truly": told_truly,
            "gives back": gives_back, "has it again": has_again, "free as before": as_before,
        }))
    }

    /// Launches kernels and allocates for `time`. Returns the number of calls and of failures.
    fn work_for(&mut self, time: Duration) -> Value {
        let (begun, mut calls, mut failed) = (Instant::now(), 0u64, 0u64);
        while begun.elapsed() < time {
            let taken = self.take_bytes(MIB_BYTES);
            let codes =
                [taken, self.run_kernel(100_000), if taken == 0 { self.give_back().map_or(1, |_| 0) } else { 0 }];
            calls += codes.len() as u64;
            failed += codes.iter().filter(|code| **code != 0).count() as u64;
        }
        json!({ "calls": calls, "failed": failed })
    }
}

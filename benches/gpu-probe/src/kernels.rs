//! The device code as text, and the kernels of the loaded module.
//!
//! The text is our own and deliberately uses an old PTX version, so that every driver compiles it for its device.

use crate::driver::{CallFailure, DriverHandle};
use crate::gpu::ProbedGpu;

/// PTX text that the driver compiles, with the terminator that the driver requires.
pub const KERNEL_PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

/// The kernels of [`KERNEL_PTX`].
pub struct ProbeKernels {
    /// Kernel without parameters that does nothing.
    pub null: DriverHandle,
    /// Kernel `(ns)`: uses this much device time.
    pub spin: DriverHandle,
    /// Kernel `(rounds, out)`: a fixed amount of arithmetic.
    pub work: DriverHandle,
    /// Kernel `(out, capacity, ns, threshold)`: records the times in which the device was taken away.
    pub slices: DriverHandle,
}

impl ProbeKernels {
    /// Compiles and loads the kernels into the current context.
    pub fn load(gpu: &ProbedGpu<'_>) -> Result<Self, CallFailure> {
        let module = gpu.load_module(KERNEL_PTX.as_bytes())?;
        Ok(Self {
            null: gpu.find_function(module, c"vgpu_null")?,
            spin: gpu.find_function(module, c"vgpu_spin_ns")?,
            work: gpu.find_function(module, c"vgpu_work")?,
            slices: gpu.find_function(module, c"vgpu_slices")?,
        })
    }
}

/// Words before the first record of `vgpu_slices`.
pub const HEAD_WORDS: usize = 8;
/// Words of one record of `vgpu_slices`.
pub const RECORD_WORDS: usize = 4;

/// The parsed output of the kernel `vgpu_slices`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRecording {
    /// Number of gaps seen; more than `gaps.len()` if the buffer was too small.
    pub seen: u64,
    /// Number of readings of the device's timer.
    pub readings: u64,
    /// First timer reading, in ns of the device's timer.
    pub first: u64,
    /// Last timer reading, in ns of the device's timer.
    pub last: u64,
    /// Smallest non-zero difference of two readings: the timer's step.
    pub smallest_step: Option<u64>,
    /// Largest difference below the threshold.
    pub largest_step: u64,
    /// First and last reading of the multiprocessor's cycle counter.
    pub cycles: (u64, u64),
    /// Times without the device: (before, after) in ns of the device's timer.
    pub gaps: Vec<(u64, u64)>,
}

impl SliceRecording {
    /// Parses the kernel's output; `None` if it wrote nothing because the device did not execute the kernel.
    pub fn read(words: &[u64]) -> Option<Self> {
        let head = words.get(..HEAD_WORDS)?;
        if head[1] == 0 || head[2] == 0 {
            return None;
        }
        let kept = usize::try_from(head[0]).unwrap_or(usize::MAX);
        let gaps = words[HEAD_WORDS..]
            .chunks_exact(RECORD_WORDS)
            .take(kept)
            .map(|record| (record[0], record[1]))
            // A timer that ran backwards for a moment is not a gap.
            .filter(|(before, after)| after > before)
            .collect();
        Some(Self {
            seen: head[0],
            readings: head[1],
            first: head[2],
            last: head[3],
            smallest_step: (head[4] != u64::MAX).then_some(head[4]),
            largest_step: head[5],
            cycles: (head[6], head[7]),
            gaps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_every_kernel_that_is_looked_up() {
        for name in ["vgpu_null()", "vgpu_spin_ns(", "vgpu_work(", "vgpu_slices("] {
            assert!(KERNEL_PTX.contains(&format!(".visible .entry {name}")), "{name}");
        }
        assert!(KERNEL_PTX.ends_with('\0'));
        assert_eq!(KERNEL_PTX.matches('\0').count(), 1);
    }

    #[test]
    fn every_loop_of_the_text_has_a_bound_of_its_own() {
        // Each loop has one back edge, and a counter that only decreases.
        for (label, counter) in [("SPIN_LOOP", "%left"), ("WORK_LOOP", "%rounds"), ("SLICES_LOOP", "%left")] {
            let body = KERNEL_PTX.split(&format!("{label}:")).nth(1).unwrap();
            let body = &body[..body.find(&format!("bra        {label}")).unwrap()];
            assert!(body.contains(&format!("sub.u64         {counter}, {counter}, 1")), "{label}");
        }
    }

    #[test]
    fn memory_that_no_kernel_wrote_is_no_recording() {
        assert_eq!(SliceRecording::read(&[0; 40]), None);
        assert_eq!(SliceRecording::read(&[1, 2, 3]), None);
    }

    #[test]
    fn a_recording_is_read_with_its_gaps() {
        let mut words = vec![3, 1000, 500, 9500, 32, 1000, 1, 2];
        words.extend([1000, 3000, 0, 0, 5000, 7000, 0, 0]);
        let recording = SliceRecording::read(&words).unwrap();
        assert_eq!(recording.gaps, [(1000, 3000), (5000, 7000)]);
        assert_eq!(recording.seen, 3, "one gap more was seen than there was room for");
        assert_eq!(recording.smallest_step, Some(32));
    }

    #[test]
    fn a_timer_that_ran_backwards_makes_no_gap() {
        let mut words = vec![1, 10, 500, 900, u64::MAX, 0, 1, 2];
        words.extend([700, 600, 0, 0]);
        let recording = SliceRecording::read(&words).unwrap();
        assert!(recording.gaps.is_empty());
        assert_eq!(recording.smallest_step, None);
    }
}

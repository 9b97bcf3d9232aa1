//! Fills: one value over rows, with the addresses resolved.

use crate::devices::DriverDevice;
use crate::driver::SimulatedDriver;
use shim_sys::cuda::CUresult;

/// A fill with its addresses resolved: one value over rows.
pub(crate) struct PreparedFill {
    driver: &'static SimulatedDriver,
    pieces: Vec<(*mut u8, u64)>,
    pattern: Vec<u8>,
    bytes: u64,
}

// SAFETY: addresses of mapped device content; the program orders its accesses by streams.
unsafe impl Send for PreparedFill {}

impl PreparedFill {
    /// Writes the pattern to all rows.
    pub(crate) fn run(&self) {
        self.driver.memory.fill_pieces(&self.pieces, &self.pattern);
    }

    /// Device time of the fill on `device`, ns.
    pub(crate) fn fill_time(&self, device: &DriverDevice) -> u64 {
        device.profile.copy_time(self.bytes, device.profile.device_bytes_per_us)
    }
}

/// Checks a fill and resolves its addresses; `None` when it is empty.
pub(crate) fn prepare_fill(
    driver: &'static SimulatedDriver,
    dst: u64,
    pitch: usize,
    value: &[u8],
    width: usize,
    height: usize,
) -> Result<Option<PreparedFill>, CUresult> {
    let row = width.checked_mul(value.len()).ok_or(CUresult::INVALID_VALUE)? as u64;
    if !dst.is_multiple_of(value.len() as u64) || (height > 1 && (pitch as u64) < row) {
        return Err(CUresult::INVALID_VALUE);
    }
    if row == 0 || height == 0 {
        return Ok(None);
    }
    let mut pieces = Vec::with_capacity(height);
    for y in 0..height {
        pieces.extend(driver.content_or_managed(dst + (y * pitch) as u64, row, true)?);
    }
    Ok(Some(PreparedFill { driver, pieces, pattern: value.to_vec(), bytes: row * height as u64 }))
}

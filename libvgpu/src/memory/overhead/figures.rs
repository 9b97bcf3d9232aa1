//! Figures: the sizes of contexts, measured by this process or by another member that left them in the ledger.
//!
//! A figure is reserved *before* the driver is called, so that a context that does not fit is not created at all. The
//! ledger keeps the smallest measured figure. A larger one (another flag, another loading mode) would refuse contexts
//! that fit; a context's own measurement finds any excess over the figure.

use crate::device::table::Device;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures by device number: of a process's first context, and of further ones. Each is one more than the bytes; 0:
/// none yet. So the table is all zeros at first and takes no room in the library's file.
static CONTEXT_FIGURES: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];

/// The overhead of a context, known before the driver is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextFigure {
    /// Bytes to reserve for the context.
    pub bytes: u64,
    /// Whether this process measured it; then it need not measure again.
    pub own: bool,
}

/// The figure of a first (`further` is false) or further context.
pub fn known_figure(device: &Device, further: bool) -> Option<ContextFigure> {
    match CONTEXT_FIGURES[usize::from(device.index)][usize::from(further)].load(Relaxed) {
        0 => {
            let joined = device.ledger.membership().ok()?;
            let (first, more) = joined.joined_member().member_ledger().header().context_figures();
            Some(if further { more } else { first })
                .filter(|&bytes| bytes != 0 && bytes <= super::reading::MAX_PLAUSIBLE_BYTES)
                .map(|bytes| ContextFigure { bytes, own: false })
        }
        one_more => Some(ContextFigure { bytes: one_more - 1, own: true }),
    }
}

/// Stores a size that was measured without disturbance, for this process and for later members.
pub fn note_figure(device: &Device, further: bool, bytes: u64) {
    CONTEXT_FIGURES[usize::from(device.index)][usize::from(further)].store(bytes.saturating_add(1), Relaxed);
    if let Ok(joined) = device.ledger.membership() {
        let header = joined.joined_member().member_ledger().header();
        let (first, more) = header.context_figures();
        let there = if further { more } else { first };
        if there == 0 || bytes < there {
            if further { header.note_context_more(bytes) } else { header.note_context_first(bytes) }
        }
    }
}

/// Minimum size of the first code of a process, as measured exactly by any member of the tenant. At most one code
/// block of the driver, because code differs.
pub fn first_code(device: &Device) -> u64 {
    let noted =
        device.ledger.membership().ok().and_then(|joined| joined.joined_member().member_ledger().header().first_code());
    noted.unwrap_or(0).min(super::code::CODE_SLAB_BYTES)
}

/// Stores a measured size of the first code of a process, if it is the smallest.
pub fn note_first_code(device: &Device, bytes: u64) {
    if let Ok(joined) = device.ledger.membership() {
        let header = joined.joined_member().member_ledger().header();
        if header.first_code().is_none_or(|there| bytes < there) {
            header.note_first_code(bytes);
        }
    }
}

//! What contexts take, once somebody has measured it: this process, or another member, which left it in the ledger.
//!
//! A figure is reserved *before* the driver is asked, so that a context that does not fit is not made at all. The ledger
//! keeps the smallest that anybody measured: a larger one (another flag, another loading mode) would refuse what fits,
//! and what a context takes beyond its figure is found by its own measurement.

use crate::device::Device;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures by device number, of a process's first context and of further ones; all ones: none yet.
static FIGURES: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(u64::MAX) }; 2] }; 64];

/// What is known before the driver is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figure {
    /// Bytes to reserve.
    pub bytes: u64,
    /// Whether this process measured it: then it need not do so again.
    pub own: bool,
}

/// The figure of a first (`further` false) or further context.
pub fn known(device: &Device, further: bool) -> Option<Figure> {
    match FIGURES[usize::from(device.index)][usize::from(further)].load(Relaxed) {
        u64::MAX => {
            let joined = device.ledger.joined().ok()?;
            let (first, more) = joined.member().ledger().header().context_figures();
            Some(if further { more } else { first })
                .filter(|&bytes| bytes != 0 && bytes <= super::reading::IMPLAUSIBLE)
                .map(|bytes| Figure { bytes, own: false })
        }
        bytes => Some(Figure { bytes, own: true }),
    }
}

/// Notes what this process measured without anybody's disturbance, for itself and for members that come later.
pub fn note(device: &Device, further: bool, bytes: u64) {
    FIGURES[usize::from(device.index)][usize::from(further)].store(bytes, Relaxed);
    if let Ok(joined) = device.ledger.joined() {
        let header = joined.member().ledger().header();
        let (first, more) = header.context_figures();
        let there = if further { more } else { first };
        if there == 0 || bytes < there {
            if further { header.note_context_more(bytes) } else { header.note_context_first(bytes) }
        }
    }
}

/// What the first code of a process takes at least, by whoever in the tenant has seen it exactly; a place of the driver's at
/// most, since code differs.
pub fn first_code(device: &Device) -> u64 {
    let noted = device.ledger.joined().ok().and_then(|joined| joined.member().ledger().header().first_code());
    noted.unwrap_or(0).min(super::code::PLACE)
}

/// Notes what the first code of a process was seen to take, if it is the least.
pub fn note_first_code(device: &Device, bytes: u64) {
    if let Ok(joined) = device.ledger.joined() {
        let header = joined.member().ledger().header();
        if header.first_code().is_none_or(|there| bytes < there) {
            header.note_first_code(bytes);
        }
    }
}

//! Whether copies and fills pass the launch gate: only with `VGPU_CHARGE_COPIES=1`.

use super::environment::is_on;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The variable that makes copies pass the gate.
const CHARGE_COPIES_VARIABLE: &str = "VGPU_CHARGE_COPIES";

/// 1: copies pass the gate.
pub static COPIES_CHARGED: AtomicU8 = AtomicU8::new(0);

/// Makes copies pass the gate from now on, if the environment asks for it.
pub fn charge_copies() {
    COPIES_CHARGED.store(u8::from(copies_asked_for()), Relaxed);
}

/// Whether the environment asks for charged copies.
#[cold]
pub fn copies_asked_for() -> bool {
    is_on(CHARGE_COPIES_VARIABLE)
}

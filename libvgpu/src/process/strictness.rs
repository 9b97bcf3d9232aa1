//! Whether bypasses of the hooks are refused, by `VGPU_STRICT=1` or by the daemon.

use super::environment::is_on;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the daemon wants bypasses refused.
static DAEMON_STRICT: AtomicBool = AtomicBool::new(false);

/// Refuses bypasses from now on, as the daemon asks.
pub fn set_daemon_strict() {
    DAEMON_STRICT.store(true, Relaxed);
}

/// Whether lookups of unknown variants, and other namespaces, are refused.
pub fn is_strict() -> bool {
    DAEMON_STRICT.load(Relaxed) || is_on("VGPU_STRICT")
}

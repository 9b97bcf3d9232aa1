//! The number of devices that this process has registered.

use core::sync::atomic::{AtomicUsize, Ordering::*};

static DEVICE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of registered devices. A registered device stays for the life of the process.
pub fn registered_devices() -> usize {
    DEVICE_COUNT.load(Acquire)
}

/// Sets the number, after the device with the next index was stored.
pub fn set_registered(count: usize) {
    DEVICE_COUNT.store(count, Release);
}

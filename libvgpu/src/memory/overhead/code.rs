//! Overhead besides contexts' own: code (modules, libraries and their globals) and the limits of a context, by
//! context.
//!
//! Code is charged to the context that loaded it, not to the module. The driver packs small modules together, so the
//! module whose load took memory is not the one whose unload returns it. The memory returned by an unload is
//! therefore measured, as is the memory taken by a load. When a context ends, another context inherits the memory
//! that is still shared.

use super::release;
use crate::device::table::{self, Device};
use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use shim_sys::cuda::CUcontext;

/// The cause of overhead: device memory that the driver takes beyond the program's allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeSource {
    /// Code and global variables of loaded modules.
    Code,
    /// Code of contexts that have ended, in blocks that other contexts share.
    Inherited,
    /// Memory that the driver takes for a limit of a context (stack, heap and others), by the limit's number.
    Limit(u32),
}

/// An amount of overhead (driver memory beyond the program's allocations) and the context that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CodeHolder {
    key: CodeSource,
    context: usize,
    device: u8,
    bytes: u64,
}

/// All overhead that is charged, except that of the contexts themselves.
static CODE_HOLDERS: Lock<Vec<CodeHolder>> = Lock::new(Vec::new());

/// A loaded object that can be unloaded, by its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadedHandle {
    /// A module, which also ends with its context.
    Module(usize),
    /// A library (`CUlibrary`), by its handle.
    Library(usize),
    /// A part of an object that is already loaded.
    Part,
}

/// A loaded object and its measured size, which is released where its unload cannot be measured.
#[derive(Clone, Copy, Debug)]
struct LoadRecord {
    made: LoadedHandle,
    context: usize,
    device: u8,
    /// `None`: unknown, because another measured call overlapped and the first one to finish took the growth of both.
    bytes: Option<u64>,
}

/// All loaded modules and libraries.
static LOAD_RECORDS: Lock<Vec<LoadRecord>> = Lock::new(Vec::new());

/// Records a loaded object. `alone`: no other measured call overlapped, so the bytes are its own.
pub fn note_loaded(made: LoadedHandle, context: CUcontext, device: &Device, bytes: u64, alone: bool) {
    match made {
        LoadedHandle::Part => _ = UNATTRIBUTED_CODE[device_slot(device)].fetch_add(bytes, Relaxed),
        _ => {
            let bytes = alone.then_some(bytes);
            LOAD_RECORDS.lock().push(LoadRecord { made, context: context.0 as usize, device: device.index, bytes });
        }
    }
}

/// Records an unload. Returns the device and the measured size, 0 if unknown.
pub fn note_unloaded(made: LoadedHandle) -> Option<(u8, u64)> {
    let mut all = LOAD_RECORDS.lock();
    let at = all.iter().position(|one| one.made == made)?;
    let one = all.swap_remove(at);
    Some((one.device, one.bytes.unwrap_or(0)))
}

/// Size of the driver's blocks for small code. Code that took no memory when it was loaded is in a block that other
/// code brought.
pub const CODE_SLAB_BYTES: u64 = 2 << 20;

/// Releases code memory that unloads left charged because other threads' requests disturbed their measurement. Loaded
/// code can hold at most its measured size, or one block shared with others. Returns the bytes released: none while
/// the size of any loaded object is unknown.
pub fn beyond_what_is_loaded(device: &Device) -> u64 {
    let parts = &UNATTRIBUTED_CODE[device_slot(device)];
    let most = max_held(&LOAD_RECORDS.lock(), device.index, parts.load(Relaxed)).unwrap_or_else(|| {
        parts.store(0, Relaxed);
        0
    });
    give_back(device, held_bytes(device).saturating_sub(most))
}

/// Upper bound of the memory held by loaded objects, plus `parts`, which have no record of their own. `None`: nothing
/// is loaded.
fn max_held(loaded: &[LoadRecord], device: u8, parts: u64) -> Option<u64> {
    let mut here =
        loaded.iter().filter(|one| one.device == device || matches!(one.made, LoadedHandle::Library(_))).peekable();
    here.peek()?;
    Some(
        here.fold(parts, |sum, one| sum.saturating_add(one.bytes.map_or(u64::MAX, |bytes| bytes.max(CODE_SLAB_BYTES)))),
    )
}

/// Bytes of code on each device from parts of loaded objects, or found only after the call that caused them.
static UNATTRIBUTED_CODE: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn device_slot(device: &Device) -> usize {
    usize::from(device.index) % UNATTRIBUTED_CODE.len()
}

/// Bytes of code held on a device.
fn held_bytes(device: &Device) -> u64 {
    let code = |one: &&CodeHolder| !matches!(one.key, CodeSource::Limit(_)) && one.device == device.index;
    CODE_HOLDERS.lock().iter().filter(code).map(|one| one.bytes).sum()
}

/// Whether nothing is loaded, and no code is held on the device.
pub fn is_first(device: &Device) -> bool {
    LOAD_RECORDS.lock().is_empty() && held_bytes(device) == 0
}

/// Records `bytes` that are charged already.
pub fn add(key: CodeSource, context: CUcontext, device: &Device, bytes: u64) {
    add_holder(&mut CODE_HOLDERS.lock(), CodeHolder { key, context: context.0 as usize, device: device.index, bytes });
}

fn add_holder(all: &mut Vec<CodeHolder>, new: CodeHolder) {
    let same = |one: &&mut CodeHolder| (one.key, one.context, one.device) == (new.key, new.context, new.device);
    match all.iter_mut().find(same) {
        Some(there) => there.bytes += new.bytes,
        None if new.bytes > 0 => all.push(new),
        None => {}
    }
}

/// Records that code was freed, of whichever context: releases up to `bytes` of the code held on the device. Returns
/// how many.
pub fn give_back(device: &Device, bytes: u64) -> u64 {
    let left = {
        let mut all = CODE_HOLDERS.lock();
        let left = take_bytes(&mut all, CodeSource::Inherited, None, device.index, bytes);
        take_bytes(&mut all, CodeSource::Code, None, device.index, left)
    };
    release(device.index, bytes - left)
}

/// Releases up to `bytes` held for `key` on a device, in one context or (`None`) in any. Returns how many.
pub fn give_back_of(key: CodeSource, context: Option<CUcontext>, device: &Device, bytes: u64) -> u64 {
    let left =
        take_bytes(&mut CODE_HOLDERS.lock(), key, context.map(|context| context.0 as usize), device.index, bytes);
    release(device.index, bytes - left)
}

/// Removes up to `bytes` from the records; returns the remainder.
fn take_bytes(all: &mut Vec<CodeHolder>, key: CodeSource, context: Option<usize>, device: u8, bytes: u64) -> u64 {
    let mut left = bytes;
    all.retain_mut(|one| {
        if one.key == key && one.device == device && context.is_none_or(|context| one.context == context) {
            let part = one.bytes.min(left);
            one.bytes -= part;
            left -= part;
        }
        one.bytes > 0
    });
    left
}

/// Devices on which code is held.
pub fn devices_with_code() -> Vec<&'static Device> {
    let mut numbers: Vec<u8> = Vec::new();
    for one in CODE_HOLDERS.lock().iter().filter(|one| !matches!(one.key, CodeSource::Limit(_))) {
        if !numbers.contains(&one.device) {
            numbers.push(one.device);
        }
    }
    numbers.into_iter().filter_map(|number| table::by_index(usize::from(number))).collect()
}

/// Whether this process is charged for loaded code on the device.
pub fn any(device: &Device) -> bool {
    CODE_HOLDERS.lock().iter().any(|one| !matches!(one.key, CodeSource::Limit(_)) && one.device == device.index)
}

/// Handles the end of a context that freed `gone` bytes of its code memory (`None`: all). The rest is shared with
/// other contexts and is charged to `heir`. Returns the bytes released.
pub fn end_of_context(context: CUcontext, gone: Option<u64>, heir: Option<usize>) -> u64 {
    let module = |one: &LoadRecord| matches!(one.made, LoadedHandle::Module(_)) && one.context == context.0 as usize;
    LOAD_RECORDS.lock().retain(|one| !module(one));
    let (device, bytes) = {
        let mut all = CODE_HOLDERS.lock();
        inherit_code(&mut all, context.0 as usize, gone, heir)
    };
    release(device, bytes)
}

fn inherit_code(all: &mut Vec<CodeHolder>, context: usize, gone: Option<u64>, heir: Option<usize>) -> (u8, u64) {
    let (ended, stay): (Vec<_>, Vec<_>) = all.drain(..).partition(|one| one.context == context);
    *all = stay;
    let total: u64 = ended.iter().map(|one| one.bytes).sum();
    let device = ended.first().map_or(0, |one| one.device);
    let back = if heir.is_some() { gone.unwrap_or(total).min(total) } else { total };
    if let Some(heir) = heir.filter(|_| back < total) {
        add_holder(all, CodeHolder { key: CodeSource::Inherited, context: heir, device, bytes: total - back });
    }
    (device, back)
}

/// Clears the parent's code in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called in a forked child, which has only this thread.
    unsafe {
        CODE_HOLDERS.reset(Vec::new());
        LOAD_RECORDS.reset(Vec::new());
        UNATTRIBUTED_CODE.iter().for_each(|bytes| bytes.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(key: CodeSource, context: usize, bytes: u64) -> CodeHolder {
        CodeHolder { key, context, device: 0, bytes }
    }

    #[test]
    fn what_an_unload_returned_is_taken_from_any_context_and_never_more_than_there_is() {
        let mut all =
            vec![holder(CodeSource::Code, 1, 10), holder(CodeSource::Limit(2), 1, 100), holder(CodeSource::Code, 2, 5)];
        assert_eq!(take_bytes(&mut all, CodeSource::Code, None, 0, 12), 0);
        assert_eq!(all, [holder(CodeSource::Limit(2), 1, 100), holder(CodeSource::Code, 2, 3)]);
        assert_eq!(take_bytes(&mut all, CodeSource::Code, None, 0, 12), 9);
        assert_eq!(take_bytes(&mut all, CodeSource::Limit(2), Some(2), 0, 12), 12, "another context's");
        assert_eq!(take_bytes(&mut all, CodeSource::Limit(2), Some(1), 1, 12), 12, "another device's");
    }

    #[test]
    fn what_is_loaded_holds_what_it_took_or_a_place_and_nothing_holds_nothing() {
        let record =
            |device, bytes| LoadRecord { made: LoadedHandle::Module(1), context: 1, device, bytes: Some(bytes) };
        let loaded = [record(0, 0), record(0, 5 * CODE_SLAB_BYTES), record(1, 7 * CODE_SLAB_BYTES)];
        assert_eq!(max_held(&loaded, 0, 0), Some(6 * CODE_SLAB_BYTES));
        assert_eq!(max_held(&loaded, 1, 3), Some(7 * CODE_SLAB_BYTES + 3), "and what came by parts");
        assert_eq!(max_held(&loaded, 2, 3), None);
        let unknown = LoadRecord { bytes: None, ..record(0, 0) };
        assert_eq!(max_held(&[record(0, 0), unknown], 0, 3), Some(u64::MAX), "one of them may hold anything");
        assert_eq!(max_held(&[unknown], 1, 0), None);
        let library = LoadRecord { made: LoadedHandle::Library(1), ..record(0, 0) };
        assert_eq!(max_held(&[library], 2, 0), Some(CODE_SLAB_BYTES), "a library is on any device");
    }

    #[test]
    fn what_others_share_of_a_context_that_ends_stays_charged_with_them() {
        let start =
            vec![holder(CodeSource::Code, 1, 10), holder(CodeSource::Limit(0), 1, 4), holder(CodeSource::Code, 2, 5)];
        let mut all = start.clone();
        assert_eq!(inherit_code(&mut all, 1, Some(8), Some(2)), (0, 8));
        assert_eq!(all, [holder(CodeSource::Code, 2, 5), holder(CodeSource::Inherited, 2, 6)]);
        let mut all = start.clone();
        assert_eq!(inherit_code(&mut all, 1, None, Some(2)), (0, 14), "not seen: it went with its context");
        let mut all = start;
        assert_eq!(inherit_code(&mut all, 1, Some(0), None), (0, 14), "nobody is left to share it");
    }
}

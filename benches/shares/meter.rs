//! The library's own usage meter: device time of a tenant's members, read from its ledger.

use std::fs;
use std::path::Path;
use vgpu_core::memory::ledger::LedgerPage;

/// Device time in ns that the members of `tenant` have measured so far; `None` if the tenant has no ledger.
pub fn measured_ns(state: &Path, tenant: &str) -> Option<u64> {
    let begin = format!("vgpu-t-{tenant}-");
    let mut files = fs::read_dir(state).ok()?.flatten();
    let file = files.find(|file| file.file_name().to_str().is_some_and(|name| name.starts_with(&begin)))?;
    let bytes = fs::read(file.path()).ok()?;
    let mut page = LedgerPage::zeroed();
    let length = bytes.len().min(size_of::<LedgerPage>());
    // SAFETY: a page consists of atomics, and any content is valid to read, as its type promises; nothing else uses
    // this one; `length` is within both.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut::<LedgerPage>(&mut page).cast(), length);
    }
    Some(page.as_ledger().members().map(|member| member.busy_ns).sum())
}

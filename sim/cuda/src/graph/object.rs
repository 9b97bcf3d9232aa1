//! User objects of the program, which graphs keep alive by reference counts.

use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A user object, destroyed with its last reference.
pub(crate) struct UserObject {
    ptr: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: AtomicU64,
}

// SAFETY: the pointer is the program's, and only handed back to its function.
unsafe impl Send for UserObject {}
// SAFETY: as above.
unsafe impl Sync for UserObject {}

impl UserObject {
    pub(crate) fn new(ptr: *mut c_void, destroy: unsafe extern "C" fn(*mut c_void), count: u32) -> Arc<UserObject> {
        Arc::new(UserObject { ptr, destroy, references: AtomicU64::new(u64::from(count)) })
    }

    /// Adds `count` references.
    pub(crate) fn add_references(&self, count: u32) {
        self.references.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    /// Removes `count` references; true if they were the last ones, in which case the object was destroyed.
    pub(crate) fn release(&self, count: u32) -> bool {
        let lower = |n: u64| n.checked_sub(u64::from(count));
        let gone = self.references.fetch_update(Ordering::AcqRel, Ordering::Relaxed, lower) == Ok(u64::from(count));
        if gone {
            // SAFETY: the program's own function with its own argument, once.
            unsafe { (self.destroy)(self.ptr) };
        }
        gone
    }
}

/// References that a graph holds, by handle; released with the graph.
#[derive(Default)]
pub(crate) struct HeldObjects(BTreeMap<usize, (Arc<UserObject>, u32)>);

impl HeldObjects {
    /// Takes ownership of references that the caller has already counted.
    pub(crate) fn take_references(&mut self, handle: usize, object: &Arc<UserObject>, count: u32) {
        self.0.entry(handle).or_insert_with(|| (object.clone(), 0)).1 += count;
    }

    /// Removes references, which the caller then releases; `None` if the graph has fewer.
    pub(crate) fn give_references(&mut self, handle: usize, count: u32) -> Option<Arc<UserObject>> {
        let (object, n) = self.0.get_mut(&handle).filter(|(_, n)| *n >= count)?;
        let object = object.clone();
        *n -= count;
        if *n == 0 {
            self.0.remove(&handle);
        }
        Some(object)
    }

    /// Makes separate references to the same objects, for a clone or an executable graph.
    pub(crate) fn duplicate_references(&self) -> HeldObjects {
        for (object, n) in self.0.values() {
            object.add_references(*n);
        }
        HeldObjects(self.0.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for HeldObjects {
    fn drop(&mut self) {
        for (object, n) in self.0.values() {
            object.release(*n);
        }
    }
}

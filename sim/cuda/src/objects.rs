//! The objects behind handles, and the registries that decide whether a handle is valid.

use crate::context::CudaContext;
use crate::image::KernelEntry;
use parking_lot::{Mutex, RwLock};
use shim_sys::cuda::CUresult;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use vgpu_sim::engine::{EventId, StreamId};

/// Live objects of one kind by handle. A handle is the object's address; only a registered handle is
/// dereferenced.
pub(crate) struct HandleRegistry<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for HandleRegistry<T> {
    fn default() -> Self {
        HandleRegistry(RwLock::default())
    }
}

impl<T> HandleRegistry<T> {
    /// Registers an object and returns its handle.
    pub(crate) fn add(&self, object: Arc<T>) -> *mut c_void {
        let handle = object_handle(&object);
        self.0.write().insert(handle as usize, object);
        handle
    }

    /// The object behind a handle.
    pub(crate) fn get(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.0.read().get(&(handle as usize)).cloned()
    }

    /// Unregisters a handle; returns its object.
    pub(crate) fn remove(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.0.write().remove(&(handle as usize))
    }

    /// Any object that satisfies `meant`.
    pub(crate) fn find(&self, meant: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.read().values().find(|o| meant(o)).cloned()
    }

    /// All objects that satisfy `meant`.
    pub(crate) fn all(&self, meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.0.read().values().filter(|o| meant(o)).cloned().collect()
    }

    /// Unregisters all handles whose object satisfies `meant`; returns the objects.
    pub(crate) fn remove_where(&self, meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut map = self.0.write();
        let gone: Vec<usize> = map.iter().filter(|(_, o)| meant(o)).map(|(h, _)| *h).collect();
        gone.iter().filter_map(|h| map.remove(h)).collect()
    }
}

/// The handle of an object.
pub(crate) fn object_handle<T>(object: &Arc<T>) -> *mut c_void {
    Arc::as_ptr(object).cast_mut().cast()
}

/// A CUDA stream with its context.
pub(crate) struct StreamObject {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) id: StreamId,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) number: u64,
}

/// The value of a handle. Handles of graphs and nodes are increasing numbers that cannot be mistaken for
/// addresses.
pub(crate) type GraphId = usize;

/// The last record of an event that happened in a capture.
#[derive(Clone)]
pub(crate) struct RecordedEvent {
    pub(crate) session: u64,
    /// Nodes that a wait for the event depends on.
    pub(crate) nodes: Vec<GraphId>,
}

/// A CUDA event with its context.
pub(crate) struct EventObject {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) id: EventId,
    pub(crate) flags: u32,
    /// Node of the event's last record, if that was captured.
    pub(crate) captured: Mutex<Option<RecordedEvent>>,
}

/// Location of a module's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodePlace {
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// A module, loaded into a context.
pub(crate) struct ModuleObject {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) functions: Vec<Arc<FunctionObject>>,
    /// Name, device address and size in bytes of each global variable.
    pub(crate) globals: Vec<(String, u64, u64)>,
    /// Device memory of the module, its global variables included.
    pub(crate) place: CodePlace,
}

/// The test kernels that are known by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TestKernel {
    Spin,
    Wait,
    Set,
}

impl TestKernel {
    pub(crate) fn test_kernel_named(name: &str) -> Option<TestKernel> {
        match name {
            "vgpu_spin_ns" => Some(TestKernel::Spin),
            "vgpu_wait_word" => Some(TestKernel::Wait),
            "vgpu_set_word" => Some(TestKernel::Set),
            _ => None,
        }
    }
}

/// Settings of a function for the launch calls of CUDA 2.
#[derive(Default)]
pub(crate) struct FunctionSettings {
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) arguments: Vec<u8>,
}

/// A kernel of a module or of a library.
pub(crate) struct FunctionObject {
    pub(crate) entry: KernelEntry,
    /// Name of the kernel as a C string.
    pub(crate) name: CString,
    /// Set for a test kernel that is known by its name.
    pub(crate) test: Option<TestKernel>,
    /// Attributes that the program set.
    pub(crate) set: Mutex<HashMap<u32, i32>>,
    /// Parameters that the program set for the launch calls of CUDA 2.
    pub(crate) legacy: Mutex<FunctionSettings>,
    /// Handle of the module; 0 for a kernel of a library.
    pub(crate) module: AtomicUsize,
    /// Handle of the library; 0 for a function of a module.
    pub(crate) library: AtomicUsize,
}

impl FunctionObject {
    /// The kernel described by `entry`.
    pub(crate) fn new(entry: KernelEntry) -> Arc<FunctionObject> {
        Arc::new(FunctionObject {
            test: TestKernel::test_kernel_named(&entry.name),
            name: CString::new(entry.name.as_str()).unwrap_or_default(),
            entry,
            set: Mutex::default(),
            legacy: Mutex::default(),
            module: AtomicUsize::new(0),
            library: AtomicUsize::new(0),
        })
    }
}

/// A library: code without a context. A context gets its globals when it first asks for them.
pub(crate) struct LibraryObject {
    pub(crate) image: crate::image::CodeImage,
    pub(crate) kernels: Vec<Arc<FunctionObject>>,
    /// The module of each context that has asked, by the context's number.
    pub(crate) modules: Mutex<HashMap<u64, Arc<ModuleObject>>>,
}

/// A link in progress: the code added so far, and the result.
#[derive(Default)]
pub(crate) struct LinkObject {
    pub(crate) parts: Mutex<Vec<Vec<u8>>>,
    pub(crate) done: Mutex<Option<Box<[u8]>>>,
}

/// Data of a memory pool's handle.
pub(crate) struct PoolHandle {
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    /// Number of the pool among this process's pools; 0 for another process's pool.
    pub(crate) number: u64,
    /// The share of another process's pool; 0 for a pool of this process.
    pub(crate) imported: u64,
}

/// Resources for a green context.
pub(crate) struct GreenDescription {
    pub(crate) sms: u32,
}

/// A green context: its own context, which holds the primary one.
pub(crate) struct GreenContext {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) sms: u32,
}

/// The object behind a handle, or `INVALID_HANDLE`.
pub(crate) fn object_of_handle<T>(registry: &HandleRegistry<T>, handle: *mut c_void) -> Result<Arc<T>, CUresult> {
    registry.get(handle).ok_or(CUresult::INVALID_HANDLE)
}

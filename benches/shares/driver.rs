//! The driver's functions that a workload calls, looked up as every program does: `dlopen`, then `dlsym`.
//!
//! With the library preloaded these are its hooks. Not here: the use of the functions (`work`).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal($($arg:ty),*);)*) => {
        /// The functions, by their names in the driver.
        pub struct Driver {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Driver {
            /// Loads the driver.
            ///
            /// # Errors
            /// The driver is missing, or lacks a function.
            pub fn load() -> Result<Driver, String> {
                // SAFETY: this is the driver's soname; the library stays loaded.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err("libcuda.so.1 is not on the loader's path".into());
                }
                Ok(Driver {
                    $($field: {
                        let address = find(library, $name)?;
                        // SAFETY: the address is that of the driver's function with this name, whose C signature this
                        // is.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($arg),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit"(u32);
    retain = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    set_current = c"cuCtxSetCurrent"(Handle);
    load_data = c"cuModuleLoadData"(*mut Handle, *const c_char);
    get_function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    stream_create = c"cuStreamCreate"(*mut Handle, u32);
    stream_synchronize = c"cuStreamSynchronize"(Handle);
    launch_kernel = c"cuLaunchKernel"(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle, *mut Handle);
    begin_capture = c"cuStreamBeginCapture_v2"(Handle, c_int);
    end_capture = c"cuStreamEndCapture"(Handle, *mut Handle);
    instantiate = c"cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    graph_launch = c"cuGraphLaunch"(Handle, Handle);
    memory = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
}

fn find(library: Handle, name: &CStr) -> Result<Handle, String> {
    // SAFETY: a handle of the loader and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("libcuda.so.1 has no {}", name.to_string_lossy())) } else { Ok(found) }
}

fn ok(code: c_int, what: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {code}")) }
}

/// A stream of the driver.
#[derive(Clone, Copy)]
pub struct Stream(Handle);

/// An executable graph of the driver.
#[derive(Clone, Copy)]
pub struct Graph(Handle);

/// The driver with a context, and a kernel whose length is its parameter.
pub struct Device {
    driver: Driver,
    kernel: Handle,
}

// SAFETY of the calls below: the driver's functions have their own signatures; handles come from the driver and are
// never released while the process lives; outputs are locals; the launch copies a kernel's parameters.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Device {
    /// Initialises device 0.
    ///
    /// # Errors
    /// The name and code of the call that failed.
    pub fn open() -> Result<Device, String> {
        let driver = Driver::load()?;
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        let image = concat!(include_str!("../../examples/kernels/spin.ptx"), "\0");
        unsafe {
            ok((driver.init)(0), "cuInit")?;
            ok((driver.retain)(&raw mut context, 0), "cuDevicePrimaryCtxRetain")?;
            ok((driver.set_current)(context), "cuCtxSetCurrent")?;
            ok((driver.load_data)(&raw mut module, image.as_ptr().cast()), "cuModuleLoadData")?;
            ok((driver.get_function)(&raw mut kernel, module, c"vgpu_spin_ns".as_ptr()), "cuModuleGetFunction")?;
        }
        Ok(Device { driver, kernel })
    }

    /// Creates a stream that does not wait for the legacy one.
    pub fn stream(&self) -> Result<Stream, String> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = null_mut();
        ok(unsafe { (self.driver.stream_create)(&raw mut stream, NON_BLOCKING) }, "cuStreamCreate")?;
        Ok(Stream(stream))
    }

    /// Launches a kernel that takes `ns` of device time.
    pub fn launch(&self, stream: Stream, mut ns: u64) -> Result<(), String> {
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let launch = self.driver.launch_kernel;
        ok(unsafe { launch(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream.0, parameters, null_mut()) }, "cuLaunchKernel")
    }

    /// Creates a graph of `count` kernels of `ns` each, one after another.
    pub fn graph(&self, stream: Stream, count: u64, ns: u64) -> Result<Graph, String> {
        const THREAD_LOCAL: c_int = 1;
        let (mut graph, mut made) = (null_mut(), null_mut());
        ok(unsafe { (self.driver.begin_capture)(stream.0, THREAD_LOCAL) }, "cuStreamBeginCapture")?;
        for _ in 0..count {
            self.launch(stream, ns)?;
        }
        unsafe {
            ok((self.driver.end_capture)(stream.0, &raw mut graph), "cuStreamEndCapture")?;
            ok((self.driver.instantiate)(&raw mut made, graph, 0), "cuGraphInstantiateWithFlags")?;
        }
        Ok(Graph(made))
    }

    /// Launches a graph in a stream.
    pub fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), String> {
        ok(unsafe { (self.driver.graph_launch)(graph.0, stream.0) }, "cuGraphLaunch")
    }

    /// Waits for everything in the stream.
    pub fn synchronize(&self, stream: Stream) -> Result<(), String> {
        ok(unsafe { (self.driver.stream_synchronize)(stream.0) }, "cuStreamSynchronize")
    }

    /// Total device memory as this process sees it, in bytes.
    pub fn memory(&self) -> Result<usize, String> {
        let (mut free, mut total) = (0, 0);
        ok(unsafe { (self.driver.memory)(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok(total)
    }
}

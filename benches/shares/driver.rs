//! The driver's functions that a workload calls, looked up as every program does: `dlopen`, then `dlsym`.
//!
//! With the library preloaded these are its hooks. Not here: the use of the functions (`work`).

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

type CudaHandle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal($($arg:ty),*);)*) => {
        /// The functions, by their names in the driver.
        pub struct CudaFunctions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl CudaFunctions {
            /// Loads the driver.
            ///
            /// # Errors
            /// The driver is missing, or lacks a function.
            pub fn load() -> Result<CudaFunctions, String> {
                // SAFETY: this is the driver's soname; the library stays loaded.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err("libcuda.so.1 is not on the loader's path".into());
                }
                Ok(CudaFunctions {
                    $($field: {
                        let address = find(library, $name)?;
                        // SAFETY: the address is that of the driver's function with this name, whose C signature this
                        // is.
                        unsafe { std::mem::transmute::<CudaHandle, unsafe extern "C" fn($($arg),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit"(u32);
    retain = c"cuDevicePrimaryCtxRetain"(*mut CudaHandle, c_int);
    set_current = c"cuCtxSetCurrent"(CudaHandle);
    load_data = c"cuModuleLoadData"(*mut CudaHandle, *const c_char);
    get_function = c"cuModuleGetFunction"(*mut CudaHandle, CudaHandle, *const c_char);
    stream_create = c"cuStreamCreate"(*mut CudaHandle, u32);
    stream_synchronize = c"cuStreamSynchronize"(CudaHandle);
    launch_kernel = c"cuLaunchKernel"(CudaHandle, u32, u32, u32, u32, u32, u32, u32, CudaHandle, *mut CudaHandle, *mut CudaHandle);
    begin_capture = c"cuStreamBeginCapture_v2"(CudaHandle, c_int);
    end_capture = c"cuStreamEndCapture"(CudaHandle, *mut CudaHandle);
    instantiate = c"cuGraphInstantiateWithFlags"(*mut CudaHandle, CudaHandle, u64);
    graph_launch = c"cuGraphLaunch"(CudaHandle, CudaHandle);
    memory = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
}

fn find(library: CudaHandle, name: &CStr) -> Result<CudaHandle, String> {
    // SAFETY: a handle of the loader and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("libcuda.so.1 has no {}", name.to_string_lossy())) } else { Ok(found) }
}

fn require_ok(code: c_int, what: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {code}")) }
}

/// A stream of the driver.
#[derive(Clone, Copy)]
pub struct CudaStream(CudaHandle);

/// An executable graph of the driver.
#[derive(Clone, Copy)]
pub struct CudaGraph(CudaHandle);

/// The driver with a context, and a kernel whose length is its parameter.
pub struct BenchDevice {
    driver: CudaFunctions,
    kernel: CudaHandle,
}

// SAFETY of the calls below: the driver's functions have their own signatures; handles come from the driver and are
// never released while the process lives; outputs are locals; the launch copies a kernel's parameters.
#[allow(clippy::undocumented_unsafe_blocks)]
impl BenchDevice {
    /// Initialises device 0.
    ///
    /// # Errors
    /// The name and code of the call that failed.
    pub fn open() -> Result<BenchDevice, String> {
        let driver = CudaFunctions::load()?;
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        let image = concat!(include_str!("../../examples/kernels/spin.ptx"), "\0");
        unsafe {
            require_ok((driver.init)(0), "cuInit")?;
            require_ok((driver.retain)(&raw mut context, 0), "cuDevicePrimaryCtxRetain")?;
            require_ok((driver.set_current)(context), "cuCtxSetCurrent")?;
            require_ok((driver.load_data)(&raw mut module, image.as_ptr().cast()), "cuModuleLoadData")?;
            require_ok(
                (driver.get_function)(&raw mut kernel, module, c"vgpu_spin_ns".as_ptr()),
                "cuModuleGetFunction",
            )?;
        }
        Ok(BenchDevice { driver, kernel })
    }

    /// Creates a stream that does not wait for the legacy one.
    pub fn make_stream(&self) -> Result<CudaStream, String> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = null_mut();
        require_ok(unsafe { (self.driver.stream_create)(&raw mut stream, NON_BLOCKING) }, "cuStreamCreate")?;
        Ok(CudaStream(stream))
    }

    /// Launches a kernel that takes `ns` of device time.
    pub fn launch(&self, stream: CudaStream, mut ns: u64) -> Result<(), String> {
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let launch = self.driver.launch_kernel;
        require_ok(
            unsafe { launch(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream.0, parameters, null_mut()) },
            "cuLaunchKernel",
        )
    }

    /// Creates a graph of `count` kernels of `ns` each, one after another.
    pub fn make_graph(&self, stream: CudaStream, count: u64, ns: u64) -> Result<CudaGraph, String> {
        const THREAD_LOCAL: c_int = 1;
        let (mut graph, mut made) = (null_mut(), null_mut());
        require_ok(unsafe { (self.driver.begin_capture)(stream.0, THREAD_LOCAL) }, "cuStreamBeginCapture")?;
        for _ in 0..count {
            self.launch(stream, ns)?;
        }
        unsafe {
            require_ok((self.driver.end_capture)(stream.0, &raw mut graph), "cuStreamEndCapture")?;
            require_ok((self.driver.instantiate)(&raw mut made, graph, 0), "cuGraphInstantiateWithFlags")?;
        }
        Ok(CudaGraph(made))
    }

    /// Launches a graph in a stream.
    pub fn launch_graph(&self, graph: CudaGraph, stream: CudaStream) -> Result<(), String> {
        require_ok(unsafe { (self.driver.graph_launch)(graph.0, stream.0) }, "cuGraphLaunch")
    }

    /// Waits for everything in the stream.
    pub fn synchronize_stream(&self, stream: CudaStream) -> Result<(), String> {
        require_ok(unsafe { (self.driver.stream_synchronize)(stream.0) }, "cuStreamSynchronize")
    }

    /// Total device memory as this process sees it, in bytes.
    pub fn shown_memory(&self) -> Result<usize, String> {
        let (mut free, mut total) = (0, 0);
        require_ok(unsafe { (self.driver.memory)(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok(total)
    }
}

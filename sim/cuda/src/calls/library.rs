//! Libraries and their kernels: code without a context. Each context loads a module of it at first use. With
//! `CUDA_MODULE_LOADING=EAGER` the contexts that exist load it together with the library; later contexts at first
//! use.

use super::module::{load, read_file, required_text, unload_module};
use crate::attributes::function_attribute;
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::image::{self, CodeImage};
use crate::objects::{FunctionObject, LibraryObject, ModuleObject, object_handle, object_of_handle};
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

unsafe fn make_library(d: &CallFrame, out: *mut CUlibrary, image: CodeImage) -> CallResult {
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let kernels: Vec<Arc<FunctionObject>> = image.entries.iter().cloned().map(FunctionObject::new).collect();
    let library = Arc::new(LibraryObject { image, kernels, modules: parking_lot::Mutex::default() });
    if std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER") {
        let mut modules = library.modules.lock();
        for context in driver.contexts.all(|context| context.alive.load(Ordering::Relaxed)) {
            let number = context.number;
            match load(driver, context, &library.image) {
                Ok(module) => _ = modules.insert(number, module),
                Err(e) => {
                    modules.drain().for_each(|(_, module)| unload_module(driver, &module));
                    return Err(e);
                }
            }
        }
    }
    for k in &library.kernels {
        k.library.store(object_handle(&library) as usize, Ordering::Relaxed);
        driver.functions.add(k.clone());
    }
    unsafe { write_output(out, CUlibrary(driver.libraries.add(library))) }
}

pub(crate) unsafe fn cuLibraryLoadData(
    d: &CallFrame,
    library: *mut CUlibrary,
    code: *const c_void,
    _jit_options: *mut u32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    _count: u32,
) -> CallResult {
    unsafe { make_library(d, library, image::read(code.cast())?) }
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    d: &CallFrame,
    library: *mut CUlibrary,
    path: *const c_char,
    _jit_options: *mut u32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    _count: u32,
) -> CallResult {
    unsafe { make_library(d, library, read_file(path)?) }
}

pub(crate) unsafe fn cuLibraryUnload(d: &CallFrame, library: CUlibrary) -> CallResult {
    let driver = d.initialised_driver()?;
    let l = driver.libraries.remove(library.0).ok_or(CUresult::INVALID_HANDLE)?;
    for k in &l.kernels {
        driver.functions.remove(object_handle(k));
    }
    for (_, m) in l.modules.lock().drain() {
        unload_module(driver, &m);
    }
    Ok(())
}

/// True if a function is loaded in the current context.
pub(crate) fn has_arrived(d: &CallFrame, f: &FunctionObject) -> Result<bool, CUresult> {
    let context = d.current_context()?;
    Ok(match f.library.load(Ordering::Relaxed) {
        0 => true,
        l => object_of_handle(&d.initialised_driver()?.libraries, l as *mut c_void)?
            .modules
            .lock()
            .contains_key(&context.number),
    })
}

/// The library's module in the current context.
fn module_of(d: &CallFrame, l: &LibraryObject) -> Result<Arc<ModuleObject>, CUresult> {
    let (driver, context) = (d.initialised_driver()?, d.current_context()?);
    let mut modules = l.modules.lock();
    if let Some(m) = modules.get(&context.number) {
        return Ok(m.clone());
    }
    let number = context.number;
    let m = load(driver, context, &l.image)?;
    modules.insert(number, m.clone());
    Ok(m)
}

/// Loads the library of a kernel into the current context before the kernel runs; a function of a module is
/// loaded already.
pub(crate) fn load_into_context(d: &CallFrame, f: &FunctionObject) -> CallResult {
    match f.library.load(Ordering::Relaxed) {
        0 => Ok(()),
        l => module_of(d, &*object_of_handle(&d.initialised_driver()?.libraries, l as *mut c_void)?).map(|_| ()),
    }
}

pub(crate) unsafe fn cuLibraryGetModule(d: &CallFrame, module: *mut CUmodule, library: CUlibrary) -> CallResult {
    let l = object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    unsafe { write_output(module, CUmodule(object_handle(&module_of(d, &l)?))) }
}

pub(crate) unsafe fn cuLibraryGetKernel(
    d: &CallFrame,
    kernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> CallResult {
    let l = object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    let name = unsafe { required_text(name)? };
    let k = l.kernels.iter().find(|k| k.entry.name == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { write_output(kernel, CUkernel(object_handle(k))) }
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CallResult {
    let l = object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    let name = unsafe { required_text(name)? };
    let m = module_of(d, &l)?;
    let (_, at, len) = m.globals.iter().find(|g| g.0 == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe {
        put_if(dptr, *at);
        put_if(bytes, usize::try_from(*len).unwrap_or(0));
    }
    Ok(())
}

/// No image has managed variables here.
pub(crate) unsafe fn cuLibraryGetManaged(
    d: &CallFrame,
    _dptr: *mut CUdeviceptr,
    _bytes: *mut usize,
    library: CUlibrary,
    _name: *const c_char,
) -> CallResult {
    object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    Err(CUresult::NOT_FOUND)
}

fn kernel_of_handle(d: &CallFrame, k: CUkernel) -> Result<Arc<FunctionObject>, CUresult> {
    let f = object_of_handle(&d.initialised_driver()?.functions, k.0)?;
    if f.library.load(Ordering::Relaxed) == 0 { Err(CUresult::INVALID_HANDLE) } else { Ok(f) }
}

pub(crate) unsafe fn cuKernelGetFunction(d: &CallFrame, f: *mut CUfunction, k: CUkernel) -> CallResult {
    let x = kernel_of_handle(d, k)?;
    let l = object_of_handle(&d.initialised_driver()?.libraries, x.library.load(Ordering::Relaxed) as *mut c_void)?;
    let m = module_of(d, &l)?;
    let found = m.functions.iter().find(|y| y.entry.name == x.entry.name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { write_output(f, CUfunction(object_handle(found))) }
}

pub(crate) unsafe fn cuKernelGetAttribute(
    d: &CallFrame,
    value: *mut i32,
    attribute: u32,
    k: CUkernel,
    dev: CUdevice,
) -> CallResult {
    let x = kernel_of_handle(d, k)?;
    let set = x.set.lock().get(&attribute).copied();
    let p = &d.initialised_driver()?.device_of_ordinal(dev)?.profile;
    let v = set.or_else(|| function_attribute(p, &x.entry, attribute)).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { write_output(value, v) }
}

pub(crate) unsafe fn cuKernelSetAttribute(
    d: &CallFrame,
    attribute: u32,
    value: i32,
    k: CUkernel,
    dev: CUdevice,
) -> CallResult {
    let x = kernel_of_handle(d, k)?;
    super::function::set(&d.initialised_driver()?.device_of_ordinal(dev)?.profile, &x, attribute, value)
}

pub(crate) unsafe fn cuKernelSetCacheConfig(d: &CallFrame, k: CUkernel, _config: u32, dev: CUdevice) -> CallResult {
    kernel_of_handle(d, k)?;
    d.initialised_driver()?.device_of_ordinal(dev).map(|_| ())
}

pub(crate) unsafe fn cuKernelGetLibrary(d: &CallFrame, library: *mut CUlibrary, k: CUkernel) -> CallResult {
    unsafe { write_output(library, CUlibrary(kernel_of_handle(d, k)?.library.load(Ordering::Relaxed) as *mut c_void)) }
}

pub(crate) unsafe fn cuKernelGetName(d: &CallFrame, name: *mut DriverText, k: CUkernel) -> CallResult {
    unsafe { write_output(name, kernel_of_handle(d, k)?.name.as_ptr()) }
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    d: &CallFrame,
    k: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CallResult {
    unsafe { super::function::parameter_place(&*kernel_of_handle(d, k)?, index, offset, size) }
}

pub(crate) unsafe fn cuLibraryGetKernelCount(d: &CallFrame, count: *mut u32, library: CUlibrary) -> CallResult {
    let l = object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    unsafe { write_output(count, u32::try_from(l.kernels.len()).unwrap_or(u32::MAX)) }
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    d: &CallFrame,
    kernels: *mut CUkernel,
    count: u32,
    library: CUlibrary,
) -> CallResult {
    let l = object_of_handle(&d.initialised_driver()?.libraries, library.0)?;
    if kernels.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for (i, k) in l.kernels.iter().take(count as usize).enumerate() {
        unsafe { kernels.add(i).write(CUkernel(object_handle(k))) };
    }
    Ok(())
}

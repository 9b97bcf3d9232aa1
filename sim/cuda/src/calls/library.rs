//! Libraries and their kernels: code without a context. Each context loads a module of it at first use. With
//! `CUDA_MODULE_LOADING=EAGER` the contexts that exist load it together with the library; later contexts at first
//! use.

use super::module::{load, read_file, text, unload};
use crate::attributes::function_attribute;
use crate::door::{Answer, Door, put, put_if};
use crate::driver::hold;
use crate::image::{self, Image};
use crate::objects::{Function, Library, Module, handle, known};
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

unsafe fn make(d: &Door, out: *mut CUlibrary, image: Image) -> Answer {
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let kernels: Vec<Arc<Function>> = image.entries.iter().cloned().map(Function::new).collect();
    let library = Arc::new(Library { image, kernels, modules: parking_lot::Mutex::default() });
    if std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER") {
        let mut modules = hold(&library.modules);
        for context in driver.contexts.all(|context| context.alive.load(Ordering::Relaxed)) {
            let number = context.number;
            match load(driver, context, &library.image) {
                Ok(module) => _ = modules.insert(number, module),
                Err(e) => {
                    modules.drain().for_each(|(_, module)| unload(driver, &module));
                    return Err(e);
                }
            }
        }
    }
    for k in &library.kernels {
        k.library.store(handle(&library) as usize, Ordering::Relaxed);
        driver.functions.add(k.clone());
    }
    unsafe { put(out, CUlibrary(driver.libraries.add(library))) }
}

pub(crate) unsafe fn cuLibraryLoadData(
    d: &Door,
    library: *mut CUlibrary,
    code: *const c_void,
    _jit_options: *mut u32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    _count: u32,
) -> Answer {
    unsafe { make(d, library, image::read(code.cast())?) }
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    d: &Door,
    library: *mut CUlibrary,
    path: *const c_char,
    _jit_options: *mut u32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    _count: u32,
) -> Answer {
    unsafe { make(d, library, read_file(path)?) }
}

pub(crate) unsafe fn cuLibraryUnload(d: &Door, library: CUlibrary) -> Answer {
    let driver = d.driver()?;
    let l = driver.libraries.remove(library.0).ok_or(CUresult::INVALID_HANDLE)?;
    for k in &l.kernels {
        driver.functions.remove(handle(k));
    }
    for (_, m) in hold(&l.modules).drain() {
        unload(driver, &m);
    }
    Ok(())
}

/// True if a function is loaded in the current context.
pub(crate) fn has_arrived(d: &Door, f: &Function) -> Result<bool, CUresult> {
    let context = d.context()?;
    Ok(match f.library.load(Ordering::Relaxed) {
        0 => true,
        l => hold(&known(&d.driver()?.libraries, l as *mut c_void)?.modules).contains_key(&context.number),
    })
}

/// The library's module in the current context.
fn module_of(d: &Door, l: &Library) -> Result<Arc<Module>, CUresult> {
    let (driver, context) = (d.driver()?, d.context()?);
    let mut modules = hold(&l.modules);
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
pub(crate) fn arrive(d: &Door, f: &Function) -> Answer {
    match f.library.load(Ordering::Relaxed) {
        0 => Ok(()),
        l => module_of(d, &*known(&d.driver()?.libraries, l as *mut c_void)?).map(|_| ()),
    }
}

pub(crate) unsafe fn cuLibraryGetModule(d: &Door, module: *mut CUmodule, library: CUlibrary) -> Answer {
    let l = known(&d.driver()?.libraries, library.0)?;
    unsafe { put(module, CUmodule(handle(&module_of(d, &l)?))) }
}

pub(crate) unsafe fn cuLibraryGetKernel(
    d: &Door,
    kernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> Answer {
    let l = known(&d.driver()?.libraries, library.0)?;
    let name = unsafe { text(name)? };
    let k = l.kernels.iter().find(|k| k.entry.name == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { put(kernel, CUkernel(handle(k))) }
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    d: &Door,
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Answer {
    let l = known(&d.driver()?.libraries, library.0)?;
    let name = unsafe { text(name)? };
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
    d: &Door,
    _dptr: *mut CUdeviceptr,
    _bytes: *mut usize,
    library: CUlibrary,
    _name: *const c_char,
) -> Answer {
    known(&d.driver()?.libraries, library.0)?;
    Err(CUresult::NOT_FOUND)
}

fn kernel(d: &Door, k: CUkernel) -> Result<Arc<Function>, CUresult> {
    let f = known(&d.driver()?.functions, k.0)?;
    if f.library.load(Ordering::Relaxed) == 0 { Err(CUresult::INVALID_HANDLE) } else { Ok(f) }
}

pub(crate) unsafe fn cuKernelGetFunction(d: &Door, f: *mut CUfunction, k: CUkernel) -> Answer {
    let x = kernel(d, k)?;
    let l = known(&d.driver()?.libraries, x.library.load(Ordering::Relaxed) as *mut c_void)?;
    let m = module_of(d, &l)?;
    let found = m.functions.iter().find(|y| y.entry.name == x.entry.name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { put(f, CUfunction(handle(found))) }
}

pub(crate) unsafe fn cuKernelGetAttribute(
    d: &Door,
    value: *mut i32,
    attribute: u32,
    k: CUkernel,
    dev: CUdevice,
) -> Answer {
    let x = kernel(d, k)?;
    let set = hold(&x.set).get(&attribute).copied();
    let p = &d.driver()?.device(dev)?.profile;
    let v = set.or_else(|| function_attribute(p, &x.entry, attribute)).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { put(value, v) }
}

pub(crate) unsafe fn cuKernelSetAttribute(d: &Door, attribute: u32, value: i32, k: CUkernel, dev: CUdevice) -> Answer {
    let x = kernel(d, k)?;
    super::function::set(&d.driver()?.device(dev)?.profile, &x, attribute, value)
}

pub(crate) unsafe fn cuKernelSetCacheConfig(d: &Door, k: CUkernel, _config: u32, dev: CUdevice) -> Answer {
    kernel(d, k)?;
    d.driver()?.device(dev).map(|_| ())
}

pub(crate) unsafe fn cuKernelGetLibrary(d: &Door, library: *mut CUlibrary, k: CUkernel) -> Answer {
    unsafe { put(library, CUlibrary(kernel(d, k)?.library.load(Ordering::Relaxed) as *mut c_void)) }
}

pub(crate) unsafe fn cuKernelGetName(d: &Door, name: *mut DriverText, k: CUkernel) -> Answer {
    unsafe { put(name, kernel(d, k)?.name.as_ptr()) }
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    d: &Door,
    k: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    unsafe { super::function::parameter(&*kernel(d, k)?, index, offset, size) }
}

pub(crate) unsafe fn cuLibraryGetKernelCount(d: &Door, count: *mut u32, library: CUlibrary) -> Answer {
    let l = known(&d.driver()?.libraries, library.0)?;
    unsafe { put(count, u32::try_from(l.kernels.len()).unwrap_or(u32::MAX)) }
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    d: &Door,
    kernels: *mut CUkernel,
    count: u32,
    library: CUlibrary,
) -> Answer {
    let l = known(&d.driver()?.libraries, library.0)?;
    if kernels.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for (i, k) in l.kernels.iter().take(count as usize).enumerate() {
        unsafe { kernels.add(i).write(CUkernel(handle(k))) };
    }
    Ok(())
}

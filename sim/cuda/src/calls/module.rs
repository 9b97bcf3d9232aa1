//! Modules: images are read for their names and loaded into the current context. Linking only collects its
//! inputs.

use crate::content::OwnerTag;
use crate::context::CudaContext;
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::image::{self, CodeImage};
use crate::objects::{FunctionObject, LinkObject, ModuleObject, object_handle, object_of_handle};
use core::ffi::{CStr, c_char, c_void};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Alignment of globals, bytes.
const GLOBAL_ALIGN_BYTES: u64 = 256;

/// Loads an image into a context: allocates its code, and registers functions and globals.
pub(crate) fn load(
    driver: &'static SimulatedDriver,
    context: Arc<CudaContext>,
    image: &CodeImage,
) -> Result<Arc<ModuleObject>, CUresult> {
    let functions: Vec<Arc<FunctionObject>> = image.entries.iter().cloned().map(FunctionObject::new).collect();
    let (mut offsets, mut end) = (Vec::new(), image.code);
    for (_, bytes) in &image.globals {
        let at = end.next_multiple_of(GLOBAL_ALIGN_BYTES);
        end = at.checked_add((*bytes).max(1)).ok_or(CUresult::OUT_OF_MEMORY)?;
        offsets.push(at);
    }
    let place = driver.code.take_code(&driver.memory, context.device, end)?;
    let mut globals = Vec::new();
    for ((name, bytes), offset) in image.globals.iter().zip(offsets) {
        driver.memory.show_global(place.at + offset, *bytes, context.device, OwnerTag(context.number));
        globals.push((name.clone(), place.at + offset, *bytes));
    }
    let module = Arc::new(ModuleObject { context, functions, globals, place });
    for f in &module.functions {
        f.module.store(object_handle(&module) as usize, Ordering::Relaxed);
        driver.functions.add(f.clone());
    }
    driver.modules.add(module.clone());
    Ok(module)
}

/// Unloads a module, unless its context ended first and did so.
pub(crate) fn unload_module(driver: &'static SimulatedDriver, module: &Arc<ModuleObject>) {
    if driver.modules.remove(object_handle(module)).is_none() {
        return;
    }
    for f in &module.functions {
        driver.functions.remove(object_handle(f));
    }
    for (_, at, _) in &module.globals {
        driver.memory.hide_global(*at);
    }
    driver.code.give_code(&driver.memory, module.place);
}

/// The text of a C string; null is an error.
pub(crate) unsafe fn required_text<'a>(p: *const c_char) -> Result<&'a str, CUresult> {
    if p.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { CStr::from_ptr(p) }.to_str().map_err(|_| CUresult::INVALID_VALUE)
}

/// Reads an image file.
pub(crate) unsafe fn read_file(path: *const c_char) -> Result<CodeImage, CUresult> {
    let mut bytes = std::fs::read(unsafe { required_text(path)? }).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    bytes.push(0);
    unsafe { image::read(bytes.as_ptr()) }
}

unsafe fn load_current(d: &CallFrame, out: *mut CUmodule, image: CodeImage) -> CallResult {
    let module = load(d.initialised_driver()?, d.current_context()?, &image)?;
    unsafe { write_output(out, CUmodule(object_handle(&module))) }
}

pub(crate) unsafe fn cuModuleLoadData(d: &CallFrame, module: *mut CUmodule, image: *const c_void) -> CallResult {
    d.current_context()?;
    if module.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { load_current(d, module, image::read(image.cast())?) }
}

/// Options of the compiler have no effect here; log buffers are not written.
pub(crate) unsafe fn cuModuleLoadDataEx(
    d: &CallFrame,
    module: *mut CUmodule,
    image: *const c_void,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> CallResult {
    unsafe { cuModuleLoadData(d, module, image) }
}

pub(crate) unsafe fn cuModuleLoadFatBinary(d: &CallFrame, module: *mut CUmodule, image: *const c_void) -> CallResult {
    unsafe { cuModuleLoadData(d, module, image) }
}

pub(crate) unsafe fn cuModuleLoad(d: &CallFrame, module: *mut CUmodule, path: *const c_char) -> CallResult {
    d.current_context()?;
    if module.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { load_current(d, module, read_file(path)?) }
}

pub(crate) unsafe fn cuModuleUnload(d: &CallFrame, module: CUmodule) -> CallResult {
    let driver = d.initialised_driver()?;
    let m = object_of_handle(&driver.modules, module.0)?;
    driver.device_of_ordinal(m.context.device)?.engine.group_wait(m.context.group);
    unload_module(driver, &m);
    Ok(())
}

pub(crate) unsafe fn cuModuleGetFunction(
    d: &CallFrame,
    f: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CallResult {
    let m = object_of_handle(&d.initialised_driver()?.modules, module.0)?;
    let name = unsafe { required_text(name)? };
    let found = m.functions.iter().find(|x| x.entry.name == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { write_output(f, CUfunction(object_handle(found))) }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CallResult {
    let m = object_of_handle(&d.initialised_driver()?.modules, module.0)?;
    let name = unsafe { required_text(name)? };
    let (_, at, len) = m.globals.iter().find(|g| g.0 == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe {
        put_if(dptr, *at);
        put_if(bytes, usize::try_from(*len).unwrap_or(0));
    }
    Ok(())
}

/// Textures are not simulated: no module has any.
pub(crate) unsafe fn cuModuleGetTexRef(
    d: &CallFrame,
    _t: *mut CUtexref,
    module: CUmodule,
    _name: *const c_char,
) -> CallResult {
    object_of_handle(&d.initialised_driver()?.modules, module.0)?;
    Err(CUresult::NOT_FOUND)
}

/// The mode is always eager: code is loaded with its module.
pub(crate) unsafe fn cuModuleGetLoadingMode(_: &CallFrame, mode: *mut u32) -> CallResult {
    unsafe { write_output(mode, 1) }
}

pub(crate) unsafe fn cuLinkCreate_v2(
    d: &CallFrame,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> CallResult {
    d.current_context()?;
    unsafe { write_output(state, CUlinkState(d.initialised_driver()?.links.add(Arc::new(LinkObject::default())))) }
}

pub(crate) unsafe fn cuLinkCreate(
    d: &CallFrame,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> CallResult {
    unsafe { cuLinkCreate_v2(d, count, options, values, state) }
}

pub(crate) unsafe fn cuLinkAddData_v2(
    d: &CallFrame,
    state: CUlinkState,
    _kind: u32,
    data: *mut c_void,
    size: usize,
    _name: *const c_char,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> CallResult {
    let link = object_of_handle(&d.initialised_driver()?.links, state.0)?;
    if data.is_null() || size == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes = unsafe { core::slice::from_raw_parts(data.cast::<u8>(), size) };
    link.parts.lock().push(bytes.to_vec());
    Ok(())
}

pub(crate) unsafe fn cuLinkAddData(
    d: &CallFrame,
    state: CUlinkState,
    kind: u32,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> CallResult {
    unsafe { cuLinkAddData_v2(d, state, kind, data, size, name, count, options, values) }
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    d: &CallFrame,
    state: CUlinkState,
    _kind: u32,
    path: *const c_char,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> CallResult {
    let link = object_of_handle(&d.initialised_driver()?.links, state.0)?;
    let bytes = std::fs::read(unsafe { required_text(path)? }).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    link.parts.lock().push(bytes);
    Ok(())
}

pub(crate) unsafe fn cuLinkAddFile(
    d: &CallFrame,
    state: CUlinkState,
    kind: u32,
    path: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> CallResult {
    unsafe { cuLinkAddFile_v2(d, state, kind, path, count, options, values) }
}

/// The result is an image for this driver: one binary unchanged, or the PTX texts concatenated.
pub(crate) unsafe fn cuLinkComplete(
    d: &CallFrame,
    state: CUlinkState,
    image: *mut *mut c_void,
    size: *mut usize,
) -> CallResult {
    let link = object_of_handle(&d.initialised_driver()?.links, state.0)?;
    let parts = link.parts.lock();
    let binary = parts.iter().find(|p| p.starts_with(b"\x7fELF"));
    let bytes: Vec<u8> = match binary {
        Some(one) => one.clone(),
        None => {
            let texts = parts.iter().map(|p| p.strip_suffix(b"\0").unwrap_or(p));
            texts.flat_map(|p| p.iter().copied().chain([b'\n'])).chain([0]).collect()
        }
    };
    if parts.is_empty() {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut done = link.done.lock();
    let kept = done.insert(bytes.into_boxed_slice());
    unsafe {
        put_if(size, kept.len());
        write_output(image, kept.as_mut_ptr().cast())
    }
}

pub(crate) unsafe fn cuLinkDestroy(d: &CallFrame, state: CUlinkState) -> CallResult {
    d.initialised_driver()?.links.remove(state.0).map(|_| ()).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) unsafe fn cuModuleGetFunctionCount(d: &CallFrame, count: *mut u32, module: CUmodule) -> CallResult {
    let m = object_of_handle(&d.initialised_driver()?.modules, module.0)?;
    unsafe { write_output(count, u32::try_from(m.functions.len()).unwrap_or(u32::MAX)) }
}

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    d: &CallFrame,
    functions: *mut CUfunction,
    count: u32,
    module: CUmodule,
) -> CallResult {
    let m = object_of_handle(&d.initialised_driver()?.modules, module.0)?;
    if functions.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for (i, f) in m.functions.iter().take(count as usize).enumerate() {
        unsafe { functions.add(i).write(CUfunction(object_handle(f))) };
    }
    Ok(())
}

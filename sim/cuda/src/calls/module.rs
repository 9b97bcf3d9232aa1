//! Modules: images are read for their names and loaded into the current context. Linking only collects its
//! inputs.

use crate::content::Tag;
use crate::context::Context;
use crate::door::{Answer, Door, put, put_if};
use crate::driver::{Driver, hold};
use crate::image::{self, Image};
use crate::objects::{Function, Link, Module, handle, known};
use core::ffi::{CStr, c_char, c_void};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Alignment of globals, bytes.
const ALIGN: u64 = 256;

/// Loads an image into a context: allocates its code, and registers functions and globals.
pub(crate) fn load(driver: &'static Driver, context: Arc<Context>, image: &Image) -> Result<Arc<Module>, CUresult> {
    let functions: Vec<Arc<Function>> = image.entries.iter().cloned().map(Function::new).collect();
    let (mut offsets, mut end) = (Vec::new(), image.code);
    for (_, bytes) in &image.globals {
        let at = end.next_multiple_of(ALIGN);
        end = at.checked_add((*bytes).max(1)).ok_or(CUresult::OUT_OF_MEMORY)?;
        offsets.push(at);
    }
    let place = driver.code.take(driver, context.device, end)?;
    let mut globals = Vec::new();
    for ((name, bytes), offset) in image.globals.iter().zip(offsets) {
        driver.memory.show_global(place.at + offset, *bytes, context.device, Tag(context.number));
        globals.push((name.clone(), place.at + offset, *bytes));
    }
    let module = Arc::new(Module { context, functions, globals, place });
    for f in &module.functions {
        f.module.store(handle(&module) as usize, Ordering::Relaxed);
        driver.functions.add(f.clone());
    }
    driver.modules.add(module.clone());
    Ok(module)
}

/// Unloads a module, unless its context ended first and did so.
pub(crate) fn unload(driver: &'static Driver, module: &Arc<Module>) {
    if driver.modules.remove(handle(module)).is_none() {
        return;
    }
    for f in &module.functions {
        driver.functions.remove(handle(f));
    }
    for (_, at, _) in &module.globals {
        driver.memory.hide_global(*at);
    }
    driver.code.give(driver, module.place);
}

/// The text of a C string; null is an error.
pub(crate) unsafe fn text<'a>(p: *const c_char) -> Result<&'a str, CUresult> {
    if p.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { CStr::from_ptr(p) }.to_str().map_err(|_| CUresult::INVALID_VALUE)
}

/// Reads an image file.
pub(crate) unsafe fn read_file(path: *const c_char) -> Result<Image, CUresult> {
    let mut bytes = std::fs::read(unsafe { text(path)? }).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    bytes.push(0);
    unsafe { image::read(bytes.as_ptr()) }
}

unsafe fn load_current(d: &Door, out: *mut CUmodule, image: Image) -> Answer {
    let module = load(d.driver()?, d.context()?, &image)?;
    unsafe { put(out, CUmodule(handle(&module))) }
}

pub(crate) unsafe fn cuModuleLoadData(d: &Door, module: *mut CUmodule, image: *const c_void) -> Answer {
    d.context()?;
    if module.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { load_current(d, module, image::read(image.cast())?) }
}

/// Options of the compiler have no effect here; log buffers are not written.
pub(crate) unsafe fn cuModuleLoadDataEx(
    d: &Door,
    module: *mut CUmodule,
    image: *const c_void,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Answer {
    unsafe { cuModuleLoadData(d, module, image) }
}

pub(crate) unsafe fn cuModuleLoadFatBinary(d: &Door, module: *mut CUmodule, image: *const c_void) -> Answer {
    unsafe { cuModuleLoadData(d, module, image) }
}

pub(crate) unsafe fn cuModuleLoad(d: &Door, module: *mut CUmodule, path: *const c_char) -> Answer {
    d.context()?;
    if module.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { load_current(d, module, read_file(path)?) }
}

pub(crate) unsafe fn cuModuleUnload(d: &Door, module: CUmodule) -> Answer {
    let driver = d.driver()?;
    let m = known(&driver.modules, module.0)?;
    driver.device(m.context.device)?.engine.group_wait(m.context.group);
    unload(driver, &m);
    Ok(())
}

pub(crate) unsafe fn cuModuleGetFunction(
    d: &Door,
    f: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> Answer {
    let m = known(&d.driver()?.modules, module.0)?;
    let name = unsafe { text(name)? };
    let found = m.functions.iter().find(|x| x.entry.name == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe { put(f, CUfunction(handle(found))) }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    d: &Door,
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> Answer {
    let m = known(&d.driver()?.modules, module.0)?;
    let name = unsafe { text(name)? };
    let (_, at, len) = m.globals.iter().find(|g| g.0 == name).ok_or(CUresult::NOT_FOUND)?;
    unsafe {
        put_if(dptr, *at);
        put_if(bytes, usize::try_from(*len).unwrap_or(0));
    }
    Ok(())
}

/// Textures are not simulated: no module has any.
pub(crate) unsafe fn cuModuleGetTexRef(d: &Door, _t: *mut CUtexref, module: CUmodule, _name: *const c_char) -> Answer {
    known(&d.driver()?.modules, module.0)?;
    Err(CUresult::NOT_FOUND)
}

/// The mode is always eager: code is loaded with its module.
pub(crate) unsafe fn cuModuleGetLoadingMode(_: &Door, mode: *mut u32) -> Answer {
    unsafe { put(mode, 1) }
}

pub(crate) unsafe fn cuLinkCreate_v2(
    d: &Door,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> Answer {
    d.context()?;
    unsafe { put(state, CUlinkState(d.driver()?.links.add(Arc::new(Link::default())))) }
}

pub(crate) unsafe fn cuLinkCreate(
    d: &Door,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> Answer {
    unsafe { cuLinkCreate_v2(d, count, options, values, state) }
}

pub(crate) unsafe fn cuLinkAddData_v2(
    d: &Door,
    state: CUlinkState,
    _kind: u32,
    data: *mut c_void,
    size: usize,
    _name: *const c_char,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Answer {
    let link = known(&d.driver()?.links, state.0)?;
    if data.is_null() || size == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes = unsafe { core::slice::from_raw_parts(data.cast::<u8>(), size) };
    hold(&link.parts).push(bytes.to_vec());
    Ok(())
}

pub(crate) unsafe fn cuLinkAddData(
    d: &Door,
    state: CUlinkState,
    kind: u32,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Answer {
    unsafe { cuLinkAddData_v2(d, state, kind, data, size, name, count, options, values) }
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    d: &Door,
    state: CUlinkState,
    _kind: u32,
    path: *const c_char,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Answer {
    let link = known(&d.driver()?.links, state.0)?;
    let bytes = std::fs::read(unsafe { text(path)? }).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    hold(&link.parts).push(bytes);
    Ok(())
}

pub(crate) unsafe fn cuLinkAddFile(
    d: &Door,
    state: CUlinkState,
    kind: u32,
    path: *const c_char,
    count: u32,
    options: *mut u32,
    values: *mut *mut c_void,
) -> Answer {
    unsafe { cuLinkAddFile_v2(d, state, kind, path, count, options, values) }
}

/// The result is an image for this driver: one binary unchanged, or the PTX texts concatenated.
pub(crate) unsafe fn cuLinkComplete(d: &Door, state: CUlinkState, image: *mut *mut c_void, size: *mut usize) -> Answer {
    let link = known(&d.driver()?.links, state.0)?;
    let parts = hold(&link.parts);
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
    let mut done = hold(&link.done);
    let kept = done.insert(bytes.into_boxed_slice());
    unsafe {
        put_if(size, kept.len());
        put(image, kept.as_mut_ptr().cast())
    }
}

pub(crate) unsafe fn cuLinkDestroy(d: &Door, state: CUlinkState) -> Answer {
    d.driver()?.links.remove(state.0).map(|_| ()).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) unsafe fn cuModuleGetFunctionCount(d: &Door, count: *mut u32, module: CUmodule) -> Answer {
    let m = known(&d.driver()?.modules, module.0)?;
    unsafe { put(count, u32::try_from(m.functions.len()).unwrap_or(u32::MAX)) }
}

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    d: &Door,
    functions: *mut CUfunction,
    count: u32,
    module: CUmodule,
) -> Answer {
    let m = known(&d.driver()?.modules, module.0)?;
    if functions.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for (i, f) in m.functions.iter().take(count as usize).enumerate() {
        unsafe { functions.add(i).write(CUfunction(handle(f))) };
    }
    Ok(())
}

//! User objects, which graphs keep alive.

use super::{INVALID, id};
use crate::door::{Answer, Door, put};
use crate::graph::object::Object;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The destructor runs without synchronisation, the only supported mode.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The caller's references are transferred to the graph.
const MOVE: u32 = 1;

fn known(d: &Door, object: CUuserObject) -> Result<Arc<Object>, CUresult> {
    d.driver()?.graphs.objects.get(object.0).ok_or(INVALID)
}

fn count_of(count: u32) -> Result<u32, CUresult> {
    Some(count).filter(|c| (1..=i32::MAX as u32).contains(c)).ok_or(INVALID)
}

pub(crate) unsafe fn cuUserObjectCreate(
    d: &Door,
    out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    count: u32,
    flags: u32,
) -> Answer {
    let driver = d.driver()?;
    if out.is_null() || flags != NO_DESTRUCTOR_SYNC {
        return Err(INVALID);
    }
    let object = Object::new(ptr, destroy.ok_or(INVALID)?, count_of(count)?);
    unsafe { put(out, CUuserObject(driver.graphs.objects.add(object))) }
}

pub(crate) unsafe fn cuUserObjectRetain(d: &Door, object: CUuserObject, count: u32) -> Answer {
    known(d, object)?.retain(count_of(count)?);
    Ok(())
}

pub(crate) unsafe fn cuUserObjectRelease(d: &Door, object: CUuserObject, count: u32) -> Answer {
    if known(d, object)?.release(count_of(count)?) {
        d.driver()?.graphs.objects.remove(object.0);
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphRetainUserObject(
    d: &Door,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Answer {
    let mut world = d.driver()?.graphs.world();
    let g = world.graph_mut(id(graph.0))?;
    let (o, count) = (known(d, object)?, count_of(count)?);
    if flags & !MOVE != 0 {
        return Err(INVALID);
    }
    if flags & MOVE == 0 {
        o.retain(count);
    }
    g.objects.take(object.0 as usize, &o, count);
    Ok(())
}

pub(crate) unsafe fn cuGraphReleaseUserObject(d: &Door, graph: CUgraph, object: CUuserObject, count: u32) -> Answer {
    let count = count_of(count)?;
    let mut world = d.driver()?.graphs.world();
    let held = world.graph_mut(id(graph.0))?.objects.give(object.0 as usize, count).ok_or(INVALID)?;
    drop(world);
    // The last reference calls the program's destructor.
    held.release(count);
    Ok(())
}

//! User objects, which graphs keep alive.

use super::{INVALID_GRAPH_CALL, handle_id};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::object::UserObject;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The destructor runs without synchronisation, the only supported mode.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The caller's references are transferred to the graph.
const MOVE_REFERENCES: u32 = 1;

fn known_object(d: &CallFrame, object: CUuserObject) -> Result<Arc<UserObject>, CUresult> {
    d.graph_tables()?.objects.get(object.0).ok_or(INVALID_GRAPH_CALL)
}

fn count_of(count: u32) -> Result<u32, CUresult> {
    Some(count).filter(|c| (1..=i32::MAX as u32).contains(c)).ok_or(INVALID_GRAPH_CALL)
}

pub(crate) unsafe fn cuUserObjectCreate(
    d: &CallFrame,
    out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    count: u32,
    flags: u32,
) -> CallResult {
    if out.is_null() || flags != NO_DESTRUCTOR_SYNC {
        return Err(INVALID_GRAPH_CALL);
    }
    let object = UserObject::new(ptr, destroy.ok_or(INVALID_GRAPH_CALL)?, count_of(count)?);
    unsafe { write_output(out, CUuserObject(d.graph_tables()?.objects.add(object))) }
}

pub(crate) unsafe fn cuUserObjectRetain(d: &CallFrame, object: CUuserObject, count: u32) -> CallResult {
    known_object(d, object)?.add_references(count_of(count)?);
    Ok(())
}

pub(crate) unsafe fn cuUserObjectRelease(d: &CallFrame, object: CUuserObject, count: u32) -> CallResult {
    if known_object(d, object)?.release(count_of(count)?) {
        d.graph_tables()?.objects.remove(object.0);
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphRetainUserObject(
    d: &CallFrame,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    let g = world.graph_mut(handle_id(graph.0))?;
    let (o, count) = (known_object(d, object)?, count_of(count)?);
    if flags & !MOVE_REFERENCES != 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    if flags & MOVE_REFERENCES == 0 {
        o.add_references(count);
    }
    g.objects.take_references(object.0 as usize, &o, count);
    Ok(())
}

pub(crate) unsafe fn cuGraphReleaseUserObject(
    d: &CallFrame,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> CallResult {
    let count = count_of(count)?;
    let mut world = d.graph_tables()?.lock_world();
    let held = world
        .graph_mut(handle_id(graph.0))?
        .objects
        .give_references(object.0 as usize, count)
        .ok_or(INVALID_GRAPH_CALL)?;
    drop(world);
    // The last reference calls the program's destructor.
    held.release(count);
    Ok(())
}

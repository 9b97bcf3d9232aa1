//! Graphs: what the program describes (`world`), what each node does (`node`), executable graphs (`exec`), how one runs
//! (`run`), the memory that allocation nodes take (`memory`), objects that graphs keep alive (`object`), a picture (`dot`).
//!
//! A graph is built by explicit calls, or by a capture (`crate::capture`) through the same functions of `world`. Not
//! simulated are nodes for semaphores of other APIs, for words of memory, for conditions, and launches from
//! the device. Inside a launch the nodes run one after another in one order that the edges allow, as all work of a
//! process does in this model. Not here: the C functions (`calls::graph`).

pub(crate) mod dot;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod object;
pub(crate) mod run;
pub(crate) mod world;

use crate::driver::hold;
use crate::objects::Registry;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use vgpu_sim::engine::GroupId;

/// The value of a handle. Handles of graphs and nodes are numbers that no one takes for addresses, and grow.
pub(crate) type Id = usize;

/// Everything about graphs in this process.
///
/// Locks are taken in the order executable graph, world, memory, tables of addresses. Effects of the engine take the
/// last only.
#[derive(Default)]
pub(crate) struct Graphs {
    world: Mutex<world::World>,
    pub(crate) execs: Registry<exec::Exec>,
    pub(crate) objects: Registry<object::Object>,
    pub(crate) memory: memory::GraphMemory,
    /// Streams, by device, that outlive all contexts: objects wait in them for the end of launches.
    keepers: Mutex<HashMap<i32, GroupId>>,
}

impl Graphs {
    /// Graphs and nodes.
    pub(crate) fn world(&self) -> MutexGuard<'_, world::World> {
        hold(&self.world)
    }
}

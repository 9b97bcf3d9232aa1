//! CUDA graphs: their description (`world`), the work of each node (`node`), executable graphs (`exec`), launches
//! (`run`), memory of allocation nodes (`memory`), objects that graphs keep alive (`object`), DOT output (`dot`).
//!
//! A graph is built by explicit calls, or by a capture (`crate::capture`) through the same functions of `world`.
//! Not simulated: nodes for semaphores of other APIs, for words of memory, for conditions; launches from the
//! device. Inside a launch the nodes run one after another in an order that the edges allow, like all work of a
//! process in this model.
//! Not here: the C functions (`calls::graph`).

pub(crate) mod dot;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod object;
pub(crate) mod run;
pub(crate) mod world;

use crate::objects::HandleRegistry;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::LazyLock;
use vgpu_sim::engine::GroupId;

/// All graphs and graph memory of this process.
///
/// Lock order: executable graph, world, memory, tables of addresses. Effects of the engine take only the last
/// one.
#[derive(Default)]
pub(crate) struct GraphTables {
    world: Mutex<world::GraphWorld>,
    pub(crate) execs: HandleRegistry<exec::ExecutableGraph>,
    pub(crate) objects: HandleRegistry<object::UserObject>,
    pub(crate) memory: memory::GraphMemory,
    /// Groups of streams, by device, that outlive all contexts. User objects wait in these streams for launches to
    /// end.
    keepers: Mutex<HashMap<i32, GroupId>>,
}

impl GraphTables {
    /// Locks the graphs and nodes.
    pub(crate) fn lock_world(&self) -> MutexGuard<'_, world::GraphWorld> {
        self.world.lock()
    }
}

/// The graphs of this process.
pub(crate) fn graph_tables() -> &'static GraphTables {
    static GRAPH_TABLES: LazyLock<GraphTables> = LazyLock::new(GraphTables::default);
    &GRAPH_TABLES
}

//! Prints a graph in the DOT language: nodes with their kinds, edges, child graphs as clusters.

use super::node::NodeKind;
use super::world::GraphWorld;
use crate::objects::GraphId;
use shim_sys::cuda::CUresult;
use std::fmt::Write as _;

/// Flag of `cuGraphDebugDotPrint`: print handles.
const SHOW_HANDLES: u32 = 1 << 10;
/// Flag of `cuGraphDebugDotPrint`: print everything.
const SHOW_ALL: u32 = 1;

/// The graph as DOT text.
pub(crate) fn dot_text(world: &GraphWorld, graph: GraphId, flags: u32) -> Result<String, CUresult> {
    let mut out = String::from("digraph vgpu_sim {\n");
    write_graph(world, graph, flags, 1, &mut out)?;
    out.push_str("}\n");
    Ok(out)
}

fn write_graph(world: &GraphWorld, graph: GraphId, flags: u32, depth: usize, out: &mut String) -> Result<(), CUresult> {
    let g = world.graph_by_id(graph)?;
    let margin = "  ".repeat(depth);
    for (i, (id, n)) in g.nodes.iter().enumerate() {
        let detail = match &n.kind {
            NodeKind::Kernel(k) => format!(" {}", k.f.entry.name),
            NodeKind::Copy(c) => format!(" {} bytes", c.params.WidthInBytes * c.params.Height * c.params.Depth),
            NodeKind::Fill(f) => format!(" {} x {}", f.params.width, f.params.height),
            NodeKind::Alloc(a) => format!(" {} bytes", a.region.bytes),
            _ => String::new(),
        };
        let handle = if flags & (SHOW_HANDLES | SHOW_ALL) != 0 { format!(" {id:#x}") } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{margin}n{id} [label=\"{i}: {}{detail}{handle}\"];", n.kind.kind_word());
        if let NodeKind::Child(inner) = n.kind {
            let _ = writeln!(out, "{margin}subgraph cluster_{inner} {{");
            write_graph(world, inner, flags, depth + 1, out)?;
            let _ = writeln!(out, "{margin}}}");
        }
    }
    for (from, to) in g.edges() {
        let _ = writeln!(out, "{margin}n{from} -> n{to};");
    }
    Ok(())
}

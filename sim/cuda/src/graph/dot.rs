//! Prints a graph in the DOT language: nodes with their kinds, edges, child graphs as clusters.

use super::Id;
use super::node::Kind;
use super::world::World;
use shim_sys::cuda::CUresult;
use std::fmt::Write as _;

/// Flag of `cuGraphDebugDotPrint`: print handles.
const HANDLES: u32 = 1 << 10;
/// Flag of `cuGraphDebugDotPrint`: print everything.
const VERBOSE: u32 = 1;

/// The graph as DOT text.
pub(crate) fn text(world: &World, graph: Id, flags: u32) -> Result<String, CUresult> {
    let mut out = String::from("digraph vgpu_sim {\n");
    inside(world, graph, flags, 1, &mut out)?;
    out.push_str("}\n");
    Ok(out)
}

fn inside(world: &World, graph: Id, flags: u32, depth: usize, out: &mut String) -> Result<(), CUresult> {
    let g = world.graph(graph)?;
    let margin = "  ".repeat(depth);
    for (i, (id, n)) in g.nodes.iter().enumerate() {
        let detail = match &n.kind {
            Kind::Kernel(k) => format!(" {}", k.f.entry.name),
            Kind::Copy(c) => format!(" {} bytes", c.params.WidthInBytes * c.params.Height * c.params.Depth),
            Kind::Fill(f) => format!(" {} x {}", f.params.width, f.params.height),
            Kind::Alloc(a) => format!(" {} bytes", a.region.bytes),
            _ => String::new(),
        };
        let handle = if flags & (HANDLES | VERBOSE) != 0 { format!(" {id:#x}") } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{margin}n{id} [label=\"{i}: {}{detail}{handle}\"];", n.kind.word());
        if let Kind::Child(inner) = n.kind {
            let _ = writeln!(out, "{margin}subgraph cluster_{inner} {{");
            inside(world, inner, flags, depth + 1, out)?;
            let _ = writeln!(out, "{margin}}}");
        }
    }
    for (from, to) in g.edges() {
        let _ = writeln!(out, "{margin}n{from} -> n{to};");
    }
    Ok(())
}

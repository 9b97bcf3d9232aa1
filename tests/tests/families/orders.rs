//! The meaning of a step in the present state: a command to a thread, and the change of state if it succeeds.

use crate::SHARING;
use crate::steps::{Act, Step};
use crate::world::{Busy, Effect, Order, Thing, World, grains, slabs};
use std::sync::atomic::Ordering::Relaxed;
use vgpu_tests::MIB;

const CHUNK: u64 = 2 * MIB;
const CHUNKS: u64 = 16;
/// Bytes that a pool may hold beyond the requests.
const POOL_GRAIN: u64 = 32 * MIB;
/// Array formats, with the bytes of one element of one channel.
const FORMATS: [(u32, u64); 6] = [(0x01, 1), (0x02, 2), (0x03, 4), (0x08, 1), (0x10, 2), (0x20, 4)];

impl World {
    /// The command for a step in the present state; `None` if the step has no meaning now.
    pub fn order(&mut self, step: &Step, busy: &mut Busy) -> Option<Order> {
        let (process, thread) = (step.process, step.thread);
        let size = |a: u64, b: u64| if b.is_multiple_of(3) { 1 + a % (192 * MIB) } else { 1 + a % (256 << 10) };
        let make = |world: &mut World, verb: &str, words: String, thing: Thing, cost: u64| {
            let number = world.number(process);
            let line = format!("{thread} {verb} {number} {words}");
            Some(Order { process, thread, line, effect: Effect::Make(number, thing), cost, body: None })
        };
        let own = |bytes| Thing::Own { bytes, at: 0, plain: false, context: None };
        match step.act {
            Act::Plain => {
                let bytes = size(step.a, step.b);
                let thing = Thing::Own { bytes: grains(bytes), at: 0, plain: true, context: None };
                make(self, "plain", bytes.to_string(), thing, slabs(bytes))
            }
            Act::Pitched => {
                let (width, height) = (1 + step.a % 8192, 1 + step.b % 4096);
                // The program's answer contains the pitch, from which the size is computed later.
                make(self, "pitched", format!("{width} {height}"), own(height), slabs(8704 * height))
            }
            Act::Managed => {
                let bytes = size(step.a, step.b);
                make(self, "managed", bytes.to_string(), own(grains(bytes)), slabs(bytes))
            }
            Act::Async => {
                let bytes = size(step.a, step.b);
                make(
                    self,
                    "async",
                    bytes.to_string(),
                    Thing::InPool { pool: None, bytes: grains(bytes) },
                    bytes + POOL_GRAIN,
                )
            }
            Act::Pool => {
                let threshold = [0, 64 * MIB, u64::MAX][step.a as usize % 3];
                make(self, "pool", threshold.to_string(), Thing::Pool, 0)
            }
            Act::Pooled => {
                let pool = self.pick(process, step.b, busy, |thing| *thing == Thing::Pool)?;
                busy.insert((process, pool));
                let bytes = size(step.a, step.b);
                let thing = Thing::InPool { pool: Some(pool), bytes: grains(bytes) };
                make(self, "pooled", format!("{bytes} {pool}"), thing, bytes + POOL_GRAIN)
            }
            Act::Trim => {
                let pool = self.pick(process, step.b, busy, |thing| *thing == Thing::Pool)?;
                let line = format!("{thread} trim {pool} {}", step.a % (64 * MIB));
                Some(Order { process, thread, line, effect: Effect::Nothing, cost: 0, body: None })
            }
            Act::Array => {
                let (format, element) = FORMATS[step.a as usize % FORMATS.len()];
                let channels = [1, 2, 4][step.b as usize % 3];
                let (width, height) = (1 + (step.a >> 8) % 2048, (step.b >> 8) % 2048);
                let depth = if height > 0 && step.a >> 40 & 3 == 0 { 1 + (step.b >> 40) % 8 } else { 0 };
                let bytes = width * height.max(1) * depth.max(1) * channels * element;
                let words = format!("{width} {height} {depth} {format} {channels}");
                make(self, "array", words, Thing::Array { bytes }, slabs(bytes))
            }
            Act::Mipmap => {
                let (format, element) = FORMATS[step.a as usize % FORMATS.len()];
                let (width, height) = (1 + (step.a >> 8) % 1024, 1 + (step.b >> 8) % 1024);
                let levels = 1 + (step.a >> 40) % u64::from(width.max(height).ilog2() + 1);
                let level = |l: u64| (width >> l).max(1) * (height >> l).max(1) * element;
                let bytes = (0..levels).map(level).sum();
                let words = format!("{width} {height} {levels} {format} 1");
                make(self, "mipmap", words, Thing::Array { bytes }, slabs(bytes))
            }
            Act::Create => {
                let (bytes, exportable) = ((1 + step.a % 4) * CHUNK, step.b.is_multiple_of(2) && SHARING.load(Relaxed));
                let words = format!("{bytes} {}", u8::from(exportable));
                // The body gets its number once the call has succeeded.
                let mut order = make(self, "create", words, Thing::Handle { body: usize::MAX }, bytes)?;
                order.body = Some((bytes, exportable));
                Some(order)
            }
            Act::Range => {
                let chunks = vec![None; CHUNKS as usize];
                make(self, "range", String::new(), Thing::Range { chunks, next: 0 }, 0)
            }
            Act::Map => {
                let range = self.pick(process, step.a, busy, |thing| matches!(thing, Thing::Range { .. }))?;
                let handle = self.pick(process, step.b, busy, |thing| matches!(thing, Thing::Handle { .. }))?;
                let Thing::Handle { body } = *self.thing(process, handle) else { return None };
                let Thing::Range { chunks: there, .. } = self.thing(process, range) else { return None };
                let chunks = self.bodies[body].bytes / CHUNK;
                let free = |at: &u64| (*at..at + chunks).all(|c| there[c as usize].is_none());
                let at = (0..=CHUNKS - chunks).find(free)?;
                busy.insert((process, range));
                busy.insert((process, handle));
                let line = format!("{thread} map {range} {handle} {at}");
                let effect = Effect::Map { range, at, body, chunks };
                Some(Order { process, thread, line, effect, cost: 0, body: None })
            }
            Act::Unmap => {
                let range = self.pick(process, step.a, busy, |thing| matches!(thing, Thing::Range { .. }))?;
                let Thing::Range { chunks, .. } = self.thing(process, range) else { return None };
                // From the start of a mapping to the end of it, or to the end of a later mapping without a gap between.
                let starts: Vec<u64> = (0..CHUNKS).filter(|c| starts_at(chunks, *c)).collect();
                let from = *starts.get(step.b as usize % starts.len().max(1))?;
                let mut to = from + 1;
                while to < CHUNKS && chunks[to as usize].is_some() && !starts_at(chunks, to) {
                    to += 1;
                }
                let further = step.b >> 32 & 1 == 0;
                while further && to < CHUNKS && chunks[to as usize].is_some() {
                    to += 1;
                }
                busy.insert((process, range));
                let line = format!("{thread} unmap {range} {from} {to}");
                let effect = Effect::Unmap { range, from, to };
                Some(Order { process, thread, line, effect, cost: 0, body: None })
            }
            Act::Retain => {
                let range = self.pick(process, step.a, busy, |thing| matches!(thing, Thing::Range { .. }))?;
                let Thing::Range { chunks, .. } = self.thing(process, range) else { return None };
                let filled: Vec<usize> = (0..CHUNKS as usize).filter(|c| chunks[*c].is_some()).collect();
                let at = *filled.get(step.b as usize % filled.len().max(1))?;
                let body = chunks[at]?.0;
                busy.insert((process, range));
                let words = format!("{range} {at} {}", self.bodies[body].bytes);
                make(self, "retain", words, Thing::Handle { body }, 0)
            }
            Act::Context => make(self, "context", String::new(), Thing::Context, u64::MAX / 4),
            Act::Inside => {
                let context = self.pick(process, step.b, busy, |thing| *thing == Thing::Context)?;
                busy.insert((process, context));
                let bytes = size(step.a, step.b);
                let thing = Thing::Own { bytes: grains(bytes), at: 0, plain: false, context: Some(context) };
                make(self, "inside", format!("{bytes} {context}"), thing, slabs(bytes))
            }
            Act::Module => make(self, "module", String::new(), Thing::Module, u64::MAX / 4),
            Act::Graph => {
                let bytes = size(step.a, step.b);
                make(self, "graph", format!("{bytes} {}", step.b >> 32 & 1), Thing::Graph, bytes + POOL_GRAIN)
            }
            Act::End => {
                let used: Vec<u64> = self.processes[process]
                    .things
                    .values()
                    .filter_map(|thing| match thing {
                        Thing::InPool { pool, .. } => *pool,
                        _ => None,
                    })
                    .collect();
                let number = self.pick(process, step.a, busy, |_| true)?;
                if let Thing::Opened { body } = *self.thing(process, number)
                    && self.bodies[body].exporter == Some(process)
                    && self.processes.iter().enumerate().any(|(other, p)| {
                        other != process && p.things.values().any(|thing| *thing == Thing::Opened { body })
                    })
                {
                    return None;
                }
                if used.contains(&number) {
                    return None; // another test destroys a pool that is in use
                }
                // A context's end frees its memory, so no other command may free that memory at the same moment.
                let inside = self.inside(process, number);
                if inside.iter().any(|inside| busy.contains(&(process, *inside))) {
                    return None;
                }
                busy.extend(inside.into_iter().map(|inside| (process, inside)));
                busy.insert((process, number));
                let line = format!("{thread} end {number}");
                Some(Order { process, thread, line, effect: Effect::End(number), cost: 0, body: None })
            }
            Act::Send | Act::External | Act::Offer | Act::Kill => None,
        }
    }
}

/// True if a mapping begins at this chunk.
fn starts_at(chunks: &[Option<(usize, u64)>], at: u64) -> bool {
    let at = at as usize;
    chunks[at].is_some() && (at == 0 || chunks[at - 1].map(|one| one.1) != chunks[at].map(|one| one.1))
}

//! The acts of a run and how they are drawn. Each step has a meaning in every state.

use std::collections::BTreeSet;

pub const PROCESSES: usize = 3;
pub const THREADS: usize = 3;

/// Kinds of acts, named as the verbs of `programs/families.c`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    Plain,
    Pitched,
    Managed,
    Async,
    Pool,
    Pooled,
    Trim,
    Array,
    Mipmap,
    Create,
    Range,
    Map,
    Unmap,
    Retain,
    Send,
    External,
    Offer,
    Context,
    Inside,
    Module,
    Graph,
    End,
    Kill,
}

/// Kinds of acts with the relative frequency at which they are drawn.
pub const WEIGHTS: [(Act, u32); 23] = [
    (Act::Plain, 8),
    (Act::Pitched, 4),
    (Act::Managed, 4),
    (Act::Async, 8),
    (Act::Pool, 2),
    (Act::Pooled, 5),
    (Act::Trim, 1),
    (Act::Array, 4),
    (Act::Mipmap, 3),
    (Act::Create, 9),
    (Act::Range, 3),
    (Act::Map, 16),
    (Act::Unmap, 7),
    (Act::Retain, 5),
    (Act::Send, 4),
    (Act::External, 2),
    (Act::Offer, 3),
    (Act::Context, 2),
    (Act::Inside, 5),
    (Act::Module, 2),
    (Act::Graph, 3),
    (Act::End, 16),
    (Act::Kill, 1),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub act: Act,
    pub process: usize,
    pub thread: usize,
    pub a: u64,
    pub b: u64,
    /// True if the step is sent together with the step before it, without waiting for that step's answer.
    pub together: bool,
}

/// Draws `count` steps of the allowed acts, by their weights.
pub fn draw_steps(random: &mut fastrand::Rng, count: usize, acts: &BTreeSet<Act>) -> Vec<Step> {
    let weights: Vec<(Act, u32)> = WEIGHTS.into_iter().filter(|(act, _)| acts.contains(act)).collect();
    let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let act = |random: &mut fastrand::Rng| {
        let mut at = random.u32(..sum);
        for (act, weight) in &weights {
            if at < *weight {
                return *act;
            }
            at -= weight;
        }
        Act::End
    };
    (0..count)
        .map(|_| Step {
            act: act(random),
            process: random.usize(..PROCESSES),
            thread: random.usize(..THREADS),
            a: random.u64(..),
            b: random.u64(..),
            together: random.u8(..3) == 0,
        })
        .collect()
}

/// True for acts between two processes and for kills, which run one at a time.
pub fn alone(act: Act) -> bool {
    matches!(act, Act::Send | Act::External | Act::Offer | Act::Kill)
}

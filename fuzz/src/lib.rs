//! What is promised of every byte that a tenant or an administrator can send: one function per entrance, which panics if
//! the promise is broken.
//!
//! The same functions run in two ways: under libFuzzer, which looks for inputs that reach new code (`make fuzz`,
//! [targets](../targets/src/main.rs), a package of its own), and on seeded random inputs in `cargo test` and `make soak`
//! ([`random`]), which need neither a C++ compiler nor time.
//!
//! - [`wire`]: lines of both protocols, in both directions, and the terms file
//! - [`pages`]: what a tenant writes into its report, and what the arbiter makes of it
//! - [`files`]: the configuration, and the administrator's line
//!
//! Not here: sockets (scheduler-sidecar/daemon/tests/soak.rs feeds nonsense to a running daemon).

pub mod files;
pub mod pages;
pub mod random;
pub mod wire;

/// An entrance.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: `make fuzz TARGETS=name`.
    pub name: &'static str,
    /// Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs that are understood, to begin from.
    pub seeds: &'static [&'static [u8]],
    /// Words that inputs are made of.
    pub words: &'static [&'static str],
    /// Longest input worth trying, in bytes.
    pub longest: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "ask", run: wire::ask, seeds: wire::ASKS, words: wire::WORDS, longest: 4200 },
    Target { name: "reply", run: wire::reply, seeds: wire::REPLIES, words: wire::WORDS, longest: 4200 },
    Target { name: "terms", run: wire::terms, seeds: wire::TERMS, words: wire::WORDS, longest: 8192 },
    Target { name: "report", run: pages::report, seeds: pages::SEEDS, words: &[], longest: 4096 },
    Target { name: "arbiter", run: pages::arbiter, seeds: pages::SEEDS, words: &[], longest: 4096 },
    Target { name: "config", run: files::config, seeds: files::CONFIGS, words: files::WORDS, longest: 8192 },
    Target { name: "admin", run: files::admin, seeds: files::QUESTIONS, words: files::KEYS, longest: 4200 },
];

//! Pools that only grow: llama.cpp and what is built on it, such as Ollama (ggml-org/llama.cpp,
//! ggml/src/ggml-cuda/ggml-cuda.cu, the pool of virtual memory). The pool reserves 32 GiB, releases each handle while
//! it is mapped, sets the access again, and ends with one unmap. The size of a model follows from cuMemGetInfo.
//!
//! Calls of: llama.cpp and Ollama (growing pool)

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// Addresses that the pool reserves.
const RESERVED: u64 = 32 * GIB;

/// A pool with its size in bytes.
struct Pool {
    at: u64,
    bytes: u64,
}

impl Pool {
    #[track_caller]
    fn new(member: &mut Member) -> Pool {
        Pool { at: number(member, &format!("reserve {RESERVED}")), bytes: 0 }
    }

    #[track_caller]
    fn grow(&mut self, member: &mut Member, bytes: u64) -> i64 {
        let created = member.ask(&format!("create {bytes} 0 0"));
        if created.code != 0 {
            return created.code;
        }
        let (at, handle) = (self.at + self.bytes, created.number(0));
        member.ok(&format!("map {at} {bytes} {handle}"));
        member.ok(&format!("release {handle}"));
        member.ok(&format!("allow {at} {bytes} 0 1"));
        self.bytes += bytes;
        0
    }

    #[track_caller]
    fn end(self, member: &mut Member) {
        member.ok(&format!("unmap {} {}", self.at, self.bytes));
        member.ok(&format!("unreserve {} {RESERVED}", self.at));
    }
}

#[test]
fn a_pool_that_grows_is_charged_by_its_size_until_one_unmap_ends_it() {
    let lab = lab("h200", "4GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    let mut pool = Pool::new(&mut m);
    for step in 1..=40 {
        assert_eq!(pool.grow(&mut m, step * PAGE), 0, "step {step}");
        assert_eq!(agrees(&lab, &mut m), begin + pool.bytes, "step {step}");
    }
    let room = 4 * GIB - agrees(&lab, &mut m);
    assert_eq!(pool.grow(&mut m, room / PAGE * PAGE + PAGE), OUT_OF_MEMORY);
    assert_eq!(agrees(&lab, &mut m), begin + pool.bytes, "a refused step changes nothing");
    assert_eq!(pool.grow(&mut m, room / PAGE * PAGE), 0, "the last page");
    pool.end(&mut m);
    assert_eq!(agrees(&lab, &mut m), begin);
}

#[test]
fn a_model_sized_by_the_free_memory_fits_the_quota_to_its_last_page() {
    for limit in [1, 3, 11, 80] {
        let lab = lab("h200", &format!("{limit}GiB"));
        let mut m = program(&lab);
        let (free, total) = m.info();
        assert_eq!(total, limit * GIB);
        // Weights are plain allocations, the pool gets the rest.
        let pages = free / PAGE;
        let weights: Vec<u64> = [pages / 2, pages / 4].iter().map(|pages| m.alloc(pages * PAGE)).collect();
        let mut pool = Pool::new(&mut m);
        let rest = (pages - pages / 2 - pages / 4) * PAGE;
        for part in [rest / PAGE / 2 * PAGE, rest - rest / PAGE / 2 * PAGE] {
            assert_eq!(pool.grow(&mut m, part), 0, "{limit} GiB: {part} of {free}");
        }
        assert_eq!(pool.grow(&mut m, PAGE), OUT_OF_MEMORY, "{limit} GiB are full");
        assert!(agrees(&lab, &mut m) <= limit * GIB);
        weights.iter().for_each(|at| _ = m.ok(&format!("free {at}")));
        pool.end(&mut m);
        assert_eq!(m.info(), (free, total));
    }
}

#[test]
fn a_pool_that_grows_gets_the_drivers_answers() {
    same_answers("t4", "12GiB", |_, m| {
        let mut pool = Pool::new(m);
        let grown: Vec<i64> = (1..6).map(|step| pool.grow(m, step * 32 * MIB)).collect();
        let part = m.code(&format!("unmap {} {PAGE}", pool.at)); // a part of a mapping
        let all = m.code(&format!("unmap {} {RESERVED}", pool.at));
        pool.end(m);
        (grown, part, all)
    });
}

//! Elastic KV caches: kvcached under vLLM and SGLang (ovg-project/kvcached, csrc/ftensor.cpp and csrc/page.cpp). All
//! pages of a large reservation show one zero page; a page gets memory of its own while it is in use.
//!
//! Calls of: kvcached (elastic KV cache under vLLM and SGLang)

use crate::*;
use vgpu_tests::{GIB, OUT_OF_MEMORY};

/// Bytes of addresses of a cache, far more than the device has memory.
const RESERVED: u64 = 1 << 42;
/// Address that the client asks for.
const BASE: u64 = 0x1000_0000_0000;

/// A cache of `pages` pages that all show one zero page.
struct Cache {
    at: u64,
    pages: u64,
    zero: u64,
}

impl Cache {
    #[track_caller]
    fn new(member: &mut Member, pages: u64) -> Cache {
        let at = number(member, &format!("reserve {RESERVED} {PAGE} {BASE}"));
        let zero = number(member, &format!("create {PAGE} 0 0"));
        member.ok(&format!("map-pages {at} {PAGE} {zero} {pages}"));
        Cache { at, pages, zero }
    }

    /// Gives a page memory of its own; a refused page shows the zero page again.
    #[track_caller]
    fn come(&self, member: &mut Member, page: u64) -> Result<u64, i64> {
        let at = self.at + page * PAGE;
        member.ok(&format!("unmap {at} {PAGE}"));
        let mapped = try_to_map(member, at, PAGE, 0);
        if mapped.is_err() {
            member.ok(&format!("map-pages {at} {PAGE} {} 1", self.zero));
        }
        mapped
    }

    #[track_caller]
    fn go(&self, member: &mut Member, page: u64, handle: u64) {
        let at = self.at + page * PAGE;
        member.ok(&format!("unmap {at} {PAGE}"));
        member.ok(&format!("map-pages {at} {PAGE} {} 1", self.zero));
        member.ok(&format!("release {handle}"));
    }

    /// One unmap of everything, while the handles still exist.
    #[track_caller]
    fn end(&self, member: &mut Member, handles: &[u64]) {
        member.ok(&format!("unmap {} {}", self.at, self.pages * PAGE));
        member.ok(&format!("unreserve {} {RESERVED}", self.at));
        handles.iter().for_each(|handle| _ = member.ok(&format!("release {handle}")));
        member.ok(&format!("release {}", self.zero));
    }
}

#[test]
fn an_elastic_cache_of_ten_thousand_mappings_of_one_handle_costs_one_page() {
    let lab = lab("h200", "1GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    let cache = Cache::new(&mut m, 10_000);
    assert_eq!(agrees(&lab, &mut m), begin + PAGE);
    assert_eq!(lab.process(0, m.pid).allocations, 1);
    cache.end(&mut m, &[]);
    assert_eq!(agrees(&lab, &mut m), begin);
}

/// The end of one cache must not hold up the other threads of its process. If the work grows with the square of the
/// number of mappings, it exceeds the time limit of an answer.
#[test]
fn an_elastic_cache_of_a_million_mappings_ends_without_a_long_wait() {
    let lab = lab("h200", "1GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    let cache = Cache::new(&mut m, 1_000_000);
    assert_eq!(agrees(&lab, &mut m), begin + PAGE);
    cache.end(&mut m, &[]);
    assert_eq!(agrees(&lab, &mut m), begin);
}

#[test]
fn pages_that_come_and_go_in_an_elastic_cache_are_charged_one_by_one() {
    let lab = lab("h200", "2GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m) + PAGE;
    let cache = Cache::new(&mut m, 256);
    let mut live = Vec::new();
    for page in 0..100 {
        live.push((page * 2, cache.come(&mut m, page * 2).expect("it fits")));
        assert_eq!(agrees(&lab, &mut m), begin + live.len() as u64 * PAGE);
        if page % 3 == 0 {
            let (page, handle) = live.swap_remove(live.len() / 2);
            cache.go(&mut m, page, handle);
            assert_eq!(agrees(&lab, &mut m), begin + live.len() as u64 * PAGE);
        }
    }
    let handles: Vec<u64> = live.into_iter().map(|(_, handle)| handle).collect();
    cache.end(&mut m, &handles);
    assert_eq!(agrees(&lab, &mut m), begin - PAGE);
}

#[test]
fn a_page_that_does_not_fit_leaves_an_elastic_cache_and_the_ledger_as_they_were() {
    let lab = lab("h200", "1GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    let cache = Cache::new(&mut m, 600);
    let mut live = Vec::new();
    let refused = loop {
        match cache.come(&mut m, live.len() as u64) {
            Ok(handle) => live.push(handle),
            Err(code) => break code,
        }
    };
    assert_eq!(refused, OUT_OF_MEMORY);
    assert_eq!(live.len() as u64, (GIB - begin) / PAGE - 1, "all that fits was granted");
    let full = agrees(&lab, &mut m);
    for (round, page) in (0..20).zip(live.iter_mut()) {
        assert_eq!(cache.come(&mut m, 599), Err(OUT_OF_MEMORY));
        assert_eq!(agrees(&lab, &mut m), full, "round {round}");
        cache.go(&mut m, round, *page);
        *page = cache.come(&mut m, round).expect("the page that went");
        assert_eq!(agrees(&lab, &mut m), full, "round {round}");
    }
    cache.end(&mut m, &live);
    assert_eq!(agrees(&lab, &mut m), begin);
}

#[test]
fn an_elastic_cache_gets_the_drivers_answers_to_the_last_one() {
    same_answers("t4", "8GiB", |_, m| {
        let cache = Cache::new(m, 50);
        let page = cache.come(m, 7).expect("it fits");
        let codes = [
            m.code(&format!("unmap {} {RESERVED}", cache.at)),
            m.code(&format!("map {} {PAGE} {}", cache.at, cache.zero)),
            m.code(&format!("map {} {PAGE} {page}", cache.at + RESERVED)),
            m.code(&format!("unreserve {} {PAGE}", cache.at)),
        ];
        assert!(codes.iter().all(|code| *code != 0), "{codes:?}");
        cache.end(m, &[page]);
        (codes, m.code(&format!("unmap {} {PAGE}", cache.at)), m.code(&format!("release {page}")))
    });
}

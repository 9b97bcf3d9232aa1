//! A second preloaded library that serves the runtime's allocations with virtual memory: torch_memory_saver
//! (fzyzcjy/torch_memory_saver, csrc/entrypoint.cpp and csrc/core.cpp). It is loaded before this library or after it.
//!
//! Calls of: torch_memory_saver (second preload)

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// Runs the client with these preloads; its answers, and the bytes on the device meanwhile.
#[track_caller]
fn served(saver_first: Option<bool>) -> (Vec<i64>, Vec<u64>) {
    let mut lab = lab("h200", "4GiB");
    let (saver, library) = (compile("saver", Kind::LinkedLibrary, &[]), lab.lib().to_owned());
    match saver_first {
        Some(true) => lab.preload(&[&saver, &library]),
        Some(false) => lab.preload(&[&library, &saver]),
        None => lab.preload(&[&saver]),
    }
    let mut m = Member::start(&mut lab.command(compile("saver", Kind::Program, &["PROGRAM"])));
    m.begin();
    let begin = lab.device(0).used;
    let mut bytes = Vec::new();
    let mut seen = |m: &mut Member| {
        bytes.push(lab.device(0).used - begin);
        if saver_first.is_some() {
            agrees(&lab, m);
        }
    };
    let first = number(&mut m, &format!("malloc {GIB}"));
    seen(&mut m);
    let second = number(&mut m, &format!("malloc {}", GIB + 100));
    seen(&mut m);
    let mut codes = vec![m.code("saver_pause")];
    seen(&mut m);
    codes.push(m.code("saver_pause"));
    codes.push(m.code("saver_resume"));
    seen(&mut m);
    codes.push(m.code(&format!("free {first}")));
    seen(&mut m);
    codes.push(m.code("saver_pause"));
    codes.push(m.code(&format!("free {second}")));
    codes.push(m.code(&format!("free {second}")));
    seen(&mut m);
    if saver_first.is_some() {
        let (free, total) = m.info();
        assert_eq!(total, 4 * GIB, "the limit");
        assert_eq!(m.code(&format!("malloc {}", free / PAGE * PAGE + PAGE)), OUT_OF_MEMORY);
        let all = number(&mut m, &format!("malloc {}", free / PAGE * PAGE));
        assert_eq!(m.code(&format!("malloc {MIB}")), OUT_OF_MEMORY);
        m.ok("saver_pause");
        m.ok(&format!("free {all}"));
        assert_eq!(m.info(), (free, total));
    }
    (codes, bytes)
}

#[test]
fn a_second_preload_that_serves_allocations_is_limited_in_both_orders() {
    let alone = served(None);
    assert_eq!(alone.1, [GIB, 2 * GIB + PAGE, 0, 2 * GIB + PAGE, GIB + PAGE, 0]);
    for saver_first in [true, false] {
        assert_eq!(served(Some(saver_first)), alone, "the second preload first: {saver_first}");
    }
}

//! Parts of the hot path, each measured alone: ledger, account, parsing of sizes. No driver, no other process.
//!
//! `vgpu-overhead` measures the cost for a user; this bench shows which part of it grew.

use criterion::{Criterion, criterion_group, criterion_main};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hint::black_box;
use vgpu_core::memory::ledger::{Kernel, LedgerPage, Watched};
use vgpu_core::time::account::Account;
use vgpu_core::units::bytes::parse_size;
use vgpu_core::units::share::parse_share;

/// A kernel with uncontended locks and a clock that stands still.
#[derive(Default)]
struct UncontendedKernel(RefCell<BTreeSet<usize>>);

impl Kernel for UncontendedKernel {
    fn try_lock_slot(&self, index: usize) -> bool {
        self.0.borrow_mut().insert(index)
    }
    fn unlock_slot(&self, _index: usize) {}
    fn try_lock_share(&self, _index: usize) -> bool {
        true
    }
    fn try_hold_share(&self, _index: usize) -> bool {
        true
    }
    fn unlock_share(&self, _index: usize) {}
    fn try_lock_kept(&self, _index: usize) -> bool {
        true
    }
    fn try_keep_share(&self, _index: usize) -> bool {
        true
    }
    fn unlock_kept(&self, _index: usize) {}
    fn is_closed(&self, _keeper: u32, _watched: Watched, _identity: u64) -> bool {
        false
    }
    fn lock_turn(&self, _deadline: u64) -> bool {
        true
    }
    fn unlock_turn(&self) {}
    fn now(&self) -> u64 {
        0
    }
    fn wait(&self, _round: u32) {}
}

fn bench_ledger(c: &mut Criterion) {
    let mut group = c.benchmark_group("ledger: reserve, commit, release");
    for members in [1, 8, 64] {
        let (page, kernel) = (LedgerPage::zeroed(), UncontendedKernel::default());
        let all: Vec<_> =
            (0..members).map(|pid| page.as_ledger().join(pid, 0, &kernel).expect("a free slot")).collect();
        assert!(all.iter().enumerate().all(|(index, member)| member.index() == index), "each has a slot of its own");
        group.bench_function(format!("{members} members"), |b| {
            b.iter(|| {
                all[0].reserve(black_box(4096), 1 << 30, &kernel).expect("fits").commit();
                all[0].release(black_box(4096));
            });
        });
    }
}

fn bench_account(c: &mut Criterion) {
    let share = parse_share("30").expect("a share").expect("a limit");
    c.bench_function("account: admit", |b| {
        let account = Account::default();
        b.iter(|| account.admit_launch(black_box(1_000_000_000)));
    });
    c.bench_function("account: charge", |b| {
        let (mut account, mut now) = (Account::default(), 1_000_000_000);
        b.iter(|| {
            now += 10_000;
            account.charge(black_box(1000), share, now);
        });
    });
}

fn bench_sizes(c: &mut Criterion) {
    c.bench_function("bytes: read 1.5GiB", |b| b.iter(|| parse_size(black_box("1.5GiB"))));
}

criterion_group! {
    name = parts;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2))
        .sample_size(50);
    targets = bench_ledger, bench_account, bench_sizes
}
criterion_main!(parts);

//! The pages under a model checker: no torn word, no unseen launch, no lost ring, no sleeper that stays asleep.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-core --release --lib loom_page`
//!
//! A futex and an eventfd are modelled by a lock and a condition variable, with the kernel's ordering. Loom reports a
//! sleeper that is never woken as a deadlock. Every reader is a thread of its own: with a bound on preemptions, loom
//! hardly ever interrupts the thread that starts the others. Each test failed once with a faulty change to the code.
//! "Red when ..." at the test names that change.

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::limits::Mode;
use crate::time::arbiter::{Gate, Terms};
use crate::time::gate::loss::OnLoss;

const EPOCH: u64 = 7;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// FUTEX_WAIT compares under the kernel's lock, and FUTEX_WAKE takes that lock too.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    condition: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let guard = self.lock.lock().unwrap();
        if word.load(Ordering::SeqCst) == seen {
            drop(self.condition.wait(guard).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.condition.notify_all();
    }
}

/// An eventfd, and an epoll that waits for it.
#[derive(Default)]
struct Eventfd {
    rung: Mutex<bool>,
    condition: Condvar,
}

impl Eventfd {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.condition.notify_all();
    }

    /// Waits for a ring and clears it.
    fn answer(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.condition.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn taken() -> BoardSlot {
    let slot = BoardSlot::zeroed();
    let (mode, on_loss) = (Mode::Enforce, OnLoss::Local);
    let terms = Terms { quantum: Some(4), ..Terms::default() };
    let uncharged = Uncharged::default();
    slot.take_slot(
        &AllowedUse { device: 1, member: 2, memory: None, uncharged, terms, in_flight: 2, mode, on_loss },
        EPOCH,
    );
    slot
}

fn run(lease: u64) -> Gate {
    Gate::Run { lease, until: lease, exclusive: true, ceiling: None, wide: false }
}

/// Red when words are stored relaxed, without either fence of the reader, or when it reads the counter only once.
#[test]
fn loom_page_a_record_is_read_whole_or_not_at_all() {
    check(|| {
        let record = Arc::new(Sequenced::<2>::zeroed());
        let writer = {
            let record = Arc::clone(&record);
            thread::spawn(move || {
                for value in 1..=2 {
                    record.write(|head, words| (*head, *words) = (value, [u64::from(value); 2]));
                }
            })
        };
        let reader = {
            let record = Arc::clone(&record);
            thread::spawn(move || {
                if let Ok(state) = record.read::<2>() {
                    assert_eq!(state.words, [u64::from(state.head); 2]);
                    assert_eq!(state.sequence, 2 * state.head);
                }
            })
        };
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(record.read::<2>().unwrap().head, 2);
    });
}

/// Red when a gate's end is written outside the record.
#[test]
fn loom_page_a_grant_is_read_as_it_was_made() {
    check(|| {
        let slot = Arc::new(taken());
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.change_gate(&run(5)))
        };
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || match slot.read_grant(EPOCH) {
                Ok(grant) => assert!([Gate::Wait, run(5)].contains(&grant.gate), "{grant:?}"),
                Err(why) => assert!(matches!(why, UnreadSlot::Busy { .. }), "{why}"),
            })
        };
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(slot.read_grant(EPOCH).unwrap().gate, run(5));
    });
}

/// Red when a reader does not read the counter again, or without its first fence.
#[test]
fn loom_page_whoever_sleeps_for_a_gate_is_woken_when_it_opens() {
    check(|| {
        let (slot, futex) = (Arc::new(taken()), Arc::new(Futex::default()));
        let member = {
            let (slot, futex) = (Arc::clone(&slot), Arc::clone(&futex));
            thread::spawn(move || {
                loop {
                    match slot.read_grant(EPOCH) {
                        Ok(grant) if grant.gate != Gate::Wait => return grant.gate,
                        Ok(LaunchGrant { sequence, .. }) | Err(UnreadSlot::Busy { sequence }) => {
                            futex.wait(slot.futex_word(), sequence);
                        }
                        Err(why) => panic!("{why}"),
                    }
                }
            })
        };
        slot.change_gate(&run(5));
        futex.wake();
        assert_eq!(member.join().unwrap(), run(5));
    });
}

/// Red when `end` changes the epoch without the counter.
#[test]
fn loom_page_whoever_sleeps_when_an_epoch_ends_is_woken_and_told_the_new_one() {
    check(|| {
        let (slot, futex) = (Arc::new(taken()), Arc::new(Futex::default()));
        let member = {
            let (slot, futex) = (Arc::clone(&slot), Arc::clone(&futex));
            thread::spawn(move || {
                loop {
                    match slot.read_grant(EPOCH) {
                        Ok(LaunchGrant { sequence, .. }) | Err(UnreadSlot::Busy { sequence }) => {
                            futex.wait(slot.futex_word(), sequence);
                        }
                        Err(why) => return why,
                    }
                }
            })
        };
        slot.end_epoch(EPOCH + 1);
        futex.wake();
        assert_eq!(member.join().unwrap(), UnreadSlot::Ended { epoch: EPOCH + 1 });
    });
}

/// Red without the fence of `launches`, or without that of `write`.
#[test]
fn loom_page_of_a_launch_and_a_gate_that_shuts_one_sees_the_other() {
    check(|| {
        let (slot, report) = (Arc::new(taken()), Arc::new(ReportSlot::zeroed()));
        slot.change_gate(&run(5));
        let seen = slot.read_grant(EPOCH).unwrap().sequence;
        let member = {
            let (slot, report) = (Arc::clone(&slot), Arc::clone(&report));
            thread::spawn(move || {
                report.report_launch(1, 1, 1, 1);
                slot.is_unchanged(seen)
            })
        };
        slot.change_gate(&Gate::Wait);
        let usage = ReportHistory::new(0).read_report(&report, 2);
        let launched = member.join().unwrap();
        assert!(usage.in_flight != Some(0) || !launched, "a launch that the daemon does not know of");
    });
}

/// Red without the fence of `say`, or when it writes `in_flight` before the sums.
#[test]
fn loom_page_a_drain_is_seen_or_rung_for_and_what_is_drained_is_paid() {
    check(|| {
        let (slot, report) = (Arc::new(taken()), Arc::new(ReportSlot::zeroed()));
        let bell = Arc::new(Eventfd::default());
        slot.change_gate(&run(5));
        let seen = slot.read_grant(EPOCH).unwrap().sequence;
        report.report_launch(9, 9, 1, 1);
        let member = {
            let (slot, report, bell) = (Arc::clone(&slot), Arc::clone(&report), Arc::clone(&bell));
            thread::spawn(move || {
                report.report_all(&MemberReport {
                    busy: 8,
                    finished: 9,
                    submitted: 9,
                    in_flight: Some(0),
                    last_launch: 1,
                    since: 1,
                    launched: 1,
                    known: 9,
                });
                if !slot.is_unchanged(seen) {
                    bell.ring();
                }
            })
        };
        slot.change_gate(&Gate::Wait);
        let mut witness = ReportHistory::new(0);
        loop {
            let usage = witness.read_report(&report, 100);
            if usage.in_flight == Some(0) {
                assert_eq!((usage.busy, usage.finished), (8, 9), "drained, and not paid");
                break;
            }
            bell.answer();
        }
        member.join().unwrap();
    });
}

/// Red when the bell is cleared after the launch requests were read, or when a member rings before it writes its
/// request.
#[test]
fn loom_page_a_wish_is_never_lost() {
    check(|| {
        let (reports, bell) = (Arc::new([ReportSlot::zeroed(), ReportSlot::zeroed()]), Arc::new(Eventfd::default()));
        let members = [0, 1].map(|at| {
            let (reports, bell) = (Arc::clone(&reports), Arc::clone(&bell));
            thread::spawn(move || {
                if reports[at].begin_waiting() {
                    bell.ring();
                }
            })
        });
        let mut heard = [false; 2];
        while heard != [true; 2] {
            bell.answer();
            for (heard, report) in heard.iter_mut().zip(reports.iter()) {
                *heard |= ReportHistory::new(0).read_report(report, 1).wants;
            }
        }
        for member in members {
            member.join().unwrap();
        }
    });
}

/// Red when a request that has ended leaves its word behind.
#[test]
fn loom_page_a_wish_that_comes_back_rings_again() {
    check(|| {
        let (report, bell) = (Arc::new(ReportSlot::zeroed()), Arc::new(Eventfd::default()));
        let served = Arc::new(Mutex::new(false));
        let member = {
            let (report, bell, served) = (Arc::clone(&report), Arc::clone(&bell), Arc::clone(&served));
            thread::spawn(move || {
                for last in [false, true] {
                    *served.lock().unwrap() = last;
                    if report.begin_waiting() {
                        bell.ring();
                    }
                    if !last {
                        report.stop_waiting();
                    }
                }
            })
        };
        // The first request may have ended before it is read; the last one stays until it is seen.
        loop {
            bell.answer();
            if ReportHistory::new(0).read_report(&report, 1).wants && *served.lock().unwrap() {
                break;
            }
        }
        member.join().unwrap();
    });
}

//! The primary context of each device: its handle, how often the program has retained it, and whose turn it is to
//! retain or end it.

use crate::ffi::arch::this_thread;
use crate::ffi::clock;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Primary contexts by CUDA ordinal, as the driver returned them last.
pub static PRIMARY_CONTEXTS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// How often the program has retained each primary context.
pub static RETAIN_COUNTS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Threads that are about to retain each primary context. An end waits for them, and they wait for an end. So when
/// the driver is asked whether the context is active, the answer is about the one that was to end.
pub static RETAINING_THREADS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// The thread that has its turn at each primary context; 0: none; see [`PrimaryTurn`].
pub static PRIMARY_TURNS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Clears the parent's primary contexts in a forked child.
pub fn reset_after_fork() {
    for word in PRIMARY_CONTEXTS.iter().chain(&RETAIN_COUNTS).chain(&RETAINING_THREADS).chain(&PRIMARY_TURNS) {
        word.store(0, Relaxed);
    }
}

/// One thread's exclusive turn at a primary context: no other thread gets the context before its overhead is charged.
/// Otherwise a thread that gets it earlier could fill the limit meanwhile, or keep alive a context that does not fit
/// and is released again.
///
/// Threads that create other contexts of unknown size take it too, one after the other: each measurement must show one
/// context alone.
///
/// The turn is held during the driver call, which may call back into a hook: a thread that has the turn needs no
/// second one. `None` stands for that.
pub struct PrimaryTurn(Option<&'static AtomicUsize>);

/// Longer than any driver takes to create a context: 60 s.
pub const PRIMARY_TURN_TIMEOUT_NS: u64 = 60_000_000_000;

impl PrimaryTurn {
    /// Waits for the turn, as the driver makes threads wait for a context that another one creates. A thread that has
    /// kept its turn for `patience` nanoseconds loses it: it is assumed never to return, and later threads need not
    /// wait for it.
    pub fn wait_for_turn(turn: &'static AtomicUsize, patience: u64) -> PrimaryTurn {
        let me = this_thread();
        let (mut had_by, mut since) = (0, clock::now());
        loop {
            match turn.compare_exchange(0, me, SeqCst, SeqCst) {
                Ok(_) => return PrimaryTurn(Some(turn)),
                Err(owner) if owner == me => return PrimaryTurn(None),
                Err(owner) if owner != had_by => (had_by, since) = (owner, clock::now()),
                Err(owner) if clock::now().saturating_sub(since) >= patience => {
                    if turn.compare_exchange(owner, me, SeqCst, Relaxed).is_ok() {
                        return PrimaryTurn(Some(turn));
                    }
                }
                Err(_) => {}
            }
            clock::sleep(50_000);
        }
    }
}

impl Drop for PrimaryTurn {
    fn drop(&mut self) {
        // No effect if another thread has taken the turn over.
        self.0.into_iter().for_each(|turn| _ = turn.compare_exchange(this_thread(), 0, SeqCst, Relaxed));
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // threads of a test's own
mod tests {
    use super::*;

    const LONG: u64 = 3_600_000_000_000;

    #[test]
    fn a_thread_that_retains_inside_its_own_retain_does_not_wait_for_itself() {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let done = std::sync::Arc::new(AtomicUsize::new(0));
        let inside = done.clone();
        let thread = std::thread::spawn(move || {
            let _outer = PrimaryTurn::wait_for_turn(&TURN, LONG);
            drop(PrimaryTurn::wait_for_turn(&TURN, LONG));
            inside.store(TURN.load(SeqCst), SeqCst);
            this_thread()
        });
        let begin = clock::now();
        while !thread.is_finished() {
            assert!(clock::now() - begin < 20_000_000_000, "it waits for itself");
            clock::sleep(1_000_000);
        }
        assert_eq!(done.load(SeqCst), thread.join().unwrap(), "the outer one keeps the turn");
        assert_eq!(TURN.load(SeqCst), 0);
    }

    #[test]
    fn a_holder_that_never_returns_is_waited_for_once_and_clears_nobody_elses_turn() {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let (me, stuck) = (this_thread(), PrimaryTurn(Some(&TURN)));
        TURN.store(me, SeqCst);
        std::thread::spawn(move || {
            let taken = PrimaryTurn::wait_for_turn(&TURN, 10_000_000);
            let owner = TURN.load(SeqCst);
            assert_eq!(owner, this_thread(), "it is taken over");
            // The lost holder's drop runs on its own thread, so it is imitated here.
            assert!(TURN.compare_exchange(me, 0, SeqCst, SeqCst).is_err());
            drop(taken);
            assert_eq!(TURN.load(SeqCst), 0);
            // No thread waits for the lost holder again.
            core::mem::forget(PrimaryTurn::wait_for_turn(&TURN, LONG));
        })
        .join()
        .unwrap();
        let others = TURN.load(SeqCst);
        assert!(others != 0 && others != me);
        drop(stuck);
        assert_eq!(TURN.load(SeqCst), others, "another's turn stands");
    }
}

//! Work that went through an open gate: its streams, their answers, and the charge for it.
//!
//! One thread at a time asks them, without the lock: from [`Lease::streams_to_ask`] or [`Lease::begin_stream_end`] to
//! [`Lease::finish_asking`]. Streams and contexts that end wait for it. Not here: the queries
//! ([`crate::time::governor`]).

use super::{Lease, MAX_OPEN_STREAMS, OpenStream, StreamAnswer};
use crate::daemon::link::DaemonLink;
use crate::driver::launch::MeteredLaunch;
use shim_sys::cuda::CUevent;
use vgpu_core::memory::pool::NO_STREAM;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::BASE;
use vgpu_core::time::gate::LaunchGate;

impl OpenStream {
    /// The stream's context, as a word.
    fn context_word(&self) -> usize {
        self.launch.context.0 as usize
    }

    /// True if this is the stream that was asked.
    fn is_same(&self, asked: &Self) -> bool {
        self.place == asked.place && self.mark == asked.mark
    }
}

impl Lease {
    /// Notes a launch through the open gate. Returns whether the gate is still open after that was reported.
    pub fn goes_blind(&mut self, launch: &MeteredLaunch, post: &DaemonLink, keeper: &LaunchGate, now: u64) -> bool {
        let Some(place) = self.place else { return true };
        let place_of = launch.stream_location();
        if !self.streams.iter().any(|known| known.place == place_of) {
            if self.streams.len() < MAX_OPEN_STREAMS {
                self.streams.push(OpenStream { place: place_of, launch: *launch, mark: None });
            } else {
                self.crowded = true;
            }
        }
        if self.wants {
            self.is_content(place);
        }
        (self.blind, self.last) = (true, now);
        self.write_report(post, keeper, now);
        let stands = place.board_slot().is_unchanged(self.sequence);
        self.launched = self.launched.wrapping_add(u64::from(stands));
        stands
    }

    /// The gate is open: further work in these streams follows their marks.
    pub(super) fn note_open(&mut self) {
        (self.shut, self.paid, self.stale) = (0, 0, self.asked);
        for stream in self.streams.iter_mut().filter(|stream| stream.place.key != NO_STREAM) {
            self.unused.extend(stream.mark.take().map(|mark| (stream.launch.context.0 as usize, mark)));
        }
    }

    /// The streams to ask before the work in flight is known again; the answers go to [`Self::apply_answers`].
    /// `None`: it is known, or another thread is asking.
    pub fn streams_to_ask(&mut self) -> Option<Vec<OpenStream>> {
        if !self.blind || !self.is_on() || self.gate == Gate::Open || self.asked {
            return None;
        }
        self.asked = true;
        Some(self.streams.clone())
    }

    /// True while a thread asks the streams whether their unmeasured work is complete.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// The streams of [`Self::streams_to_ask`] were asked at `now`. Returns the unpaid time in which they worked (from,
    /// to), and marks to destroy before [`Self::finish_asking`].
    pub fn apply_answers(&mut self, answers: &[(OpenStream, StreamAnswer)], now: u64) -> ((u64, u64), Vec<CUevent>) {
        let is_shut = self.blind && self.gate != Gate::Open && !self.stale;
        for (asked, answer) in answers {
            let at = self.streams.iter().position(|stream| stream.is_same(asked));
            match (answer, at) {
                (StreamAnswer::Marked(mark), Some(at)) if is_shut => self.streams[at].mark = Some(*mark),
                (StreamAnswer::Marked(mark), _) => self.unused.push((asked.context_word(), *mark)),
                (StreamAnswer::Done, Some(at)) if is_shut => self.is_over(at),
                _ => {}
            }
        }
        let from = self.paid;
        if !is_shut || now < from {
            return ((now, now), self.take_unused());
        }
        let is = |wanted: fn(StreamAnswer) -> bool| answers.iter().any(|(_, answer)| wanted(*answer));
        let busy = is(|answer| matches!(answer, StreamAnswer::Busy | StreamAnswer::Marked(_)));
        let unasked = self.crowded || is(|answer| answer == StreamAnswer::Unasked);
        if busy {
            // A stream is still busy, so the device counts as busy all the time since the gate shut.
            self.paid = now;
            return ((from, now), self.take_unused());
        }
        let is_answered = |stream: &OpenStream| answers.iter().any(|(asked, _)| stream.is_same(asked));
        // Streams that cannot be asked here (too many, or other threads' default streams) count as busy for 2 s.
        if !self.streams.iter().all(is_answered) || unasked && now.saturating_sub(self.shut) < BASE.stuck {
            return ((now, now), self.take_unused());
        }
        (self.blind, self.crowded) = (false, false);
        self.streams.clear();
        // If a stream was busy at one look and idle at the next, soon after, it counts as busy until then.
        let is_close = !unasked && now.saturating_sub(from) <= BASE.in_flight;
        ((from, if is_close { now } else { from }), self.take_unused())
    }

    /// The work in a stream is complete.
    fn is_over(&mut self, at: usize) {
        let stream = self.streams.swap_remove(at);
        self.unused.extend(stream.mark.map(|mark| (stream.context_word(), mark)));
    }

    /// Marks to destroy; those of a context that has ended meanwhile no longer exist.
    fn take_unused(&mut self) -> Vec<CUevent> {
        let unused = core::mem::take(&mut self.unused);
        unused.into_iter().filter(|(context, _)| !self.gone.contains(context)).map(|(_, mark)| mark).collect()
    }

    /// The asking thread has finished: it no longer uses any driver object.
    pub fn finish_asking(&mut self) {
        (self.asked, self.stale) = (false, false);
        self.gone.clear();
    }

    /// A stream is about to end: returns the streams to ask before that, including others that have ended; the
    /// answers go to [`Self::finish_stream_end`]. `None`: another thread asks it now.
    pub fn begin_stream_end(&mut self, key: u64) -> Option<Vec<OpenStream>> {
        if !self.streams.iter().any(|stream| stream.place.key == key) {
            return Some(Vec::new());
        }
        if self.asked {
            return None;
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.place.key == key && stream.mark.is_some()) {
            // No work follows its mark, and the mark needs no stream.
            stream.place = stream.place.without_stream();
        }
        self.asked = true;
        let wanted = self.streams.iter().filter(|stream| [key, NO_STREAM].contains(&stream.place.key));
        Some(wanted.copied().collect())
    }

    /// The streams of [`Self::begin_stream_end`] were asked. A stream that was about to end is kept by its mark only.
    /// Returns marks to destroy before [`Self::finish_asking`].
    pub fn finish_stream_end(&mut self, answers: &[(OpenStream, StreamAnswer)]) -> Vec<CUevent> {
        for (asked, answer) in answers {
            match (answer, self.streams.iter().position(|stream| stream.is_same(asked))) {
                (StreamAnswer::Done, Some(at)) => self.is_over(at),
                (StreamAnswer::Marked(mark), Some(at)) => {
                    let stream = &mut self.streams[at];
                    (stream.place, stream.mark) = (stream.place.without_stream(), Some(*mark));
                }
                (StreamAnswer::Marked(mark), None) => self.unused.push((asked.context_word(), *mark)),
                (StreamAnswer::Busy | StreamAnswer::Unasked, Some(at)) if asked.mark.is_none() => {
                    // The stream ends without a mark, so it cannot be asked later.
                    self.streams.swap_remove(at);
                    self.crowded = true;
                }
                _ => {}
            }
        }
        self.take_unused()
    }

    /// Forgets a destroyed stream whose progress could not be queried.
    pub fn forget_stream(&mut self, key: u64) {
        let before = self.streams.len();
        self.streams.retain(|stream| stream.place.key != key);
        self.crowded |= self.streams.len() < before;
    }

    /// A context ends, with its work in flight. Returns its marks, to be destroyed before.
    pub fn forget_context(&mut self, context: usize) -> Vec<CUevent> {
        let (of_it, others) =
            core::mem::take(&mut self.streams).into_iter().partition(|one| one.context_word() == context);
        let of_it: Vec<OpenStream> = of_it;
        self.streams = others;
        let (marks, others) = core::mem::take(&mut self.unused).into_iter().partition(|mark| mark.0 == context);
        let marks: Vec<(usize, CUevent)> = marks;
        self.unused = others;
        if self.asked {
            // The asking thread may hold them, and add more: they end with their context.
            self.gone.push(context);
            return Vec::new();
        }
        marks.into_iter().map(|mark| mark.1).chain(of_it.into_iter().filter_map(|stream| stream.mark)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shim_sys::cuda::{CUcontext, CUstream};

    fn mark(word: usize) -> CUevent {
        CUevent(word as *mut core::ffi::c_void)
    }

    fn stream(handle: usize, context: usize) -> OpenStream {
        let (stream, context) = (CUstream(handle as *mut _), CUcontext(context as *mut _));
        let launch = MeteredLaunch { context, stream, per_thread: false, key: 1, in_parts: false };
        OpenStream { place: launch.stream_location(), launch, mark: None }
    }

    /// A lease whose gate was open and shut at 1000, with work in these streams, which a thread asks.
    fn asked(streams: &[OpenStream]) -> Lease {
        let (streams, blind, asked) = (streams.to_vec(), true, true);
        Lease { streams, blind, asked, gate: Gate::Wait, shut: 1000, paid: 1000, ..Lease::default() }
    }

    /// The gate opens again, work goes into these streams, and it shuts.
    fn opens_and_shuts(lease: &mut Lease, streams: &[OpenStream]) {
        lease.note_open();
        lease.streams.extend_from_slice(streams);
        (lease.shut, lease.paid) = (2000, 2000);
    }

    #[test]
    fn answers_of_before_the_gate_was_open_again_say_nothing_of_what_went_through_since() {
        let (one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        let mut lease = asked(&[one]);
        opens_and_shuts(&mut lease, &[other]);
        let (paid, unused) = lease.apply_answers(&[(one, StreamAnswer::Done)], 3000);
        assert_eq!((paid, unused.len()), ((3000, 3000), 0));
        assert!(lease.blind && lease.streams.len() == 2, "both are to be asked");
        lease.finish_asking();
        let (paid, _) = lease.apply_answers(&[(one, StreamAnswer::Done), (other, StreamAnswer::Done)], 4000);
        assert_eq!((paid, lease.blind), ((2000, 4000), false));
    }

    #[test]
    fn a_mark_of_before_the_gate_was_open_again_is_destroyed() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        opens_and_shuts(&mut lease, &[]);
        assert_eq!(lease.apply_answers(&[(one, StreamAnswer::Marked(mark(64)))], 3000).1, [mark(64)]);
        assert_eq!(lease.streams[0].mark, None, "what went since is behind it");
    }

    #[test]
    fn nothing_is_known_before_every_stream_has_answered() {
        let (one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        let mut lease = asked(&[one, other]);
        lease.apply_answers(&[(one, StreamAnswer::Done)], 3000);
        assert!(lease.blind && lease.streams.len() == 1);
    }

    #[test]
    fn marks_go_with_their_context() {
        let (mut one, mut other) = (stream(1 << 12, 1), stream(2 << 12, 2));
        (one.mark, other.mark) = (Some(mark(64)), Some(mark(128)));
        let mut lease = asked(&[one, other]);
        lease.finish_asking();
        lease.unused = vec![(1, mark(192)), (2, mark(256))];
        assert_eq!(lease.forget_context(1), [mark(192), mark(64)]);
        assert_eq!((lease.streams.len(), lease.take_unused()), (1, vec![mark(256)]));
    }

    #[test]
    fn a_mark_that_comes_when_its_context_has_ended_is_dropped() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        assert_eq!(lease.forget_context(1), []);
        assert_eq!(lease.apply_answers(&[(one, StreamAnswer::Marked(mark(64)))], 3000).1, []);
    }

    #[test]
    fn what_a_stream_had_in_flight_when_it_ended_is_waited_for() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        assert!(lease.begin_stream_end(one.place.key).is_none(), "it is asked at this moment");
        lease.finish_asking();
        lease.note_open();
        assert_eq!(lease.begin_stream_end(one.place.key).map(|asked| asked.len()), Some(1));
        assert_eq!(lease.finish_stream_end(&[(one, StreamAnswer::Marked(mark(64)))]), []);
        lease.finish_asking();
        // A stream created later with the same handle counts as another stream.
        opens_and_shuts(&mut lease, &[one]);
        let streams = lease.streams.clone();
        assert_eq!(streams.len(), 2);
        let answer = |stream: &OpenStream| {
            (*stream, if stream.mark.is_some() { StreamAnswer::Busy } else { StreamAnswer::Done })
        };
        let answers: Vec<_> = streams.iter().map(answer).collect();
        assert_eq!(lease.apply_answers(&answers, 3000).0, (2000, 3000), "it is busy");
        assert!(lease.blind && lease.streams.len() == 1 && lease.streams[0].mark == Some(mark(64)));
    }

    #[test]
    fn streams_that_ended_are_asked_with_the_next_that_ends() {
        let (mut one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        (one.place, one.mark) = (one.place.without_stream(), Some(mark(64)));
        let mut lease = asked(&[one, other]);
        lease.finish_asking();
        let streams = lease.begin_stream_end(other.place.key).unwrap();
        assert_eq!(streams.len(), 2);
        assert_eq!(lease.finish_stream_end(&[(one, StreamAnswer::Done), (other, StreamAnswer::Busy)]), [mark(64)]);
        assert!(lease.streams.is_empty() && lease.crowded, "nobody can ask it later");
    }
}

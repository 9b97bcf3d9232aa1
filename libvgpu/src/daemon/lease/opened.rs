//! Work that went through an open gate: its streams, their answers, and the charge for it.
//!
//! One thread at a time asks them, without the lock: from [`Lease::unseen`] or [`Lease::ends`] to
//! [`Lease::answered`]. Streams and contexts that end wait for it. Not here: the queries ([`crate::governor`]).

use super::{Answer, CLOSE_NS, Lease, STREAMS, Stream, UNASKED_NS};
use crate::daemon::Post;
use crate::meter::Launch;
use shim_sys::cuda::CUevent;
use vgpu_core::memory::pool::NOBODY;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::gate::{Bounds, Keeper};

impl Stream {
    /// The stream's context, as a word.
    fn context(&self) -> usize {
        self.launch.context.0 as usize
    }

    /// True if this is the stream that was asked.
    fn is(&self, asked: &Self) -> bool {
        self.place == asked.place && self.mark == asked.mark
    }
}

impl Lease {
    /// Notes a launch through the open gate. Returns whether the gate is still open after that was reported.
    pub fn goes_blind(&mut self, launch: &Launch, post: &Post, keeper: &Keeper, bounds: &Bounds, now: u64) -> bool {
        let Some(place) = self.place else { return true };
        let place_of = launch.place();
        if !self.streams.iter().any(|known| known.place == place_of) {
            if self.streams.len() < STREAMS {
                self.streams.push(Stream { place: place_of, launch: *launch, mark: None });
            } else {
                self.crowded = true;
            }
        }
        if self.wants {
            self.is_content(place);
        }
        (self.blind, self.last) = (true, now);
        self.say(post, keeper, bounds, now);
        let stands = place.board().stands(self.sequence);
        self.launched = self.launched.wrapping_add(u64::from(stands));
        stands
    }

    /// The gate is open: further work in these streams follows their marks.
    pub(super) fn opens(&mut self) {
        (self.shut, self.paid, self.stale) = (0, 0, self.asked);
        for stream in self.streams.iter_mut().filter(|stream| stream.place.key != NOBODY) {
            self.unused.extend(stream.mark.take().map(|mark| (stream.launch.context.0 as usize, mark)));
        }
    }

    /// The streams to ask before the work in flight is known again; the answers go to [`Self::sees`]. `None`: it is
    /// known, or another thread is asking.
    pub fn unseen(&mut self) -> Option<Vec<Stream>> {
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

    /// The streams of [`Self::unseen`] were asked at `now`. Returns the unpaid time in which they worked (from,
    /// to), and marks to destroy before [`Self::answered`].
    pub fn sees(&mut self, answers: &[(Stream, Answer)], now: u64) -> ((u64, u64), Vec<CUevent>) {
        let is_shut = self.blind && self.gate != Gate::Open && !self.stale;
        for (asked, answer) in answers {
            let at = self.streams.iter().position(|stream| stream.is(asked));
            match (answer, at) {
                (Answer::Marked(mark), Some(at)) if is_shut => self.streams[at].mark = Some(*mark),
                (Answer::Marked(mark), _) => self.unused.push((asked.context(), *mark)),
                (Answer::Done, Some(at)) if is_shut => self.is_over(at),
                _ => {}
            }
        }
        let from = self.paid;
        if !is_shut || now < from {
            return ((now, now), self.take_unused());
        }
        let is = |wanted: fn(Answer) -> bool| answers.iter().any(|(_, answer)| wanted(*answer));
        let busy = is(|answer| matches!(answer, Answer::Busy | Answer::Marked(_)));
        let unasked = self.crowded || is(|answer| answer == Answer::Unasked);
        if busy {
            // A stream is still busy, so the device counts as busy all the time since the gate shut.
            self.paid = now;
            return ((from, now), self.take_unused());
        }
        let is_answered = |stream: &Stream| answers.iter().any(|(asked, _)| stream.is(asked));
        if !self.streams.iter().all(is_answered) || unasked && now.saturating_sub(self.shut) < UNASKED_NS {
            return ((now, now), self.take_unused());
        }
        (self.blind, self.crowded) = (false, false);
        self.streams.clear();
        let is_close = !unasked && now.saturating_sub(from) <= CLOSE_NS;
        ((from, if is_close { now } else { from }), self.take_unused())
    }

    /// The work in a stream is complete.
    fn is_over(&mut self, at: usize) {
        let stream = self.streams.swap_remove(at);
        self.unused.extend(stream.mark.map(|mark| (stream.context(), mark)));
    }

    /// Marks to destroy; those of a context that has ended meanwhile no longer exist.
    fn take_unused(&mut self) -> Vec<CUevent> {
        let unused = core::mem::take(&mut self.unused);
        unused.into_iter().filter(|(context, _)| !self.gone.contains(context)).map(|(_, mark)| mark).collect()
    }

    /// The asking thread has finished: it no longer uses any driver object.
    pub fn answered(&mut self) {
        (self.asked, self.stale) = (false, false);
        self.gone.clear();
    }

    /// A stream is about to end: returns the streams to ask before that, including others that have ended; the
    /// answers go to [`Self::ended`]. `None`: another thread asks it now.
    pub fn ends(&mut self, key: u64) -> Option<Vec<Stream>> {
        if !self.streams.iter().any(|stream| stream.place.key == key) {
            return Some(Vec::new());
        }
        if self.asked {
            return None;
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.place.key == key && stream.mark.is_some()) {
            // No work follows its mark, and the mark needs no stream.
            stream.place = stream.place.nobodys();
        }
        self.asked = true;
        let wanted = self.streams.iter().filter(|stream| [key, NOBODY].contains(&stream.place.key));
        Some(wanted.copied().collect())
    }

    /// The streams of [`Self::ends`] were asked. A stream that was about to end is kept by its mark only. Returns
    /// marks to destroy before [`Self::answered`].
    pub fn ended(&mut self, answers: &[(Stream, Answer)]) -> Vec<CUevent> {
        for (asked, answer) in answers {
            match (answer, self.streams.iter().position(|stream| stream.is(asked))) {
                (Answer::Done, Some(at)) => self.is_over(at),
                (Answer::Marked(mark), Some(at)) => {
                    let stream = &mut self.streams[at];
                    (stream.place, stream.mark) = (stream.place.nobodys(), Some(*mark));
                }
                (Answer::Marked(mark), None) => self.unused.push((asked.context(), *mark)),
                (Answer::Busy | Answer::Unasked, Some(at)) if asked.mark.is_none() => {
                    // The stream ends without a mark, so it cannot be asked later.
                    self.streams.swap_remove(at);
                    self.crowded = true;
                }
                _ => {}
            }
        }
        self.take_unused()
    }

    /// A stream ends that could not be asked.
    pub fn forget_stream(&mut self, key: u64) {
        let before = self.streams.len();
        self.streams.retain(|stream| stream.place.key != key);
        self.crowded |= self.streams.len() < before;
    }

    /// A context ends, with its work in flight. Returns its marks, to be destroyed before.
    pub fn forget_context(&mut self, context: usize) -> Vec<CUevent> {
        let (of_it, others) = core::mem::take(&mut self.streams).into_iter().partition(|one| one.context() == context);
        let of_it: Vec<Stream> = of_it;
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

    fn stream(handle: usize, context: usize) -> Stream {
        let (stream, context) = (CUstream(handle as *mut _), CUcontext(context as *mut _));
        let launch = Launch { context, stream, per_thread: false, key: 1, in_parts: false };
        Stream { place: launch.place(), launch, mark: None }
    }

    /// A lease whose gate was open and shut at 1000, with work in these streams, which a thread asks.
    fn asked(streams: &[Stream]) -> Lease {
        let (streams, blind, asked) = (streams.to_vec(), true, true);
        Lease { streams, blind, asked, gate: Gate::Wait, shut: 1000, paid: 1000, ..Lease::default() }
    }

    /// The gate opens again, work goes into these streams, and it shuts.
    fn opens_and_shuts(lease: &mut Lease, streams: &[Stream]) {
        lease.opens();
        lease.streams.extend_from_slice(streams);
        (lease.shut, lease.paid) = (2000, 2000);
    }

    #[test]
    fn answers_of_before_the_gate_was_open_again_say_nothing_of_what_went_through_since() {
        let (one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        let mut lease = asked(&[one]);
        opens_and_shuts(&mut lease, &[other]);
        let (paid, unused) = lease.sees(&[(one, Answer::Done)], 3000);
        assert_eq!((paid, unused.len()), ((3000, 3000), 0));
        assert!(lease.blind && lease.streams.len() == 2, "both are to be asked");
        lease.answered();
        let (paid, _) = lease.sees(&[(one, Answer::Done), (other, Answer::Done)], 4000);
        assert_eq!((paid, lease.blind), ((2000, 4000), false));
    }

    #[test]
    fn a_mark_of_before_the_gate_was_open_again_is_destroyed() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        opens_and_shuts(&mut lease, &[]);
        assert_eq!(lease.sees(&[(one, Answer::Marked(mark(64)))], 3000).1, [mark(64)]);
        assert_eq!(lease.streams[0].mark, None, "what went since is behind it");
    }

    #[test]
    fn nothing_is_known_before_every_stream_has_answered() {
        let (one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        let mut lease = asked(&[one, other]);
        lease.sees(&[(one, Answer::Done)], 3000);
        assert!(lease.blind && lease.streams.len() == 1);
    }

    #[test]
    fn marks_go_with_their_context() {
        let (mut one, mut other) = (stream(1 << 12, 1), stream(2 << 12, 2));
        (one.mark, other.mark) = (Some(mark(64)), Some(mark(128)));
        let mut lease = asked(&[one, other]);
        lease.answered();
        lease.unused = vec![(1, mark(192)), (2, mark(256))];
        assert_eq!(lease.forget_context(1), [mark(192), mark(64)]);
        assert_eq!((lease.streams.len(), lease.take_unused()), (1, vec![mark(256)]));
    }

    #[test]
    fn a_mark_that_comes_when_its_context_has_ended_is_dropped() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        assert_eq!(lease.forget_context(1), []);
        assert_eq!(lease.sees(&[(one, Answer::Marked(mark(64)))], 3000).1, []);
    }

    #[test]
    fn what_a_stream_had_in_flight_when_it_ended_is_waited_for() {
        let one = stream(1 << 12, 1);
        let mut lease = asked(&[one]);
        assert!(lease.ends(one.place.key).is_none(), "it is asked at this moment");
        lease.answered();
        lease.opens();
        assert_eq!(lease.ends(one.place.key).map(|asked| asked.len()), Some(1));
        assert_eq!(lease.ended(&[(one, Answer::Marked(mark(64)))]), []);
        lease.answered();
        // A stream created later with the same handle counts as another stream.
        opens_and_shuts(&mut lease, &[one]);
        let streams = lease.streams.clone();
        assert_eq!(streams.len(), 2);
        let answer = |stream: &Stream| (*stream, if stream.mark.is_some() { Answer::Busy } else { Answer::Done });
        let answers: Vec<_> = streams.iter().map(answer).collect();
        assert_eq!(lease.sees(&answers, 3000).0, (2000, 3000), "it is busy");
        assert!(lease.blind && lease.streams.len() == 1 && lease.streams[0].mark == Some(mark(64)));
    }

    #[test]
    fn streams_that_ended_are_asked_with_the_next_that_ends() {
        let (mut one, other) = (stream(1 << 12, 1), stream(2 << 12, 1));
        (one.place, one.mark) = (one.place.nobodys(), Some(mark(64)));
        let mut lease = asked(&[one, other]);
        lease.answered();
        let streams = lease.ends(other.place.key).unwrap();
        assert_eq!(streams.len(), 2);
        assert_eq!(lease.ended(&[(one, Answer::Done), (other, Answer::Busy)]), [mark(64)]);
        assert!(lease.streams.is_empty() && lease.crowded, "nobody can ask it later");
    }
}

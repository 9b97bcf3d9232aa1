//! The map of free memory, checked against a model of a driver's pool: a request that fits by the map never makes the
//! pool grow.

use super::*;
use proptest::prelude::*;

const STEP: u64 = 32;

/// Chunks of one step or of the request; each block in one chunk, first fit; frees usable by their own stream only,
/// until it has executed them.
#[derive(Default)]
struct Driver {
    chunks: Vec<(u64, u64)>,
    /// Free pieces: begin, end, stream that has not executed the free.
    free: Vec<(u64, u64, Option<u64>)>,
    next: u64,
}

impl Driver {
    fn join(&mut self) {
        let mut pieces: Vec<(u64, u64, Option<u64>)> = Vec::new();
        self.free.sort_unstable();
        for &(at, end, late) in &self.free {
            let new_chunk = self.chunks.iter().any(|chunk| chunk.0 == at);
            match pieces.last_mut() {
                Some(last) if last.1 == at && last.2.is_none() && late.is_none() && !new_chunk => last.1 = end,
                _ => pieces.push((at, end, late)),
            }
        }
        self.free = pieces;
    }

    /// Returns the address, and the growth of the pool.
    fn alloc(&mut self, bytes: u64, stream: u64) -> (u64, u64) {
        let fits =
            |piece: &(u64, u64, Option<u64>)| piece.1 - piece.0 >= bytes && piece.2.is_none_or(|late| late == stream);
        let (at, grew) = match self.free.iter().position(fits) {
            Some(index) => (index, 0),
            None => {
                let by = bytes.max(STEP);
                // Some chunks are adjacent, some are not.
                self.next += if by.is_multiple_of(2) { 0 } else { 7 };
                self.chunks.push((self.next, self.next + by));
                self.free.push((self.next, self.next + by, None));
                self.next += by;
                (self.free.len() - 1, by)
            }
        };
        let (at, end, late) = self.free.remove(at);
        if end > at + bytes {
            self.free.push((at + bytes, end, late));
        }
        self.join();
        (at, grew)
    }

    fn arrive(&mut self, stream: Option<u64>) {
        for piece in &mut self.free {
            if stream.is_none() || piece.2 == stream {
                piece.2 = None;
            }
        }
        self.join();
    }

    /// Gives back some unused chunks; returns true if there were any.
    fn trim(&mut self, most: usize) -> bool {
        let idle = |chunk: &(u64, u64)| self.free.contains(&(chunk.0, chunk.1, None));
        let gone: Vec<(u64, u64)> = self.chunks.iter().filter(|chunk| idle(chunk)).take(most).copied().collect();
        self.chunks.retain(|chunk| !gone.contains(chunk));
        self.free.retain(|piece| !gone.contains(&(piece.0, piece.1)));
        !gone.is_empty()
    }
}

/// Carries out an act on a map whose ended frees are then moved out of the list.
fn plain_act(holes: &mut FreeRanges, act: &dyn Fn(&mut FreeRanges)) {
    act(holes);
    holes.settle_finished();
}

/// The map after all its ended frees have moved into it, and the numbers of the frees in progress.
fn settled(mut holes: FreeRanges) -> (FreeRanges, Vec<u64>) {
    holes.settle_finished();
    let mut in_progress: Vec<u64> = holes.recent.drain(..).map(|free| free.block.number).collect();
    in_progress.sort_unstable();
    (holes, in_progress)
}

/// Frees a block without any event in between.
fn free(holes: &mut FreeRanges, at: u64, bytes: u64, stream: Option<StreamKey>) {
    let leaving = holes.begin_free(at, bytes);
    holes.finish_free(leaving, stream);
}

#[derive(Clone, Debug)]
enum Act {
    Alloc(u64, u64),
    Free(prop::sample::Index, u64),
    /// A free for all streams.
    FreeAtOnce(prop::sample::Index),
    /// The driver has freed the block, and the thread that called it reports that later.
    Leave(prop::sample::Index, u64),
    Left(prop::sample::Index),
    /// A free that fails.
    Stay(prop::sample::Index),
    Arrive(Option<u64>),
    /// The device has executed a stream's frees, and only the driver has noticed.
    Pass(Option<u64>),
    Trim(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1u64..60, 0u64..3).prop_map(|(bytes, stream)| Act::Alloc(bytes, stream)),
        3 => (any::<prop::sample::Index>(), 0u64..3).prop_map(|(index, stream)| Act::Free(index, stream)),
        1 => any::<prop::sample::Index>().prop_map(Act::FreeAtOnce),
        2 => (any::<prop::sample::Index>(), 0u64..3).prop_map(|(index, stream)| Act::Leave(index, stream)),
        2 => any::<prop::sample::Index>().prop_map(Act::Left),
        1 => any::<prop::sample::Index>().prop_map(Act::Stay),
        1 => prop::option::of(0u64..3).prop_map(Act::Arrive),
        1 => prop::option::of(0u64..3).prop_map(Act::Pass),
        1 => (1usize..3).prop_map(Act::Trim),
    ]
}

proptest! {
    #[test]
    fn a_request_that_is_known_to_fit_never_makes_the_pool_grow(acts in prop::collection::vec(act(), 1..120)) {
        let (mut driver, mut holes) = (Driver::default(), FreeRanges::new());
        // The same without recent frees.
        let mut plain = FreeRanges::new();
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut leaving: Vec<(PendingFree, u64)> = Vec::new();
        for act in acts {
            match act {
                Act::Alloc(bytes, stream) => {
                    let fits = holes.fits_request(bytes, stream);
                    prop_assert_eq!(fits, plain.fits_request(bytes, stream), "{:?}", holes);
                    let (at, grew) = driver.alloc(bytes, stream);
                    prop_assert!(!fits || grew == 0, "{bytes} in {stream}: {holes:?}");
                    prop_assert!(!holes.is_free(at, bytes) || grew == 0, "{bytes} at {at}: {holes:?}");
                    prop_assert_eq!(holes.is_free(at, bytes), plain.is_free(at, bytes), "{} at {}: {:?}", bytes, at, holes);
                    plain_act(&mut plain, &|plain| {
                        if grew > 0 {
                            plain.note_growth(at, bytes, grew);
                        }
                        plain.note_placed(at, bytes);
                    });
                    if grew > 0 {
                        holes.note_growth(at, bytes, grew);
                        holes.note_placed(at, bytes);
                    } else {
                        let inside = holes.is_free(at, bytes);
                        prop_assert_eq!(holes.note_placed_inside(at, bytes), inside);
                        if !inside {
                            holes.note_placed(at, bytes);
                        }
                    }
                    live.push((at, bytes));
                }
                Act::Free(index, stream) if !live.is_empty() => {
                    let (at, bytes) = live.swap_remove(index.index(live.len()));
                    driver.free.push((at, at + bytes, Some(stream)));
                    free(&mut holes, at, bytes, Some(stream));
                    plain_act(&mut plain, &|plain| free(plain, at, bytes, Some(stream)));
                }
                Act::FreeAtOnce(index) if !live.is_empty() => {
                    let (at, bytes) = live.swap_remove(index.index(live.len()));
                    driver.free.push((at, at + bytes, None));
                    driver.join();
                    free(&mut holes, at, bytes, None);
                    plain_act(&mut plain, &|plain| free(plain, at, bytes, None));
                }
                Act::Leave(index, stream) if !live.is_empty() => {
                    let (at, bytes) = live.swap_remove(index.index(live.len()));
                    let begun = holes.begin_free(at, bytes);
                    prop_assert_eq!(begun, plain.begin_free(at, bytes));
                    leaving.push((begun, stream));
                    driver.free.push((at, at + bytes, Some(stream)));
                }
                Act::Left(index) if !leaving.is_empty() => {
                    let (one, stream) = leaving.swap_remove(index.index(leaving.len()));
                    holes.finish_free(one, Some(stream));
                    plain_act(&mut plain, &|plain| plain.finish_free(one, Some(stream)));
                }
                Act::Stay(index) if !live.is_empty() => {
                    let (at, bytes) = live[index.index(live.len())];
                    let one = holes.begin_free(at, bytes);
                    holes.cancel_free(one);
                    let _ = plain.begin_free(at, bytes);
                    plain.cancel_free(one);
                }
                Act::Free(..) | Act::FreeAtOnce(..) | Act::Leave(..) | Act::Left(..) | Act::Stay(..) => {}
                Act::Arrive(stream) => {
                    driver.arrive(stream);
                    holes.pass_frees(stream);
                    plain.pass_frees(stream);
                }
                Act::Pass(stream) => driver.arrive(stream),
                Act::Trim(most) => {
                    if driver.trim(most) {
                        holes.note_trim();
                        plain.note_trim();
                    }
                }
            }
            agrees(&holes);
            prop_assert_eq!(settled(holes.clone()), settled(plain.clone()), "{:?}", holes);
            prop_assert!(holes.known_bytes() <= driver.chunks.iter().map(|chunk| chunk.1 - chunk.0).sum());
            // No piece is recorded as free that is not.
            let ended = holes.recent.iter().filter(|free| free.stream.is_some());
            let recent = ended.map(|free| (free.block.at, free.block.end));
            for (at, end) in holes.gaps.iter().map(|(at, gap)| (*at, gap.end)).chain(recent) {
                let inside = |piece: &&(u64, u64, Option<u64>)| piece.0 <= at && end <= piece.1;
                prop_assert!(driver.free.iter().any(|piece| inside(&piece)), "{at} to {end}: {:?}", driver.free);
            }
        }
    }
}

/// Both maps of pieces agree, no piece is known twice, and each chunk counts its blocks.
#[track_caller]
fn agrees(holes: &FreeRanges) {
    let by_address: BTreeSet<_> = holes.gaps.iter().map(|(at, gap)| (gap.late, gap.end - at, *at)).collect();
    assert_eq!(by_address, holes.sizes);
    for (index, free) in holes.recent.iter().enumerate() {
        assert!(holes.gaps.iter().all(|(at, gap)| !free.block.overlaps(*at, gap.end)), "{free:?} is in the map too");
        let others = holes.recent.iter().enumerate().filter(|(other, _)| *other != index);
        assert!(
            others.map(|other| other.1).all(|other| !free.block.overlaps(other.block.at, other.block.end)),
            "{free:?} twice"
        );
    }
    let stray = |at: &&u64| holes.chunk_of(**at).is_none();
    assert_eq!(holes.gaps.keys().filter(stray).copied().collect::<BTreeSet<u64>>(), holes.strays);
    assert_eq!(holes.chunks.iter().map(|(at, chunk)| chunk.end - at).sum::<u64>(), holes.known_bytes());
}

#[test]
fn neighbours_join_and_chunks_do_not() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 10, 32);
    holes.note_placed(0, 10);
    holes.note_growth(32, 32, 32);
    holes.note_placed(32, 32);
    free(&mut holes, 0, 10, Some(1));
    assert!(!holes.fits_request(32, 1), "on its way back, and not joined");
    assert!(
        holes.fits_request(10, 1) && holes.fits_request(22, 2) && !holes.fits_request(23, 2),
        "the rest of the growth is for all"
    );
    holes.pass_frees(None);
    assert!(holes.fits_request(32, 2));
    holes.note_placed(0, 32);
    free(&mut holes, 0, 32, Some(1));
    free(&mut holes, 32, 32, Some(1));
    holes.pass_frees(Some(2));
    assert!(!holes.fits_request(1, 2), "another stream has come to its frees");
    holes.pass_frees(Some(1));
    assert!(holes.fits_request(32, 2) && !holes.fits_request(33, 2), "two chunks");
    assert!(holes.is_free(5, 27) && !holes.is_free(5, 28));
    assert_eq!(holes.known_bytes(), 64);
    holes.note_trim();
    assert!(!holes.fits_request(1, 2) && !holes.is_free(5, 1));
    assert_eq!(holes.known_bytes(), 0);
}

#[test]
fn a_chunk_stays_as_long_as_there_is_a_block_in_it() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 10, 32);
    holes.note_placed(0, 10);
    holes.note_growth(100, 10, 32);
    holes.note_placed(100, 10);
    holes.note_placed(20, 5);
    free(&mut holes, 100, 10, Some(1));
    holes.note_trim();
    assert_eq!(holes.known_bytes(), 32, "the second chunk may have gone: the driver may know that the stream is there");
    free(&mut holes, 0, 10, Some(1));
    holes.note_trim();
    assert!(holes.fits_request(10, 1), "a block is left");
    free(&mut holes, 20, 5, Some(2));
    holes.note_placed(0, 3);
    holes.pass_frees(None);
    holes.note_trim();
    assert!(holes.fits_request(29, 3), "a block");
    free(&mut holes, 0, 3, None);
    holes.note_trim();
    assert!(!holes.fits_request(1, 1));
    agrees(&holes);
}

#[test]
fn pieces_of_unknown_chunks_serve_until_the_pool_gives_anything_back() {
    let mut holes = FreeRanges::new();
    holes.note_placed(50, 10);
    free(&mut holes, 50, 10, None);
    free(&mut holes, 70, 10, Some(1));
    assert!(holes.fits_request(10, 2));
    // The pool grows into the range whose chunk was unknown.
    holes.note_growth(60, 5, 32);
    holes.note_placed(60, 5);
    agrees(&holes);
    assert!(holes.fits_request(27, 3) && !holes.fits_request(28, 1));
    holes.note_trim();
    assert!(holes.fits_request(27, 3) && !holes.is_free(50, 1));
    holes.forget_all();
    agrees(&holes);
    assert!(!holes.fits_request(1, 1));
}

#[test]
fn what_is_given_out_again_before_its_free_has_returned_is_no_room() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 10, 32);
    holes.note_placed(0, 10);
    holes.note_placed(10, 22);
    let first = holes.begin_free(0, 10);
    holes.note_placed(0, 8);
    holes.finish_free(first, Some(1));
    assert!(!holes.fits_request(1, 1) && !holes.is_free(0, 1), "another's block lies there");
    // The block that now lies there is freed too, before a third thread's free has returned.
    let second = holes.begin_free(0, 8);
    holes.note_placed(0, 4);
    let third = holes.begin_free(0, 4);
    holes.finish_free(second, None);
    assert!(!holes.fits_request(1, 1));
    holes.finish_free(third, None);
    assert!(holes.fits_request(4, 1));
    // A block whose free fails stays in its chunk, so the chunk is kept.
    let failed = holes.begin_free(10, 22);
    holes.cancel_free(failed);
    holes.finish_free(failed, None);
    holes.note_trim();
    assert!(holes.fits_request(4, 1) && !holes.fits_request(5, 1));
    // A free in progress does not keep its chunk: the pool may have given it back.
    let last = holes.begin_free(10, 22);
    holes.note_trim();
    holes.finish_free(last, None);
    assert!(!holes.fits_request(1, 1));
    assert_eq!(holes.known_bytes(), 0);
    agrees(&holes);
}

#[test]
fn what_a_stream_that_is_gone_was_to_come_to_waits_for_all() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 32, 32);
    holes.note_placed(0, 32);
    free(&mut holes, 0, 32, Some(7));
    assert!(holes.fits_request(32, 7));
    holes.forget_stream(7);
    assert!(!holes.fits_request(1, 7), "another stream of that number");
    holes.pass_frees(Some(7));
    assert!(!holes.fits_request(1, 7));
    holes.pass_frees(None);
    assert!(holes.fits_request(32, 7));
    agrees(&holes);
}

#[test]
fn a_block_taken_again_leaves_the_map_as_it_was() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 10, 32);
    holes.note_placed(0, 10);
    let map = settled(holes.clone());
    for _ in 0..3 {
        free(&mut holes, 0, 10, Some(1));
        assert!(holes.is_free(0, 10) && holes.fits_request(10, 1));
        assert_eq!((holes.gaps.len(), holes.recent.len()), (1, 1), "the map holds the rest of the growth");
        assert!(holes.note_placed_inside(0, 10));
        assert_eq!(settled(holes.clone()), (FreeRanges { left: holes.left, ..map.0.clone() }, Vec::new()));
    }
    let first = holes.begin_free(0, 10);
    assert!(!holes.note_placed_inside(0, 10), "the free has not returned");
    holes.cancel_free(first);
    holes.note_trim();
    assert_eq!(holes.known_bytes(), 32, "the block is still there");
}

#[test]
fn no_more_than_a_few_recent_frees_wait() {
    let mut holes = FreeRanges::new();
    holes.note_growth(0, 1, 100);
    (0..100).for_each(|at| holes.note_placed(at, 1));
    for at in 0..100 {
        free(&mut holes, at, 1, Some(1));
        assert!(holes.recent.len() <= MAX_RECENT);
        agrees(&holes);
    }
    holes.pass_frees(Some(1));
    assert!(holes.fits_request(100, 2));
}

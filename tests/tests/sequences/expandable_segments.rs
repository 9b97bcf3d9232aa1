//! Expandable segments: PyTorch (pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp, `ExpandableSegment`). A segment
//! reserves nine eighths of the device's memory and maps pages of 20 MiB. Before it unmaps, it waits for its stream.
//! A shared segment sends a process id and descriptors, which the other process fetches from the first one.
//!
//! Calls of: PyTorch (expandable segments)

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// Size of the handles of a segment of large blocks.
const PART: u64 = 20 * MIB;

/// A segment with its handles, in order of their addresses; `None` where it is not mapped.
struct Segment {
    at: u64,
    reserved: u64,
    parts: Vec<Option<u64>>,
}

impl Segment {
    #[track_caller]
    fn new(member: &mut Member) -> Segment {
        let (_, total) = member.info();
        let reserved = (total + total / 8).next_multiple_of(PART);
        let at = number(member, &format!("reserve {reserved}"));
        Segment { at, reserved, parts: vec![None; usize::try_from(reserved / PART).expect("a small number")] }
    }

    /// All handles are created first; a refusal releases them.
    #[track_caller]
    fn map(&mut self, member: &mut Member, parts: std::ops::Range<usize>) -> i64 {
        let mut created = Vec::new();
        for _ in parts.clone() {
            let answer = member.ask(&format!("create {PART} 0 {DESCRIPTOR}"));
            if answer.code != 0 {
                created.iter().for_each(|handle| _ = member.ok(&format!("release {handle}")));
                return answer.code;
            }
            created.push(answer.number(0));
        }
        for (part, handle) in parts.clone().zip(created) {
            member.ok(&format!("map {} {PART} {handle}", self.address(part)));
            self.parts[part] = Some(handle);
        }
        let bytes = parts.len() as u64 * PART;
        member.code(&format!("allow {} {bytes} 0 1", self.address(parts.start)))
    }

    #[track_caller]
    fn unmap(&mut self, member: &mut Member, parts: std::ops::Range<usize>) {
        member.ok("synchronize");
        for part in parts {
            let handle = self.parts[part].take().expect("it is mapped");
            member.ok(&format!("unmap {} {PART}", self.address(part)));
            member.ok(&format!("release {handle}"));
        }
    }

    fn address(&self, part: usize) -> u64 {
        self.at + part as u64 * PART
    }

    fn mapped_bytes(&self) -> u64 {
        self.parts.iter().flatten().count() as u64 * PART
    }
}

#[test]
fn an_expandable_segment_is_charged_by_what_it_maps() {
    let lab = lab("h200", "2GiB");
    let (mut m, mut monitor) = (program(&lab), lab.member());
    monitor.ok("nvinit");
    let begin = agrees(&lab, &mut m);
    let mut segment = Segment::new(&mut m);
    let steps = [(true, 0..3), (true, 3..20), (false, 5..9), (true, 40..50), (true, 5..7), (false, 0..4)];
    for (maps, parts) in steps {
        if maps {
            assert_eq!(segment.map(&mut m, parts), 0);
        } else {
            segment.unmap(&mut m, parts);
        }
        assert_eq!(agrees(&lab, &mut m), begin + segment.mapped_bytes());
        let (free, total) = m.info();
        assert_eq!(monitor.ok("nvmem 0").numbers(), [total, free, total - free], "NVML shows the same");
    }
    let too_many = usize::try_from((2 * GIB - agrees(&lab, &mut m)) / PART + 1).expect("a small number");
    assert_eq!(segment.map(&mut m, 50..50 + too_many), OUT_OF_MEMORY);
    assert_eq!(agrees(&lab, &mut m), begin + segment.mapped_bytes(), "a refused step leaves nothing");
    assert_eq!(segment.map(&mut m, 50..49 + too_many), 0, "one part less fits");
    let mapped: Vec<usize> = (0..segment.parts.len()).filter(|part| segment.parts[*part].is_some()).collect();
    mapped.into_iter().for_each(|part| segment.unmap(&mut m, part..part + 1));
    m.ok(&format!("unreserve {} {}", segment.at, segment.reserved));
    assert_eq!(agrees(&lab, &mut m), begin);
}

/// Exports each handle of the segment, as often as it is sent.
#[track_caller]
fn export(member: &mut Member, segment: &Segment) -> Vec<u64> {
    segment.parts.iter().flatten().map(|handle| number(member, &format!("export {handle}"))).collect()
}

/// Fetches the descriptors from the exporter and maps the memory. Returns the address and the handles.
#[track_caller]
fn open(member: &mut Member, exporter: u32, descriptors: &[u64]) -> (u64, Vec<u64>) {
    let at = number(member, &format!("reserve {}", descriptors.len() as u64 * PART));
    let open_one = |(index, descriptor): (usize, &u64)| {
        let fetched = number(member, &format!("fetch {exporter} {descriptor}"));
        let handle = number(member, &format!("import {fetched}"));
        member.ok(&format!("close-descriptor {fetched}"));
        member.ok(&format!("map {} {PART} {handle}", at + index as u64 * PART));
        handle
    };
    let handles = descriptors.iter().enumerate().map(open_one).collect::<Vec<_>>();
    member.ok(&format!("allow {at} {} 0 1", descriptors.len() as u64 * PART));
    (at, handles)
}

#[test]
fn a_shared_segment_is_charged_once_until_its_last_process_unmaps_it() {
    let lab = lab("h200", "4GiB");
    let (mut exporter, mut importer, mut watcher) = (program(&lab), program(&lab), program(&lab));
    let begin = agrees(&lab, &mut watcher);
    let mut segment = Segment::new(&mut exporter);
    assert_eq!(segment.map(&mut exporter, 0..8), 0);
    let descriptors = export(&mut exporter, &segment);
    let (at, handles) = open(&mut importer, exporter.pid, &descriptors);
    assert_eq!(agrees(&lab, &mut watcher), begin + 8 * PART, "charged once");
    segment.unmap(&mut exporter, 0..8);
    descriptors.iter().for_each(|descriptor| _ = exporter.ok(&format!("close-descriptor {descriptor}")));
    assert_eq!(agrees(&lab, &mut watcher), begin + 8 * PART, "the importer maps it");
    for (index, handle) in handles.iter().enumerate() {
        importer.ok(&format!("unmap {} {PART}", at + index as u64 * PART));
        importer.ok(&format!("release {handle}"));
    }
    assert_eq!(agrees(&lab, &mut watcher), begin);
}

#[test]
fn a_shared_segment_stays_charged_to_its_importer_when_the_exporter_is_killed() {
    let lab = lab("h200", "4GiB");
    let (mut exporter, mut importer) = (program(&lab), program(&lab));
    let mut segment = Segment::new(&mut exporter);
    assert_eq!(segment.map(&mut exporter, 0..4), 0);
    let descriptors = export(&mut exporter, &segment);
    let (at, handles) = open(&mut importer, exporter.pid, &descriptors);
    exporter.kill();
    let kept = agrees(&lab, &mut importer);
    for (index, handle) in handles.iter().enumerate() {
        importer.ok(&format!("unmap {} {PART}", at + index as u64 * PART));
        importer.ok(&format!("release {handle}"));
    }
    assert_eq!(agrees(&lab, &mut importer), kept - 4 * PART);
}

#[test]
fn an_expandable_segment_gets_the_drivers_answers() {
    same_answers("t4", "14GiB", |_, m| {
        let at = number(m, &format!("reserve {}", 16 * GIB));
        let mut segment = Segment { at, reserved: 16 * GIB, parts: vec![None; 100] };
        let mapped = segment.map(m, 0..10);
        let wrong = [
            m.code(&format!("allow {at} {} 0 1", 11 * PART)), // beyond the mapped part
            m.code(&format!("unmap {at} {}", PART / 2)),
            m.code(&format!("export {}", at)),
        ];
        segment.unmap(m, 2..5);
        let hole = m.code(&format!("unmap {at} {}", 10 * PART));
        let descriptors = export(m, &segment);
        (mapped, wrong, hole, descriptors.len())
    });
}

//! A tenant's report page as a hostile tenant writes it: any bytes at any offset of its memory file, at any time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use shim_sys::memfd::{MappedPage, OwnedPage, WriteAccess};
use vgpu_core::protocol::page::{PAGE_HEADER_BYTES, PAGE_SLOT_BYTES, ReportHistory, ReportPage, Reports};
use vgpu_core::time::arbiter::{Arbiter, Class, DeviceId, Gate, MemberUsage, SlotId, TenantId, Terms};
use vgpu_core::time::config::TimeConfig;
use vgpu_core::units::share::Share;

/// Steps for both targets; any bytes are valid steps.
pub const SEEDS: &[&[u8]] = &[
    b"\x00\x00\x01\x01\x02\x00\x05\x00\x03\x14\x06\x00\x04\x10\x05\x01\x03\x16\x04\x08\x07\x00\x06\x01",
    b"\x02\x08\x64\x00\x00\x00\x00\x00\x00\x00\x03\x20\x02\x10\xff\xff\xff\xff\xff\xff\xff\xff\x03\x21",
    b"\x00\x00\x00\x04\x00\x01\x05\x00\x05\x01\x05\x02\x03\x16\x02\x08\x00\x00\x00\x00\x00\x00\x00\x00\x03\x18\x06\x02",
];

const TENANTS: usize = 3;
const DEVICES: u16 = 2;
const BEGIN: u64 = 1_000_000_000;
/// An hour, ns. The witness trusts no work in flight to take longer.
const LONGEST: u64 = 3_600_000_000_000;

/// The bytes that are not used yet.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

/// A report page as the daemon makes it, and the file descriptor that its tenant has.
struct Paper {
    page: MappedPage<ReportPage>,
    file: File,
}

impl Paper {
    fn new() -> Self {
        let made = OwnedPage::<ReportPage>::new(c"vgpu-fuzz", WriteAccess::Everybody).expect("a memory file");
        let file = File::from(made.file_to_hand_out().try_clone_to_owned().expect("a descriptor"));
        Self { page: made.mapped_page().clone(), file }
    }

    /// Writes `word` at any byte offset of a slot, across fields too.
    fn write(&self, slot: usize, place: u8, word: u64) {
        let at = PAGE_HEADER_BYTES + slot * PAGE_SLOT_BYTES + usize::from(place) % (PAGE_SLOT_BYTES - 8);
        self.file.write_all_at(&word.to_le_bytes(), at as u64).expect("the file is as long as its page");
    }

    fn clear(&self, slots: usize) {
        self.file.write_all_at(&vec![0; slots * PAGE_SLOT_BYTES], PAGE_HEADER_BYTES as u64).expect("as above");
    }
}

thread_local! {
    /// Made once, because a run of the fuzzer has millions of inputs.
    static PAPERS: RefCell<Vec<Paper>> = const { RefCell::new(Vec::new()) };
}

fn with_papers(work: impl FnOnce(&[Paper])) {
    PAPERS.with_borrow_mut(|papers| {
        papers.resize_with(TENANTS, Paper::new);
        papers.iter().for_each(|paper| paper.clear(16));
        work(papers);
    });
}

/// Checks a witness's reading of one slot, step by step.
pub fn report(bytes: &[u8]) {
    with_papers(|papers| {
        let (paper, mut steps) = (&papers[0], Steps(bytes));
        let (mut now, mut last) = (BEGIN, MemberUsage::default());
        let mut witness = ReportHistory::new(BEGIN);
        while let Some(step) = steps.byte() {
            if step < 128 {
                let (Some(place), Some(word)) = (steps.byte(), steps.word()) else { return };
                paper.write(0, place, word);
            }
            now = now.saturating_add(1 << (step % 44));
            let usage = witness.read_report(&paper.page.slots[0], now);
            let elapsed = now - BEGIN;
            assert!(usage.busy >= last.busy && usage.finished >= last.finished, "a sum shrank: {last:?}, {usage:?}");
            assert!(usage.busy <= elapsed && usage.finished <= elapsed, "outran the clock: {usage:?} in {elapsed}");
            assert!((BEGIN..=now).contains(&usage.since) && (BEGIN..=now).contains(&witness.last_launch()));
            assert!(matches!(usage.in_flight, None | Some(u64::MAX | 0..=LONGEST)), "{usage:?}");
            last = usage;
        }
    });
}

/// A member (client process) that the daemon registered.
struct Seat {
    slot: SlotId,
    tenant: usize,
    device: u16,
    place: usize,
    gate: Gate,
}

fn terms(byte: u8) -> Terms {
    let class = [Class::Latency, Class::Normal, Class::Batch, Class::Normal][usize::from(byte & 3)];
    // The floors (least shares of device time) of three tenants stay below the whole device, as the daemon ensures.
    let floor = (byte & 4 != 0).then(|| Share::from_percent(u32::from(byte >> 4) + 1)).flatten();
    let ceiling = (byte & 8 != 0).then(|| Share::from_percent(20 + u32::from(byte >> 4) * 5)).flatten();
    let quantum = (byte & 0x30 == 0).then_some(500_000);
    Terms { class, floor, ceiling, weight: u32::from(byte >> 5), quantum }
}

/// Checks the arbiter while members join, leave, ring and write arbitrary data. Guarantees:
/// - no panic;
/// - a member with an exclusive lease is the only one that runs on its device;
/// - all members that run on a device belong to one tenant;
/// - the charge of a tenant is at most 2,048 times the elapsed time, members that left included;
/// - a deadline is never in the past, so the daemon does not spin.
pub fn arbiter(bytes: &[u8]) {
    with_papers(|papers| {
        let mut steps = Steps(bytes);
        let mut arbiter = Arbiter::new(TimeConfig::DEFAULT, DEVICES, BEGIN);
        let mut reports = Reports::new();
        reports.set_now(BEGIN);
        let (mut seats, mut out, mut now): (Vec<Seat>, Vec<_>, u64) = (Vec::new(), Vec::new(), BEGIN);
        while let Some(step) = steps.byte() {
            let Some(what) = steps.byte() else { return };
            let chosen = if seats.is_empty() { 0 } else { usize::from(what) % seats.len() };
            match step % 8 {
                0 | 1 if seats.len() < 12 => {
                    let (tenant, device) = (usize::from(what) % TENANTS, u16::from(what >> 4) % DEVICES);
                    let place =
                        (0..16).find(|place| !seats.iter().any(|seat| (seat.tenant, seat.place) == (tenant, *place)));
                    let place = place.expect("fewer than sixteen");
                    let id = TenantId(u32::try_from(tenant).unwrap_or(0));
                    let slot = arbiter.join(id, DeviceId(device), terms(what), now);
                    assert!(reports.join(slot, papers[tenant].page.clone(), place));
                    seats.push(Seat { slot, tenant, device, place, gate: Gate::Wait });
                }
                2 => {
                    let Some(word) = steps.word() else { return };
                    if let Some(seat) = seats.get(chosen) {
                        papers[seat.tenant].write(seat.place, step, word);
                    }
                }
                3 => now = now.saturating_add(1 << (what % 34)),
                4 => {
                    // Writes what an honest member reports when its work in flight is done.
                    if let Some(seat) = seats.get(chosen) {
                        papers[seat.tenant].write(seat.place, 0, 0);
                        papers[seat.tenant].write(seat.place, 8, 0);
                    }
                }
                5 => {
                    if let Some(seat) = seats.get(chosen) {
                        papers[seat.tenant].write(seat.place, 0, 1);
                        arbiter.request_launch(seat.slot, now);
                    }
                }
                6 if !seats.is_empty() => {
                    let seat = seats.swap_remove(chosen);
                    arbiter.leave_device(seat.slot, now);
                    assert!(reports.leave_slot(seat.slot).is_some());
                }
                7 => {
                    let tenant = TenantId(u32::from(what) % 3);
                    arbiter.set(tenant, DeviceId(u16::from(what >> 4) % DEVICES), terms(what.rotate_left(3)), now);
                }
                _ => {}
            }
            reports.set_now(now);
            arbiter.tick(now, &mut reports, &mut out);
            assert!(out.len() <= 64 * (seats.len() + 1), "{} decisions at once", out.len());
            for decision in out.drain(..) {
                let seat = seats.iter_mut().find(|seat| seat.slot == decision.slot).expect("a decision about somebody");
                seat.gate = decision.gate;
            }
            judge(&seats, &arbiter, now);
        }
    });
}

fn judge(seats: &[Seat], arbiter: &Arbiter, now: u64) {
    let mut runs: BTreeMap<u16, Vec<(usize, bool)>> = BTreeMap::new();
    for seat in seats {
        match seat.gate {
            Gate::Open => runs.entry(seat.device).or_default().push((seat.tenant, false)),
            Gate::Run { exclusive, .. } => runs.entry(seat.device).or_default().push((seat.tenant, exclusive)),
            Gate::Wait | Gate::Cap { .. } => {}
        }
    }
    for (device, runs) in runs {
        let alone = !runs.iter().any(|(_, exclusive)| *exclusive) || runs.len() == 1;
        assert!(alone, "device {device}: an exclusive lease beside another: {runs:?}");
        assert!(runs.iter().all(|(tenant, _)| *tenant == runs[0].0), "device {device}: two tenants at once: {runs:?}");
    }
    for seat in seats {
        let charged = arbiter.charged_ns(TenantId(u32::try_from(seat.tenant).unwrap_or(0)), DeviceId(seat.device));
        // `charged` is the tenant's sum, which includes members that have left.
        assert!(charged <= (now - BEGIN).saturating_mul(2048), "{charged} charged in {}", now - BEGIN);
    }
    if let Some(deadline) = arbiter.next_deadline() {
        assert!(deadline > now, "a deadline that has passed is asked for again and again: {deadline} at {now}");
    }
}

//! Finds processes that work on a device without holding it or without reporting it, from the driver's samples, the
//! leases and the reports. No IO.

use std::collections::{BTreeMap, HashMap};

use vgpu_core::time::arbiter::audit::{AuditVerdict, HeldTime, LeaseAudit};
use vgpu_core::units::uuid::uuid_key;

use super::driver::WorkingProcess;
use super::judge::RegisteredMembers;
use super::processes::SeenProcess;
use vgpu_control::finding::{Finding, FindingKind, ProcessId};

/// History of each process on each device ([`vgpu_core::units::uuid::uuid_key`]).
#[derive(Debug, Default)]
pub struct UnseenTimes(HashMap<(ProcessId, String), LeaseAudit>);

/// A process that works on a device for longer than it held the device, or than its reports say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnseenWork {
    /// The process.
    pub process: ProcessId,
    /// The device's UUID.
    pub device: String,
    /// The audit's judgement.
    pub verdict: AuditVerdict,
}

impl UnseenTimes {
    /// Takes one look and returns the processes that work without a lease or a report. `working` was requested at
    /// `sampled`; `known` was read after that, at `told` at the latest. Both times are in ns.
    pub fn look_at_work(
        &mut self,
        seen: &BTreeMap<ProcessId, SeenProcess>,
        (working, sampled): (&[WorkingProcess], u64),
        (known, told): (&RegisteredMembers, u64),
    ) -> Vec<UnseenWork> {
        // Forget processes that ended.
        self.0.retain(|(process, _), _| seen.contains_key(process));
        // Members are watched from their join on, so that no time is missing when they start to work.
        let samples = working.iter().map(|one| ((one.pid, uuid_key(&one.device)), one));
        let samples: HashMap<(u32, String), &WorkingProcess> = samples.collect();
        for (pid, device) in samples.keys().chain(known.had.keys()) {
            let process = seen.range(ProcessId { pid: *pid, began: 0 }..).next().map(|(process, _)| *process);
            if let Some(process) = process.filter(|process| process.pid == *pid) {
                self.0.entry((process, device.clone())).or_default();
            }
        }
        let mut unseen = Vec::new();
        for ((process, device), audit) in &mut self.0 {
            let key = (process.pid, device.clone());
            let sample = samples.get(&key);
            // A process that never joined the device never held it.
            let had = known.had.get(&key).copied().unwrap_or(Some(HeldTime::default()));
            let had = had.map(|had| had.excused_for(known.silent_ns));
            let verdict = audit.take_reading(had, sample.map_or(0, |one| one.seen), sampled, told);
            if verdict != AuditVerdict::default() {
                let device = sample.map_or(device, |one| &one.device).clone();
                unseen.push(UnseenWork { process: *process, device, verdict });
            }
        }
        unseen.sort_by(|one, other| (one.process, &one.device).cmp(&(other.process, &other.device)));
        unseen
    }
}

/// Findings for members among these processes. A process that is no member is a finding for that reason.
#[must_use]
pub fn time_findings(
    unseen: &[UnseenWork],
    seen: &BTreeMap<ProcessId, SeenProcess>,
    known: &RegisteredMembers,
) -> Vec<Finding> {
    let mut unseen = unseen.to_vec();
    unseen.dedup_by_key(|one| one.process);
    let finding = |UnseenWork { process, device, verdict }| {
        let seen = seen.get(&process)?;
        let tenant = known.member_of_process(&process, seen.image)?.tenant.clone();
        let words = if verdict.is_unleased {
            "the driver saw it use the device for longer than it held a lease or drained: its launches bypass the \
             library and are not charged; its neighbours' launches are charged at their undisturbed cost"
        } else {
            "the driver saw it use the device for longer than it reported: it is charged for all the time in which it \
             holds a lease or drains"
        };
        let words = words.to_owned();
        let container = seen.contained.then(|| super::judge::container_name(&seen.group)).flatten();
        Some(Finding {
            what: FindingKind::Time,
            process,
            pid_inside: seen.inside,
            name: seen.name.clone(),
            tenant: Some(tenant),
            device: Some(device),
            contained: seen.contained,
            container,
            words,
        })
    };
    unseen.into_iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::image::Image;
    use super::super::judge::RegisteredMember;
    use super::*;

    const LOOK_NS: u64 = 400_000_000;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, began: 5 }
    }

    fn member() -> RegisteredMember {
        let image = Some(Image { process: process(10), program: (1, 2), code: 3, stack: 4 });
        RegisteredMember { tenant: "a".into(), image, connection: None }
    }

    /// 10 s in which the process works half of the time.
    fn found(known: &mut RegisteredMembers, had: impl Fn(u64) -> Option<Option<HeldTime>>) -> Vec<UnseenWork> {
        found_with_silence(known, had, |_| 0)
    }

    /// As [`found`], with a daemon that was silent for this time, in ns, at the end of each look.
    fn found_with_silence(
        known: &mut RegisteredMembers,
        had: impl Fn(u64) -> Option<Option<HeldTime>>,
        silent_ns: impl Fn(u64) -> u64,
    ) -> Vec<UnseenWork> {
        let seen = BTreeMap::from([(process(10), SeenProcess::default()), (process(20), SeenProcess::default())]);
        let (mut times, mut found) = (UnseenTimes::default(), Vec::new());
        for look in 1..25 {
            known.had.clear();
            known.had.extend(had(look).map(|had| ((10, "1".to_owned()), had)));
            known.silent_ns = silent_ns(look);
            let working = [WorkingProcess { pid: 10, device: "GPU-1".into(), seen: LOOK_NS / 2 }];
            found = times.look_at_work(&seen, (&working, look * LOOK_NS), (known, look * LOOK_NS));
        }
        found
    }

    #[test]
    fn a_member_that_works_without_a_lease_is_found_and_one_that_had_the_device_is_not() {
        let mut known = RegisteredMembers::default();
        known.members.insert(10, vec![member()]);
        let held = |held, reported| HeldTime { held, reported, awaited: 0 };
        let work = |verdict| vec![UnseenWork { process: process(10), device: "GPU-1".to_owned(), verdict }];
        let unleased = work(AuditVerdict { is_unleased: true, unreported: Some(0) });
        assert_eq!(found(&mut known, |_| Some(Some(held(7, 7)))), unleased);
        assert_eq!(found(&mut known, |_| None), unleased, "one that never came to the device");
        let half = |look: u64| look * LOOK_NS / 2;
        assert_eq!(found(&mut known, |look| Some(Some(held(half(look), half(look))))), []);
        let [one] = &found(&mut known, |look| Some(Some(held(half(look), half(look) / 4))))[..] else { panic!() };
        assert!(!one.verdict.is_unleased && one.verdict.unreported.is_some_and(|ns| ns > LOOK_NS), "{one:?}");
        assert_eq!(found(&mut known, |_| Some(None)), [], "its gate is open");
        let silent = |look| look * LOOK_NS / 2;
        assert_eq!(found_with_silence(&mut known, |_| None, silent), [], "a silent daemon cannot let it join");
        assert_eq!(found_with_silence(&mut known, |_| Some(Some(held(7, 7))), silent), []);
    }

    #[test]
    fn a_finding_is_a_member_and_a_stranger_is_found_for_being_one() {
        let seen = BTreeMap::from([(process(10), SeenProcess::default()), (process(20), SeenProcess::default())]);
        let mut known = RegisteredMembers::default();
        known.members.insert(10, vec![member()]);
        let verdict = AuditVerdict { is_unleased: true, unreported: None };
        let unseen = [10, 20].map(|pid| UnseenWork { process: process(pid), device: "gpu-1".to_owned(), verdict });
        let found = time_findings(&unseen, &seen, &known);
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!((finding.what, finding.process.pid, finding.tenant.as_deref()), (FindingKind::Time, 10, Some("a")));
    }
}

//! Compares the driver's memory figures with the ledgers at each look: memory that counts against limits without a
//! charge.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::Instant;

use vgpu_core::protocol::page::Uncharged;

use super::{ASK_ALL, ASK_LEDGERS, ProofThread, REREAD_POLL, REREAD_TIMEOUT, TELL_COUNTED};
use crate::proof::driver::ProcessOnDevice;
use crate::proof::judge::RegisteredMembers;
use crate::proof::processes::SeenProcess;
use crate::proof::uncharged::{self, TenantDeviceKey, UnchargedExcess};
use vgpu_control::finding::ProcessId;

/// The tenant of a listed process, if it is a member.
fn tenant_of<'k>(
    on: &ProcessOnDevice,
    seen: &BTreeMap<ProcessId, SeenProcess>,
    known: &'k RegisteredMembers,
) -> Option<&'k str> {
    let (process, seen) = seen.iter().find(|(process, _)| process.pid == on.pid)?;
    known.member_of_process(process, seen.image).map(|member| member.tenant.as_str())
}

impl ProofThread {
    /// Compares with ledgers that were read after `begun`, when the driver was asked. A ledger that is not read in
    /// time is treated as unknown.
    pub(super) fn compare_memory(
        &mut self,
        seen: &BTreeMap<ProcessId, SeenProcess>,
        listed: &[ProcessOnDevice],
        begun: Instant,
    ) -> Option<()> {
        let end = Instant::now() + REREAD_TIMEOUT;
        let mut question = ASK_LEDGERS;
        // A member that joined after the last [`ALL`] has a ledger that is not known here yet.
        let unknown = |on: &ProcessOnDevice| {
            let key = (tenant_of(on, seen, &self.known)?.to_owned(), vgpu_core::units::uuid::uuid_key(&on.device));
            (!self.known.ledgers.contains_key(&key)).then_some(())
        };
        if listed.iter().find_map(unknown).is_some()
            && self.known.all.is_none_or(|asked| asked.elapsed() >= REREAD_TIMEOUT)
        {
            self.ask_loop(ASK_ALL)?;
        }
        loop {
            let excess =
                uncharged::compare_with_ledgers(listed, &self.known.ledgers, |on| tenant_of(on, seen, &self.known));
            self.excess = excess;
            let old = |excess: &UnchargedExcess| excess.reading.read < begun;
            let stale: Vec<String> =
                self.excess.iter().filter(|(_, excess)| old(excess)).map(|((tenant, _), _)| tenant.clone()).collect();
            if stale.is_empty() {
                return Some(());
            }
            if Instant::now() >= end {
                self.excess.retain(|_, excess| !old(excess));
                return Some(());
            }
            if question == ASK_ALL {
                thread::sleep(REREAD_POLL);
            }
            self.found.lock().suspects = stale;
            self.ask_loop(std::mem::replace(&mut question, ASK_ALL))?;
        }
    }

    /// True if more was found than counts already.
    pub(super) fn has_grown(&self, excess: &HashMap<TenantDeviceKey, UnchargedExcess>) -> bool {
        let none = HashMap::new();
        uncharged::has_grown(excess, self.counted.as_ref().unwrap_or(&none))
    }

    /// Updates the memory that counts, and tells the reactor if it changed. The first result is always sent, because
    /// the reactor may still have amounts of an earlier thread.
    pub(super) fn count_excess(
        &mut self,
        first: &HashMap<TenantDeviceKey, UnchargedExcess>,
        again: Option<&HashMap<TenantDeviceKey, UnchargedExcess>>,
    ) {
        let none: HashMap<TenantDeviceKey, Uncharged> = HashMap::new();
        let counted = uncharged::count_excess(self.counted.as_ref().unwrap_or(&none), first, again);
        if self.counted.as_ref() != Some(&counted) {
            self.found.lock().uncharged.clone_from(&counted);
            if self.ask_loop(TELL_COUNTED).is_some() {
                self.counted = Some(counted);
            }
        }
    }
}

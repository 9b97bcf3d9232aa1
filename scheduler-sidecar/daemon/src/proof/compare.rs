//! Compares the driver's memory figures with the ledgers at each look: memory that counts against limits without a
//! charge.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use vgpu_core::protocol::page::Uncharged;

use super::{ALL, ANEW, COUNT, LOOK, Looking, READ};
use crate::proof::driver::OnDevice;
use crate::proof::judge::Registered;
use crate::proof::processes::Seen;
use crate::proof::uncharged::{self, Excess, Key};
use vgpu_control::finding::Process;

/// The tenant of a listed process, if it is a member.
fn tenant_of<'k>(on: &OnDevice, seen: &BTreeMap<Process, Seen>, known: &'k Registered) -> Option<&'k str> {
    let (process, seen) = seen.iter().find(|(process, _)| process.pid == on.pid)?;
    known.member(process, seen.image).map(|member| member.tenant.as_str())
}

impl Looking {
    /// Compares with ledgers that were read after `begun`, when the driver was asked. A ledger that is not read in
    /// time is treated as unknown.
    pub(super) fn compare(
        &mut self,
        seen: &BTreeMap<Process, Seen>,
        listed: &[OnDevice],
        begun: Instant,
    ) -> Option<()> {
        let end = Instant::now() + ANEW;
        let mut question = READ;
        // A member that joined after the last [`ALL`] has a ledger that is not known here yet.
        let unknown = |on: &OnDevice| {
            let key = (tenant_of(on, seen, &self.known)?.to_owned(), vgpu_core::units::uuid::key(&on.device));
            (!self.known.ledgers.contains_key(&key)).then_some(())
        };
        if listed.iter().find_map(unknown).is_some() && self.known.all.is_none_or(|asked| asked.elapsed() >= ANEW) {
            self.ask(ALL)?;
        }
        loop {
            let excess = uncharged::compare(listed, &self.known.ledgers, |on| tenant_of(on, seen, &self.known));
            self.excess = excess;
            let old = |excess: &Excess| excess.reading.read < begun;
            let stale: Vec<String> =
                self.excess.iter().filter(|(_, excess)| old(excess)).map(|((tenant, _), _)| tenant.clone()).collect();
            if stale.is_empty() {
                return Some(());
            }
            if Instant::now() >= end {
                self.excess.retain(|_, excess| !old(excess));
                return Some(());
            }
            if question == ALL {
                thread::sleep(LOOK);
            }
            self.found.lock().unwrap_or_else(PoisonError::into_inner).suspects = stale;
            self.ask(std::mem::replace(&mut question, ALL))?;
        }
    }

    /// True if more was found than counts already.
    pub(super) fn grew(&self, excess: &HashMap<Key, Excess>) -> bool {
        let none = HashMap::new();
        uncharged::grew(excess, self.counted.as_ref().unwrap_or(&none))
    }

    /// Updates the memory that counts, and tells the reactor if it changed. The first result is always sent, because
    /// the reactor may still have amounts of an earlier thread.
    pub(super) fn count(&mut self, first: &HashMap<Key, Excess>, again: Option<&HashMap<Key, Excess>>) {
        let none: HashMap<Key, Uncharged> = HashMap::new();
        let counted = uncharged::count(self.counted.as_ref().unwrap_or(&none), first, again);
        if self.counted.as_ref() != Some(&counted) {
            self.found.lock().unwrap_or_else(PoisonError::into_inner).uncharged.clone_from(&counted);
            if self.ask(COUNT).is_some() {
                self.counted = Some(counted);
            }
        }
    }
}

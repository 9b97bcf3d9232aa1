//! The driver's figures beside the ledgers, at each look: what counts against limits without being charged.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use vgpu_core::page::Uncharged;

use super::{ALL, ANEW, COUNT, LOOK, Looking, READ};
use crate::proof::driver::OnDevice;
use crate::proof::judge::Registered;
use crate::proof::processes::Seen;
use crate::proof::uncharged::{self, Excess, Key};
use vgpu_control::finding::Process;

/// The tenant that a listed process is a member of.
fn tenant_of<'k>(on: &OnDevice, seen: &BTreeMap<Process, Seen>, known: &'k Registered) -> Option<&'k str> {
    let (process, seen) = seen.iter().find(|(process, _)| process.pid == on.pid)?;
    known.member(process, seen.image).map(|member| member.tenant.as_str())
}

impl Looking {
    /// Compares, with ledgers that were read after `begun`, when the driver was asked. A ledger that is not read in time is
    /// not known.
    pub(super) fn compare(
        &mut self,
        seen: &BTreeMap<Process, Seen>,
        listed: &[OnDevice],
        begun: Instant,
    ) -> Option<()> {
        let end = Instant::now() + ANEW;
        let mut question = READ;
        // A member that came since everything was asked for has a ledger that is not known here yet.
        let unknown = |on: &OnDevice| {
            let key = (tenant_of(on, seen, &self.known)?.to_owned(), vgpu_core::uuid::key(&on.device));
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

    /// Whether more was seen than counts.
    pub(super) fn grew(&self, excess: &HashMap<Key, Excess>) -> bool {
        let none = HashMap::new();
        uncharged::grew(excess, self.counted.as_ref().unwrap_or(&none))
    }

    /// Counts what was seen, and tells the loop of a change. Nobody was told yet: it may have what another thread counted.
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

//! Lists the queues: tenants that wait for time on a device, and those that wait for room to be added.

use std::collections::BTreeMap;

use vgpu_accounting::clock;
use vgpu_control::service::{QueueAnswer, QueuedAddition, QueuedTenant};
use vgpu_control::tenant::{DaemonRefusal, RefusalKind};
use vgpu_core::time::arbiter::{DeviceQueue, TenantId, WaitingTenant};
use vgpu_policy::queue::{QueuePlace, expected_waits};

use super::{Reactor, arbiter_number};
use crate::leases::view::Explained;

#[expect(clippy::cast_precision_loss, reason = "for people: exact to the microsecond for a century")]
fn to_seconds(ns: u64) -> f64 {
    (ns / 1_000) as f64 / 1e6
}

impl Reactor {
    /// The queues for device time and for room.
    pub(super) fn queue_answer(&mut self) -> QueueAnswer {
        let now = clock::now();
        let names: BTreeMap<TenantId, String> =
            self.rooms.iter().map(|(id, room)| (arbiter_number(*id), room.tenant.name.clone())).collect();
        let name = |tenant: &TenantId| names.get(tenant).cloned();
        let mut time = Vec::new();
        for (device, queue) in self.leases.device_queues(now) {
            let expected = expected_waits(queue.left, &queue_places(&queue, now));
            for ((position, waiting), expected) in (1..).zip(&queue.waiting).zip(expected) {
                let Some(tenant) = name(&waiting.tenant) else { continue };
                time.push(QueuedTenant {
                    device: device.clone(),
                    position,
                    state: self.waiting_state(waiting, &device, now),
                    tenant,
                    members: waiting.queued,
                    waiting_seconds: to_seconds(now.saturating_sub(waiting.since)),
                    expected_seconds: expected.map(to_seconds),
                    holder: queue.holder.as_ref().and_then(name),
                });
            }
        }
        QueueAnswer { time, additions: self.queued_additions(now) }
    }

    fn waiting_state(&mut self, waiting: &WaitingTenant, device: &str, now: u64) -> String {
        let said = self.leases.explain_standing(waiting.tenant, now);
        let here = said.into_iter().find(|said: &Explained| said.device == device);
        here.map_or("waiting", |said| said.state).to_owned()
    }

    /// Notes the outcome of a request to add a tenant. `waits`: the command asks again until the tenant fits.
    pub(super) fn note_addition(&mut self, tenant: &str, waits: bool, refusal: Option<&DaemonRefusal>) {
        match refusal {
            Some(why) if waits && why.kind == Some(RefusalKind::DoesNotFit) => {
                self.additions.note_refusal(tenant, &why.words, clock::now());
            }
            // A request of another caller says nothing about the one that waits.
            Some(_) => {}
            None => self.additions.note_settled(tenant),
        }
    }

    fn queued_additions(&mut self, now: u64) -> Vec<QueuedAddition> {
        let next_end = self.added.next_end().map(|end| to_seconds(end.saturating_sub(now)));
        let waiting = self.additions.waiting(now);
        let one = |(position, one): (usize, crate::additions::WaitingAddition)| QueuedAddition {
            position,
            tenant: one.tenant,
            waiting_seconds: to_seconds(now.saturating_sub(one.since)),
            expected_seconds: next_end,
            words: one.words,
        };
        (1..).zip(waiting).map(one).collect()
    }
}

fn queue_places(queue: &DeviceQueue, now: u64) -> Vec<QueuePlace> {
    let place = |waiting: &WaitingTenant| QueuePlace {
        lease_ns: waiting.lease,
        earliest_ns: waiting.earliest.map(|earliest| earliest.saturating_sub(now)),
    };
    queue.waiting.iter().map(place).collect()
}

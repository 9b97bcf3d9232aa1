//! What administrators ask, answered: the verbs of [`control`] on the daemon at work.

use super::reactor::Reactor;
use crate::control::{Answer, Ask, Process};

impl Reactor {
    /// Answers a question that was understood.
    pub(super) fn administer(&mut self, ask: &Ask, answer: &mut Answer) {
        match ask {
            Ask::Status => answer.status = Some(self.status()),
            Ask::Ps => {
                let tenants = self.status().tenants.into_iter();
                let processes = tenants.flat_map(|tenant| {
                    let name = tenant.name;
                    tenant.members.into_iter().map(move |member| Process { tenant: name.clone(), member })
                });
                answer.members = Some(processes.collect());
            }
            Ask::Set { .. } | Ask::Pause { .. } | Ask::Resume { .. } | Ask::Explain { .. } => {
                answer.error = Some("not yet".into());
            }
        }
    }
}

//! Streams events to administrators that follow them, each at its own pace, and answers the metrics threads.
//!
//! A follower is sent events as fast as the kernel takes them; the next ones are read from the journal after that. So
//! it costs the daemon one buffer of [`EVENTS_PER_WRITE`] events. A follower that takes nothing for as long as any
//! peer may is closed, and can ask again from where it was.

use std::io;

use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::warn;

use super::{EVENTS_TOKEN, METRICS_TOKEN, Reactor, ServeError, serve_error};
use crate::asked::WakeReason;
use crate::connection::{Connection, ConnectionState};
use vgpu_control::event::DaemonEvent;
use vgpu_control::{ControlAnswer, DaemonFault};

/// Most events in one write.
const EVENTS_PER_WRITE: usize = 64;

/// Most followers at once: other administrators must still be able to connect.
const MAX_FOLLOWERS: usize = 8;

impl Reactor {
    /// Watches for events from other threads.
    pub(super) fn watch_journal(&self) -> Result<(), ServeError> {
        let Some(bell) = self.journal.bell_descriptor() else { return Ok(()) };
        epoll::add(&self.epoll, bell, EventData::new_u64(EVENTS_TOKEN), EventFlags::IN)
            .map_err(serve_error("watch for events"))
    }

    /// Watches for requests of the metrics threads.
    pub(super) fn watch_metrics(&self) -> Result<(), ServeError> {
        match &self.metrics {
            Some(Ok(metrics)) => epoll::add(&self.epoll, metrics, EventData::new_u64(METRICS_TOKEN), EventFlags::IN)
                .map_err(serve_error("watch for metrics")),
            Some(Err(why)) => {
                warn!("no metrics over HTTP; limits are still enforced: {why}");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A metrics thread asks for the status.
    pub(super) fn answer_metrics(&mut self) {
        let Some(Ok(metrics)) = &mut self.metrics else { return };
        match metrics.take_question() {
            WakeReason::Yes(_) => {
                let status = self.full_status();
                if let Some(Ok(metrics)) = &self.metrics {
                    metrics.answer_question(status);
                }
            }
            WakeReason::No => {}
            WakeReason::Gone => {
                let _ = epoll::delete(&self.epoll, metrics);
                self.metrics = Some(Err("the thread that serves them is gone".into()));
                warn!("no metrics over HTTP any more; limits are still enforced");
            }
        }
    }

    /// Services that do not work while limits are still enforced.
    pub(super) fn daemon_faults(&self) -> Vec<DaemonFault> {
        let audit = self.journal.audit_fault().map(|words| DaemonFault { what: "audit".into(), words });
        let metrics = self.metrics.as_ref().and_then(|metrics| metrics.as_ref().err());
        let metrics = metrics.map(|words| DaemonFault { what: "metrics".into(), words: words.clone() });
        let record = Some(self.record.record_status()).filter(|record| !record.ok);
        let record =
            record.map(|record| DaemonFault { what: "record".into(), words: record.words.unwrap_or_default() });
        let blind = self.proof.as_ref().and_then(|proof| proof.why_blind());
        let blind = blind.map(|words| DaemonFault { what: "proof".into(), words });
        audit.into_iter().chain(metrics).chain(record).chain(blind).collect()
    }

    /// Starts to send events from number `since` on: those that are kept, and with `follow` all later ones too.
    pub(super) fn begin_events(
        &self,
        connection: &mut Connection,
        answer: &mut ControlAnswer,
        since: u64,
        follow: bool,
    ) {
        let following = |connection: &&Connection| matches!(connection.state, ConnectionState::Following(..));
        if self.connections.values().filter(following).count() >= MAX_FOLLOWERS {
            answer.error = Some(format!("{MAX_FOLLOWERS} administrators follow events already"));
            return;
        }
        answer.following = Some(self.journal.event_position());
        connection.state = ConnectionState::Following(since.max(1), follow);
    }

    /// Sends a follower the events that it has not got, as far as the kernel takes them. False: close the connection.
    pub(super) fn send_events(&self, connection: &mut Connection) -> bool {
        while let ConnectionState::Following(next, follow) = connection.state {
            if !connection.is_flushed() {
                return true;
            }
            self.journal.wake_me();
            let events = self.journal.from(next, EVENTS_PER_WRITE);
            let Some(last) = events.last() else {
                return follow;
            };
            connection.state = ConnectionState::Following(last.seq + 1, follow);
            let sent = event_lines(events.iter().map(AsRef::as_ref)).and_then(|lines| connection.send(&lines));
            if sent.is_err() {
                return false;
            }
        }
        true
    }

    /// Sends new events to every follower that has received all earlier ones.
    pub(super) fn tell_followers(&mut self) {
        self.journal.silence_bell();
        let behind: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                matches!(connection.state, ConnectionState::Following(..)) && connection.is_flushed()
            })
            .map(|(token, _)| *token)
            .collect();
        for token in behind {
            self.serve(token);
        }
    }
}

fn event_lines<'e>(events: impl Iterator<Item = &'e DaemonEvent>) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for event in events {
        serde_json::to_writer(&mut lines, event)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

//! Signals that end the agent.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for SIGTERM and SIGINT.
#[derive(Debug)]
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Takes both signals from now on.
    ///
    /// # Errors
    /// A message: they cannot be waited for.
    pub fn listen() -> Result<Self, String> {
        let cannot = |why: std::io::Error| format!("signals cannot be waited for: {why}");
        let terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).map_err(cannot)? })
    }

    /// Returns when one of them has come.
    ///
    /// # Cancellation
    /// No signal is lost if the future is dropped.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

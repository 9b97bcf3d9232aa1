//! A thread for operations on files that somebody else chose, which may block forever.
//!
//! On a tenant's own file system (FUSE, or one mounted over another), stat, read and even close may never return.
//! They run on this thread. A caller waits for a bounded time, then abandons the thread and starts a new one. Not
//! here: which tenants are distrusted after that ([`super::ledgers`]).

use std::io;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// Handle to the thread.
pub struct Apart {
    jobs: Sender<Job>,
}

impl Apart {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (jobs, told) = channel::<Job>();
        thread::Builder::new().name("vgpud-apart".into()).stack_size(128 << 10).spawn(move || {
            for job in told {
                job();
            }
        })?;
        Ok(Self { jobs })
    }

    /// Runs `act` on the thread; `None` if it did not return in time. Then the thread is abandoned with everything
    /// `act` owns.
    ///
    /// # Cost
    /// Two wake-ups.
    pub fn run<T: Send + 'static>(
        &mut self,
        patience: Duration,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = sync_channel(1);
        // If the caller has given up, nobody receives the result and it is dropped on this thread.
        let sent = self.jobs.send(Box::new(move || drop(tell.send(act()))));
        let done = sent.ok().and_then(|()| told.recv_timeout(patience).ok());
        if done.is_none()
            && let Ok(fresh) = Self::start()
        {
            *self = fresh;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_come_back_is_given_up_and_the_next_job_is_done_all_the_same() {
        let mut apart = Apart::start().unwrap();
        assert_eq!(apart.run(Duration::from_secs(10), || 7), Some(7));
        let (end, ended) = channel::<()>();
        assert_eq!(apart.run(Duration::from_millis(10), move || ended.recv().is_ok()), None);
        assert_eq!(apart.run(Duration::from_secs(10), || 8), Some(8));
        drop(end);
    }
}

//! A thread for what may never end: everything that is done with a file that somebody else chose.
//!
//! A file on a file system of a tenant's own (FUSE, or something over it) may block whoever looks at it, reads it or only
//! closes it, for ever. So that is done by a thread that is given up when it does not come back; whoever waits for it waits
//! for a bounded time and goes on with a fresh one. Not here: who is not trusted any more then ([`super::ledgers`]).

use std::io;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// The thread.
pub struct Apart {
    jobs: Sender<Job>,
}

impl Apart {
    /// Starts it.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, told) = channel::<Job>();
        thread::Builder::new().name("vgpud-apart".into()).stack_size(128 << 10).spawn(move || {
            for job in told {
                job();
            }
        })?;
        Ok(Self { jobs })
    }

    /// Does something there; `None`: it did not come back in time, and the thread was given up with all that the job owns.
    ///
    /// # Cost
    /// Two wake-ups.
    pub fn run<T: Send + 'static>(
        &mut self,
        patience: Duration,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = sync_channel(1);
        // Who has given up is not there to hear it: what came of it ends there.
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

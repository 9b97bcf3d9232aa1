//! Asks the driver again for devices that the file names by number, and for lost devices, until they answer.
//!
//! A driver may be loaded after the daemon starts, at boot or after its module was rebuilt. Asking it can take long
//! or hang, so a helper thread does it. The thread ends when the driver has answered, or when the answer is no longer
//! needed. Pauses grow from 1 s to 30 s. Not here: the changes that follow from the answer (`reload`).

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use vgpu_config::inventory::{self, Inventory};

const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// A driver that is being asked. Becomes readable when it has answered.
pub struct DriverInquiry {
    rings: UnixStream,
    answer: Receiver<Inventory>,
    /// Nothing is sent over it. The thread sleeps on the other end, which wakes when this one is dropped.
    _wants: Sender<()>,
}

impl DriverInquiry {
    /// Starts the thread, which asks until there are more than `known` devices, or none is silent.
    ///
    /// # Errors
    /// No thread can be started, or no descriptor is left.
    pub fn begin_inquiry(known: usize) -> io::Result<Self> {
        let (rings, mut ring) = UnixStream::pair()?;
        rings.set_nonblocking(true)?;
        let ((tell, answer), (wants, wanted)) = (channel(), channel());
        thread::Builder::new().name("vgpud-nvml".into()).spawn(move || {
            let is_wanted = |pause| wanted.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
            if let Some(found) = until_found(&inventory::ask_driver, &is_wanted, known)
                && tell.send(found).is_ok()
            {
                let _ = ring.write_all(&[1]);
            }
        })?;
        Ok(Self { rings, answer, _wants: wants })
    }

    /// The driver's answer, if it is there.
    pub fn take_answer(&mut self) -> Option<Inventory> {
        let _ = self.rings.read(&mut [0; 8]);
        self.answer.try_recv().ok()
    }
}

impl AsFd for DriverInquiry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings.as_fd()
    }
}

/// Asks after each pause, while the answer is needed.
fn until_found(
    ask: &dyn Fn() -> Result<Inventory, String>,
    is_wanted: &dyn Fn(Duration) -> bool,
    known: usize,
) -> Option<Inventory> {
    let mut pause = FIRST_RETRY_PAUSE;
    while is_wanted(pause) {
        match ask() {
            Ok(all) if !all.found.is_empty() && (all.silent.is_empty() || all.found.len() > known) => return Some(all),
            // An answer without devices, or without a further one, identifies none either.
            Ok(_) | Err(_) => pause = MAX_RETRY_PAUSE.min(pause * 2),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use vgpu_core::units::bytes::Bytes;

    use super::*;
    use vgpu_config::inventory::FoundDevice;

    #[test]
    fn a_driver_is_asked_ever_more_rarely_until_it_has_a_device() {
        let (asked, pauses) = (Cell::new(0), RefCell::new(Vec::new()));
        let ask = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                0..8 => Err("no".to_owned()),
                8 => Ok(Inventory::default()),
                _ => {
                    let uuid = "GPU-1".into();
                    let found = FoundDevice { index: 0, parent: None, uuid, memory: Some(Bytes(1)), model: None };
                    Ok(Inventory { found: vec![found], silent: Vec::new() })
                }
            }
        };
        let wanted = |pause: Duration| {
            pauses.borrow_mut().push(pause.as_secs());
            true
        };
        let all = until_found(&ask, &wanted, 0).unwrap();
        assert_eq!((all.found.len(), pauses.into_inner()), (1, vec![1, 2, 4, 8, 16, 30, 30, 30, 30]));
    }
    #[test]
    fn nobody_is_asked_when_nobody_wants_to_know() {
        let left = Cell::new(3);
        let ask = || {
            left.set(left.get() - 1);
            Err("no".to_owned())
        };
        assert!(until_found(&ask, &|_| left.get() > 0, 0).is_none());
        assert_eq!(left.get(), 0);
    }
}

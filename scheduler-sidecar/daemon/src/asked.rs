//! Requests of a helper thread to the reactor: a byte over a socket; the answer goes over a channel.

use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;

/// Result of reading the socket that carries requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// One or several requests; the greatest of their bytes that were read last.
    Yes(u8),
    /// No request.
    No,
    /// The thread has ended. Stop watching the socket, which is readable for ever.
    Gone,
}

/// Reads all requests that are pending.
pub fn read_questions(stream: &mut UnixStream) -> WakeReason {
    let mut asked = WakeReason::No;
    loop {
        let mut bytes = [0; 64];
        match stream.read(&mut bytes) {
            Ok(0) => return WakeReason::Gone,
            Ok(length) => asked = WakeReason::Yes(bytes.iter().take(length).copied().max().unwrap_or(0)),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) if why.kind() == ErrorKind::WouldBlock => return asked,
            Err(_) => return WakeReason::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_thread_that_is_gone_is_told_from_one_that_asks_nothing() {
        let (mut asked, mut ask) = UnixStream::pair().unwrap();
        asked.set_nonblocking(true).unwrap();
        assert_eq!(read_questions(&mut asked), WakeReason::No);
        ask.write_all(&[0, 1]).unwrap();
        assert_eq!((read_questions(&mut asked), read_questions(&mut asked)), (WakeReason::Yes(1), WakeReason::No));
        drop(ask);
        assert_eq!(read_questions(&mut asked), WakeReason::Gone);
    }
}

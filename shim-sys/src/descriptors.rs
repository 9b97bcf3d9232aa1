//! Passes descriptors along with bytes through a Unix socket (SCM_RIGHTS).
//!
//! Each call is one `sendmsg` or `recvmsg`. The kernel attaches descriptors to the first byte they were sent with.
//! One `recvmsg` never merges the descriptors of two messages. A plain `read` of those bytes drops the descriptors.
//!
//! Both sides are in this crate for the reason given in [`crate::memfd`]. The daemon only sends descriptors; the kernel
//! drops those that a member sends it. Not here: lines and their limits (vgpu-core's `wire`), the use of a descriptor
//! ([`crate::memfd`]).

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors in one message.
pub const MAX_DESCRIPTORS_PER_MESSAGE: usize = 16;

/// Buffer for [`MAX_DESCRIPTORS_PER_MESSAGE`] descriptors and their header, aligned as the kernel requires.
#[repr(C)]
union DescriptorRoom {
    bytes: [u8; CONTROL],
    _align: libc::cmsghdr,
}

#[allow(clippy::cast_possible_truncation)] // constants below 100
const PAYLOAD: u32 = (MAX_DESCRIPTORS_PER_MESSAGE * size_of::<RawFd>()) as u32;
// SAFETY: arithmetic on a number; no memory is touched.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(PAYLOAD) } as usize;

/// Duplicates the descriptor `number` of this process. The copy belongs to the caller and is close-on-exec. For
/// descriptors that are passed by their number, as service managers do.
///
/// # Errors
/// The system's error: no such descriptor, or too many.
pub fn copy_of(number: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers; for a number that is no descriptor it returns an error.
    let raw = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Marks the descriptor `number` of this process close-on-exec, for a process that becomes another program. A number
/// that is no descriptor is ignored.
pub fn close_on_exec(number: i32) {
    // SAFETY: the call takes numbers; for a number that is no descriptor it returns an error.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// True if the other end has not yet received everything sent through this socket, including descriptors.
///
/// # Cost
/// One system call.
#[must_use]
pub fn is_unread(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: an open descriptor; the kernel writes an int, or says that it is no socket.
    let known = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } == 0;
    known && bytes > 0
}

/// Sends `bytes` (not empty) with `files` attached to the first one. Returns the number of bytes sent. If that is
/// less than all, the caller sends the rest without descriptors, by another call or a plain `send`.
///
/// # Errors
/// `InvalidInput`: no byte, or more than [`MAX_DESCRIPTORS_PER_MESSAGE`] files. `WouldBlock`: nothing was sent, on a
/// nonblocking socket. Others: the kernel's error; a closed peer is an error and not a signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
    if bytes.is_empty() || files.len() > MAX_DESCRIPTORS_PER_MESSAGE {
        return Err(Error::from(ErrorKind::InvalidInput));
    }
    let mut room = DescriptorRoom { bytes: [0; CONTROL] };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message_header(&mut part, &mut room);
    if files.is_empty() {
        message.msg_control = core::ptr::null_mut();
        message.msg_controllen = 0;
    } else {
        #[allow(clippy::cast_possible_truncation)] // at most MOST descriptors
        let payload = size_of_val(files) as u32;
        // SAFETY: the buffer holds a header and MOST descriptors, and there are no more; the header is aligned in it.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (at, file) in files.iter().enumerate() {
                data.add(at).write_unaligned(file.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: message, part and room live through the call and describe our own memory.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => retry_if_interrupted()?,
        }
    }
}

/// Receives into `bytes` (not empty), and appends the received descriptors to `files`, all close-on-exec. Returns the
/// number of bytes, 0 at the end of the stream. The descriptors have the lowest free numbers: inside another program
/// the caller moves those that it keeps ([`crate::shared_file::out_of_the_way`]).
///
/// # Errors
/// `InvalidInput`: `bytes` is empty. `InvalidData`: more than [`MAX_DESCRIPTORS_PER_MESSAGE`] descriptors arrived, or
/// more than this process may have; all of them are closed. `WouldBlock` and others: the kernel's error.
pub fn receive_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return Err(Error::from(ErrorKind::InvalidInput));
    }
    let mut room = DescriptorRoom { bytes: [0; CONTROL] };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message_header(&mut part, &mut room);
    let got = loop {
        // SAFETY: as in `send`; the kernel writes at most what the lengths say.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(got) {
            Ok(got) => break got,
            Err(_) => retry_if_interrupted()?,
        }
    };
    let before = files.len();
    // SAFETY: the kernel filled the room up to msg_controllen with whole headers; the walk stays inside it. Each
    // descriptor is new and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(here) = header.as_ref() {
            if here.cmsg_level == libc::SOL_SOCKET && here.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                #[allow(clippy::unnecessary_cast)] // another width with another C library
                let payload = (here.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for at in 0..payload / size_of::<RawFd>() {
                    files.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        files.truncate(before);
        return Err(Error::new(ErrorKind::InvalidData, "more descriptors came than this process can take"));
    }
    Ok(got)
}

fn message_header(part: &mut libc::iovec, room: &mut DescriptorRoom) -> libc::msghdr {
    // SAFETY: msghdr is a plain C struct for which all zeroes is valid (and its padding must be zero).
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = core::ptr::from_mut(room).cast();
    message.msg_controllen = CONTROL as _;
    message
}

/// `Ok`: interrupted by a signal, try again.
fn retry_if_interrupted() -> std::io::Result<()> {
    let error = Error::last_os_error();
    if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(file: impl AsFd) -> (u64, u64) {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        let meta = file.metadata().unwrap();
        (meta.dev(), meta.ino())
    }

    #[test]
    fn what_nobody_took_out_is_unread() {
        let (here, mut there) = UnixStream::pair().unwrap();
        assert!(!is_unread(here.as_fd()));
        assert_eq!(send(here.as_fd(), b"one\n", &[here.as_fd()]).unwrap(), 4);
        assert!(is_unread(here.as_fd()));
        there.read_exact(&mut [0; 4]).unwrap();
        assert!(!is_unread(here.as_fd()));
    }

    #[test]
    fn descriptors_come_with_their_bytes_in_order_and_close_on_exec() {
        let (here, there) = UnixStream::pair().unwrap();
        let sent: Vec<UnixStream> = (0..MAX_DESCRIPTORS_PER_MESSAGE).map(|_| UnixStream::pair().unwrap().0).collect();
        let borrowed: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
        assert_eq!(send(here.as_fd(), b"one\n", &borrowed).unwrap(), 4);
        assert_eq!(send(here.as_fd(), b"two\n", &borrowed[..2]).unwrap(), 4);
        assert_eq!(send(here.as_fd(), b"three\n", &[]).unwrap(), 6);
        let (mut buffer, mut files) = ([0; 64], Vec::new());
        assert_eq!(
            receive_descriptors(there.as_fd(), &mut buffer, &mut files).unwrap(),
            4,
            "never two messages' descriptors"
        );
        assert_eq!(files.iter().map(inode).collect::<Vec<_>>(), sent.iter().map(inode).collect::<Vec<_>>());
        for file in &files {
            // SAFETY: asks for the flags of an open descriptor.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        }
        files.clear();
        let mut got = 0;
        while got < 10 {
            got += receive_descriptors(there.as_fd(), &mut buffer[got..], &mut files).unwrap();
        }
        assert_eq!((&buffer[..10], files.len()), (b"two\nthree\n".as_slice(), 2));
        drop(here);
        assert_eq!(receive_descriptors(there.as_fd(), &mut buffer, &mut files).unwrap(), 0);
    }

    #[test]
    fn a_plain_read_takes_no_descriptor() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        send(here.as_fd(), b"x", &[one.as_fd()]).unwrap();
        drop(one);
        let mut buffer = [0; 1];
        there.read_exact(&mut buffer).unwrap();
        // The last copy was dropped with the byte, so its peer sees the end of the stream.
        assert_eq!((&other).read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn what_cannot_be_sent_or_received_is_an_error() {
        let (here, there) = UnixStream::pair().unwrap();
        let many = vec![here.as_fd(); MAX_DESCRIPTORS_PER_MESSAGE + 1];
        assert_eq!(send(here.as_fd(), b"x", &many).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(send(here.as_fd(), b"", &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            receive_descriptors(here.as_fd(), &mut [], &mut Vec::new()).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        here.set_nonblocking(true).unwrap();
        assert_eq!(
            receive_descriptors(here.as_fd(), &mut [0], &mut Vec::new()).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(there);
        assert_eq!(send(here.as_fd(), b"x", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn more_descriptors_than_there_is_room_for_are_refused_and_none_is_kept() {
        let (here, there) = UnixStream::pair().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        // Twice the allowed number in one message, which only a hostile sender does.
        let mut room = [0u64; 64];
        let mut part = libc::iovec { iov_base: b"x".as_ptr().cast_mut().cast(), iov_len: 1 };
        let count = 2 * MAX_DESCRIPTORS_PER_MESSAGE;
        // SAFETY: as in `send`, with room for twice as many.
        unsafe {
            let mut message: libc::msghdr = core::mem::zeroed();
            let payload = u32::try_from(count * size_of::<RawFd>()).unwrap();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            for at in 0..count {
                libc::CMSG_DATA(header).cast::<RawFd>().add(at).write_unaligned(one.as_raw_fd());
            }
            assert_eq!(libc::sendmsg(here.as_raw_fd(), &raw const message, 0), 1);
        }
        drop(one);
        let mut files = vec![there.try_clone().unwrap().into()];
        let error = receive_descriptors(there.as_fd(), &mut [0; 8], &mut files).unwrap_err();
        assert_eq!((error.kind(), files.len()), (ErrorKind::InvalidData, 1));
        assert_eq!((&other).read(&mut [0]).unwrap(), 0, "all of them are closed");
    }
}

//! Makes requests of older kubelets acceptable to the HTTP/2 server.
//!
//! A kubelet before 1.26 sends the path of the socket as `:authority`. The server's library refuses such a request,
//! because a path is no authority (PROTOCOL_ERROR), and the kubelet then has no devices. Nothing here uses the
//! authority, so this stream replaces its value by letters. The new value has the length of the old one: both sides
//! keep a table of earlier values, and count its size in bytes.
//!
//! Not here: header blocks in several frames and padded ones, which kubelets do not send. They pass unchanged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// Bytes that a client sends before its first frame.
const PREFACE_BYTES: usize = 24;
/// Bytes in front of a frame's payload: its length in three, type, flags, stream in four.
const FRAME_HEADER_BYTES: usize = 9;
/// Longest payload of a frame that the server accepts. A longer one passes unchanged, and is refused there.
const MAX_PAYLOAD_BYTES: usize = 16 << 10;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a priority, in front of the header block.
const PRIORITY_BYTES: usize = 5;
/// Number of `:authority` in the table of well-known headers.
const AUTHORITY: usize = 1;

/// Lengths of the Huffman code's words in bits, and the number of words of that length (RFC 7541, appendix B). The code
/// is canonical, so these two determine it.
const WORDS: [(u32, u32); 21] = [
    (5, 10),
    (6, 26),
    (7, 32),
    (8, 6),
    (10, 5),
    (11, 3),
    (12, 2),
    (13, 6),
    (14, 2),
    (15, 3),
    (19, 3),
    (20, 8),
    (21, 13),
    (22, 26),
    (23, 29),
    (24, 12),
    (25, 4),
    (26, 15),
    (27, 19),
    (28, 29),
    (30, 4),
];

/// A connection of the kubelet.
#[derive(Debug)]
pub struct KubeletStream {
    inner: UnixStream,
    frames: Frames,
    /// Bytes for the server.
    fit: Vec<u8>,
}

/// Bytes that a client sent and that no server has read yet.
#[derive(Debug, Default)]
struct Frames {
    received: Vec<u8>,
    has_preface: bool,
}

impl KubeletStream {
    /// Wraps a connection.
    #[must_use]
    pub fn new(inner: UnixStream) -> Self {
        Self { inner, frames: Frames::default(), fit: Vec::new() }
    }
}

impl Frames {
    /// Takes everything that is whole, with valid authorities.
    fn take_whole(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        if !self.has_preface {
            if self.received.len() < PREFACE_BYTES {
                return whole;
            }
            self.has_preface = true;
            whole.extend(self.received.drain(..PREFACE_BYTES));
        }
        while let Some(&[high, middle, low, kind, flags, ..]) = self.received.first_chunk::<FRAME_HEADER_BYTES>() {
            let payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if payload > MAX_PAYLOAD_BYTES {
                whole.append(&mut self.received);
                return whole;
            }
            let end = FRAME_HEADER_BYTES + payload;
            if self.received.len() < end {
                return whole;
            }
            let frame: Vec<u8> = self.received.drain(..end).collect();
            let is_plain = kind == HEADERS && flags & END_HEADERS != 0 && flags & PADDED == 0;
            whole.extend(is_plain.then(|| replace_in_frame(&frame, flags)).flatten().unwrap_or(frame));
        }
        whole
    }
}

/// Returns the frame with another authority; `None`: it has none, or is not understood.
fn replace_in_frame(frame: &[u8], flags: u8) -> Option<Vec<u8>> {
    let begin = FRAME_HEADER_BYTES + if flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
    let block = replace_in_block(frame.get(begin..)?)?;
    let payload = begin - FRAME_HEADER_BYTES + block.len();
    let [.., high, middle, low] = u32::try_from(payload).ok().filter(|_| payload <= MAX_PAYLOAD_BYTES)?.to_be_bytes();
    Some([&[high, middle, low], &frame[3..begin], &block].concat())
}

/// Returns a header block with another authority; `None`: it has none, or is not understood.
fn replace_in_block(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        let (name_bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (name, mut next) = read_number(block, at, name_bits)?;
        if is_literal {
            if name == 0 {
                next = read_string(block, next)?.1;
            }
            let (letters, end) = read_string(block, next)?;
            if name == AUTHORITY && letters > 0 {
                let value = [write_length(letters), vec![b'a'; letters]].concat();
                return Some([&block[..next], &value, &block[end..]].concat());
            }
            next = end;
        }
        at = next;
    }
    None
}

/// Reads a number whose first byte has so many bits for it. Returns it, and the place behind it.
fn read_number(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1 << bits) - 1;
    let number = usize::from(*block.get(at)?) & most;
    if number < most {
        return Some((number, at + 1));
    }
    let (mut number, mut shift) = (most, 0);
    for (index, &byte) in block.get(at + 1..)?.iter().enumerate().take(3) {
        number += (usize::from(byte) & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((number, at + 2 + index));
        }
        shift += 7;
    }
    None
}

/// Reads a string. Returns the number of its letters, and the place behind it.
fn read_string(block: &[u8], at: usize) -> Option<(usize, usize)> {
    let is_coded = block.get(at)? & 0x80 != 0;
    let (length, begin) = read_number(block, at, 7)?;
    let bytes = block.get(begin..begin + length)?;
    Some((if is_coded { count_letters(bytes)? } else { length }, begin + length))
}

/// The length of a string that is not coded.
fn write_length(letters: usize) -> Vec<u8> {
    let mut rest = match u8::try_from(letters) {
        Ok(short @ 0..0x7f) => return vec![short],
        _ => letters - 0x7f,
    };
    let mut bytes = vec![0x7f];
    loop {
        let low = u8::try_from(rest & 0x7f).unwrap_or(0);
        rest >>= 7;
        bytes.push(if rest == 0 { low } else { low | 0x80 });
        if rest == 0 {
            return bytes;
        }
    }
}

/// Counts the letters of a Huffman-coded string; `None`: it is none. Its last byte is filled up with ones.
fn count_letters(bytes: &[u8]) -> Option<usize> {
    let (mut letters, mut word, mut length) = (0, 0_u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1))) {
        word = word << 1 | bit;
        length += 1;
        if is_word(word, length) {
            letters += 1;
            (word, length) = (0, 0);
        }
    }
    (length < 8 && word == (1 << length) - 1).then_some(letters)
}

/// True if these bits are a word of the code.
fn is_word(bits: u32, length: u32) -> bool {
    let (mut first, mut before) = (0, 0);
    for (of_length, count) in WORDS {
        first <<= of_length - before;
        if of_length == length {
            return (first..first + count).contains(&bits);
        }
        (first, before) = (first + count, of_length);
    }
    false
}

impl AsyncRead for KubeletStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.fit.is_empty() {
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let this = &mut *self;
            this.frames.received.extend_from_slice(read.filled());
            this.fit = this.frames.take_whole();
        }
        let count = self.fit.len().min(buffer.remaining());
        let now: Vec<u8> = self.fit.drain(..count).collect();
        buffer.put_slice(&now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for KubeletStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl Connected for KubeletStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The header block of a kubelet 1.20 that calls ListAndWatch.
    const BLOCK: &[u8] = b"\x83\x86E\x99c\xb8c*F\x15\xef\x97\xb9\x88]t[1\xaac9\x90\x98j\x93\x90\xd2I\xffA\xa2c\xb8\xecb\
        \x83F\xc7[c-\x05K\x12\x17\xb9\x88U\xab\xa2\xd9\x8dR\x18\xef5v\xac\x8aGE\x0b\xa0\xe4\xeb_\x8b\x1du\xd0b\x0d&=LMedz\
        \x8a\x9a\xca\xc8\xb4\xc7`+\x89\xd5\xc3@\x02te\x86M\x835\x05\xb1\x1f";
    const SOCKET: &str = "/var/lib/kubelet/device-plugins/vgpu-small.sock";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn the_authority_of_an_old_kubelet_becomes_one_of_the_same_length_and_nothing_else_changes() {
        let fit = replace_in_block(BLOCK).unwrap();
        let begin = BLOCK.iter().position(|byte| *byte == b'A').unwrap() + 1;
        let value = [&[u8::try_from(SOCKET.len()).unwrap()], "a".repeat(SOCKET.len()).as_bytes()].concat();
        assert_eq!(fit[..begin], BLOCK[..begin]);
        assert_eq!(fit[begin..begin + value.len()], value);
        assert_eq!(fit[begin + value.len()..], BLOCK[begin + 1 + 34..]);
    }

    #[test]
    fn frames_that_come_byte_by_byte_are_those_that_come_at_once() {
        let settings = frame(4, 0, b"");
        let with_priority = frame(HEADERS, END_HEADERS | PRIORITY, &[&[0, 0, 0, 0, 9], BLOCK].concat());
        let sent =
            [&[b'p'; PREFACE_BYTES][..], &settings, &frame(HEADERS, END_HEADERS, BLOCK), &with_priority].concat();
        let mut at_once = Frames { received: sent.clone(), ..Frames::default() };
        let whole = at_once.take_whole();
        assert!(at_once.received.is_empty());
        let mut slowly = Frames::default();
        let pieces: Vec<u8> = sent
            .iter()
            .flat_map(|byte| {
                slowly.received.push(*byte);
                slowly.take_whole()
            })
            .collect();
        assert_eq!(pieces, whole);
        let letters = "a".repeat(SOCKET.len());
        let found = whole.windows(SOCKET.len()).filter(|part| *part == letters.as_bytes()).count();
        assert_eq!(found, 2);
        assert_eq!(whole[whole.len() - 15..], sent[sent.len() - 15..]);
    }

    #[test]
    fn long_values_and_names_that_are_spelt_out_are_read() {
        let long = "x".repeat(300);
        let spelt = [&[0x40, 2], &b"te"[..], &[3], b"abc"].concat();
        let block = [&spelt[..], &[0x41], &write_length(300), long.as_bytes(), &[0x82]].concat();
        let wanted = [&spelt[..], &[0x41], &write_length(300), "a".repeat(300).as_bytes(), &[0x82]].concat();
        assert_eq!(replace_in_block(&block).unwrap(), wanted);
        assert_eq!(replace_in_block(&[0x82, 0x84]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_pass_without_a_panic_and_none_is_lost_that_is_no_authority(bytes: Vec<u8>, payload: Vec<u8>) {
            let _ = replace_in_block(&bytes);
            let data = [&[b'p'; PREFACE_BYTES][..], &frame(0, 0, &payload[..payload.len().min(255)])].concat();
            let mut frames = Frames { received: data.clone(), ..Frames::default() };
            prop_assert_eq!(frames.take_whole(), data);
        }
    }
}

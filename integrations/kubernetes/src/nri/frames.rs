//! Frames of NRI's one connection: two streams of bytes side by side, with messages of ttrpc in each. Pure.
//!
//! ```text
//! [stream: u32][length: u32] bytes...                                    one of the two streams
//!                            [length: u32][call: u32][kind: u8][flags: u8] message...      ttrpc in it
//! ```
//! Numbers are big-endian. The crate `ttrpc` wants a socket for itself, and generated messages of another crate, so
//! these lines take its place.

use std::collections::BTreeMap;

/// Stream in which the runtime calls the plugin.
pub const PLUGIN_STREAM: u32 = 1;
/// Stream in which the plugin calls the runtime.
pub const RUNTIME_STREAM: u32 = 2;
/// Kind of a message: a call.
pub const REQUEST_KIND: u8 = 1;
/// Kind of a message: an answer.
pub const RESPONSE_KIND: u8 = 2;

/// Longest message, as ttrpc bounds it.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Most bytes in a frame that is written.
const MAX_CHUNK_BYTES: usize = 1 << 16;
const STREAM_HEADER_BYTES: usize = 8;
const MESSAGE_HEADER_BYTES: usize = 10;

/// A message of ttrpc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TtrpcMessage {
    /// The stream that it came in.
    pub stream: u32,
    /// Number of the call.
    pub call: u32,
    /// [`REQUEST_KIND`] or [`RESPONSE_KIND`].
    pub kind: u8,
    /// A request or a response.
    pub payload: Vec<u8>,
}

/// Bytes that were read and are no whole message yet.
#[derive(Debug, Default)]
pub struct FrameReader {
    frames: Vec<u8>,
    streams: BTreeMap<u32, Vec<u8>>,
}

impl FrameReader {
    /// Takes bytes of the connection, and returns the messages that are whole.
    ///
    /// # Errors
    /// A message is longer than [`MAX_MESSAGE_BYTES`]; the connection is of no use any more.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<TtrpcMessage>, String> {
        self.frames.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some((stream, rest)) = read_number(&self.frames) {
            let Some((length, rest)) = read_number(rest) else { break };
            let length = checked_length(length)?;
            let Some(chunk) = rest.get(..length) else { break };
            let held = self.streams.entry(stream).or_default();
            held.extend_from_slice(chunk);
            self.frames.drain(..STREAM_HEADER_BYTES + length);
            while let Some(message) = take_message(stream, held)? {
                whole.push(message);
            }
        }
        Ok(whole)
    }
}

fn take_message(stream: u32, held: &mut Vec<u8>) -> Result<Option<TtrpcMessage>, String> {
    let Some((length, rest)) = read_number(held) else { return Ok(None) };
    let Some((call, rest)) = read_number(rest) else { return Ok(None) };
    let length = checked_length(length)?;
    let [kind, _flags, rest @ ..] = rest else { return Ok(None) };
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let message = TtrpcMessage { stream, call, kind: *kind, payload: payload.to_vec() };
    held.drain(..MESSAGE_HEADER_BYTES + length);
    Ok(Some(message))
}

fn read_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

fn checked_length(length: u32) -> Result<usize, String> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let words = || format!("the runtime sent {length} bytes at once; accepted: at most {MAX_MESSAGE_BYTES}");
    (length <= MAX_MESSAGE_BYTES).then_some(length).ok_or_else(words)
}

impl TtrpcMessage {
    /// Returns the message in frames.
    #[must_use]
    pub fn to_frames(&self) -> Vec<u8> {
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        let mut message = Vec::with_capacity(MESSAGE_HEADER_BYTES + self.payload.len());
        message.extend_from_slice(&number(self.payload.len()));
        message.extend_from_slice(&self.call.to_be_bytes());
        message.extend_from_slice(&[self.kind, 0]);
        message.extend_from_slice(&self.payload);
        let mut frames = Vec::new();
        for chunk in message.chunks(MAX_CHUNK_BYTES) {
            frames.extend_from_slice(&self.stream.to_be_bytes());
            frames.extend_from_slice(&number(chunk.len()));
            frames.extend_from_slice(chunk);
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_of_both_streams_come_out_whole_however_the_bytes_are_cut(
            sizes in prop::collection::vec((1_u32..3, 0_usize..200_000), 1..6), cut in 1_usize..100_000,
        ) {
            let sent: Vec<TtrpcMessage> = sizes.iter().enumerate().map(|(number, (stream, size))| TtrpcMessage {
                stream: *stream, call: u32::try_from(number).unwrap(), kind: REQUEST_KIND, payload: vec![7; *size],
            }).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(TtrpcMessage::to_frames).collect();
            let mut reader = FrameReader::default();
            let read: Vec<_> = bytes.chunks(cut).flat_map(|part| reader.take(part).unwrap()).collect();
            prop_assert_eq!(read, sent);
        }
    }

    #[test]
    fn a_length_that_nobody_sends_is_refused_and_not_waited_for() {
        let refused = |bytes: &[u8]| FrameReader::default().take(bytes).unwrap_err();
        assert!(refused(&[0, 0, 0, 1, 0xff, 0, 0, 0]).contains("accepted: at most 4194304"));
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 10];
        bytes.extend([0xff, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
        assert!(refused(&bytes).contains("accepted: at most 4194304"));
        assert_eq!(FrameReader::default().take(&[0, 0, 0]).unwrap(), []);
    }
}

//! The plugin's connection to the runtime: it registers, then the runtime calls.

use std::path::Path;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::frames::{FrameReader, PLUGIN_STREAM, REQUEST_KIND, RESPONSE_KIND, RUNTIME_STREAM, TtrpcMessage};
use crate::api::nri::{RUNTIME_SERVICE, RegisterPluginRequest, TtrpcRequest, TtrpcResponse, TtrpcStatus};

/// Longest wait for the answer to the registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Kind of a failure: the call cannot be carried out now.
pub const FAILED_PRECONDITION: i32 = 9;
/// Kind of a failure: there is no such call.
pub const UNIMPLEMENTED: i32 = 12;

/// A call of the runtime.
#[derive(Debug, Clone)]
pub struct RuntimeCall {
    /// Number of the call.
    number: u32,
    /// Name of the method.
    pub method: String,
    /// The message.
    pub payload: Vec<u8>,
}

/// A connection of a registered plugin.
#[derive(Debug)]
pub struct RuntimeConnection {
    stream: UnixStream,
    reader: FrameReader,
    waiting: Vec<TtrpcMessage>,
}

impl RuntimeConnection {
    /// Connects to the runtime and registers a plugin.
    ///
    /// # Errors
    /// A message: nobody listens there, or the runtime refuses.
    pub async fn register(socket: &Path, name: &str, index: &str) -> Result<Self, String> {
        let at = |why: &dyn std::fmt::Display| format!("{}: {why}", socket.display());
        let stream = UnixStream::connect(socket).await.map_err(|why| at(&why))?;
        let mut connection = Self { stream, reader: FrameReader::default(), waiting: Vec::new() };
        let register = RegisterPluginRequest { plugin_name: name.to_owned(), plugin_idx: index.to_owned() };
        let request = TtrpcRequest {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
            timeout_nano: 0,
        };
        let payload = request.encode_to_vec();
        let message = TtrpcMessage { stream: RUNTIME_STREAM, call: 1, kind: REQUEST_KIND, payload };
        connection.write(&message).await.map_err(|why| at(&why))?;
        let answered = timeout(REGISTER_TIMEOUT, connection.await_registration()).await;
        answered.map_err(|_| at(&"the runtime does not answer"))?.map_err(|why| at(&why))?;
        Ok(connection)
    }

    /// Waits for the answer to the registration. Calls that come before it are kept.
    async fn await_registration(&mut self) -> Result<(), String> {
        loop {
            let is_answer = |message: &TtrpcMessage| message.stream == RUNTIME_STREAM && message.kind == RESPONSE_KIND;
            if let Some(at) = self.waiting.iter().position(is_answer) {
                let answer = TtrpcResponse::decode(&*self.waiting.remove(at).payload).map_err(|why| why.to_string())?;
                let refused = answer.status.filter(|status| status.code != 0);
                return refused
                    .map_or(Ok(()), |status| Err(format!("the runtime refuses the plugin: {}", status.message)));
            }
            self.read_more().await?;
        }
    }

    /// Returns the next call of the runtime.
    ///
    /// # Errors
    /// A message: the runtime has hung up, or sent nonsense.
    ///
    /// # Cancellation
    /// No byte is lost if the future is dropped.
    pub async fn next_call(&mut self) -> Result<RuntimeCall, String> {
        loop {
            while !self.waiting.is_empty() {
                let message = self.waiting.remove(0);
                if message.stream == PLUGIN_STREAM && message.kind == REQUEST_KIND {
                    let request = TtrpcRequest::decode(&*message.payload).map_err(|why| why.to_string())?;
                    let TtrpcRequest { method, payload, .. } = request;
                    return Ok(RuntimeCall { number: message.call, method, payload });
                }
            }
            self.read_more().await?;
        }
    }

    /// Answers a call: with a message, or with the kind of a failure and words.
    ///
    /// # Errors
    /// A message: the runtime has hung up.
    pub async fn answer(&mut self, call: &RuntimeCall, answer: Result<Vec<u8>, (i32, String)>) -> Result<(), String> {
        let response = match answer {
            Ok(payload) => TtrpcResponse { status: None, payload },
            Err((code, message)) => TtrpcResponse { status: Some(TtrpcStatus { code, message }), payload: Vec::new() },
        };
        let payload = response.encode_to_vec();
        self.write(&TtrpcMessage { stream: PLUGIN_STREAM, call: call.number, kind: RESPONSE_KIND, payload }).await
    }

    async fn write(&mut self, message: &TtrpcMessage) -> Result<(), String> {
        self.stream.write_all(&message.to_frames()).await.map_err(|why| why.to_string())
    }

    async fn read_more(&mut self) -> Result<(), String> {
        let mut bytes = [0; 1 << 16];
        match self.stream.read(&mut bytes).await {
            Ok(0) => Err("the runtime has hung up".to_owned()),
            Ok(count) => {
                self.waiting.extend(self.reader.take(&bytes[..count])?);
                Ok(())
            }
            Err(why) => Err(why.to_string()),
        }
    }
}

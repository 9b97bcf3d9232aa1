//! A client of the API server: the few requests of a driver, over HTTPS with the service account's token.
//!
//! Certificates and token are read for each request, because a cluster replaces them while the driver runs. A driver
//! asks rarely: for each new claim, and once a minute for its slice.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Longest time of a request. The kubelet waits longer for a claim.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest part of an answer that a message quotes, in characters.
const MAX_QUOTED_CHARS: usize = 300;

/// Where the API server is, and who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// Address without a slash at the end.
    url: String,
    /// Directory with `token` and `ca.crt`.
    account: PathBuf,
}

impl ApiServer {
    /// Uses an address, or the one that the kubelet tells pods.
    ///
    /// # Errors
    /// A message: there is no address, or the token could be read on the way there.
    pub fn new(url: Option<String>, account: PathBuf) -> Result<Self, String> {
        let url = match url {
            Some(url) => url,
            None => {
                let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
                let host = named("KUBERNETES_SERVICE_HOST").zip(named("KUBERNETES_SERVICE_PORT"));
                let (host, port) = host.ok_or("KUBERNETES_SERVICE_HOST is not set: not in a pod; name --api-server")?;
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                format!("https://{host}:{port}")
            }
        };
        let near = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
        if !url.starts_with("https://") && !near.iter().any(|start| url.starts_with(start)) {
            return Err(format!("the API server is {url:?}; accepted: https, or http on this machine"));
        }
        Ok(Self { url: url.trim_end_matches('/').to_owned(), account })
    }

    /// Asks for an object; `None`: there is none.
    ///
    /// # Errors
    /// A message: the server does not answer, or refuses.
    pub fn get(&self, path: &str) -> Result<Option<Value>, String> {
        let (agent, token) = self.open_agent()?;
        let answer = agent.get(format!("{}{path}", self.url)).header("Authorization", token).call();
        match self.read_answer("GET", path, answer)? {
            (404, _) => Ok(None),
            (status, body) => self.accept_answer("GET", path, status, body).map(Some),
        }
    }

    /// Makes an object.
    ///
    /// # Errors
    /// A message: the server does not answer, or refuses.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value, String> {
        let (agent, token) = self.open_agent()?;
        let answer = agent.post(format!("{}{path}", self.url)).header("Authorization", token).send_json(object);
        let (status, body) = self.read_answer("POST", path, answer)?;
        self.accept_answer("POST", path, status, body)
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// A message: the server does not answer, or refuses; also if the object was changed meanwhile.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Value, String> {
        let (agent, token) = self.open_agent()?;
        let answer = agent.put(format!("{}{path}", self.url)).header("Authorization", token).send_json(object);
        let (status, body) = self.read_answer("PUT", path, answer)?;
        self.accept_answer("PUT", path, status, body)
    }

    fn open_agent(&self) -> Result<(Agent, String), String> {
        let read = |name: &str| {
            let file = self.account.join(name);
            fs::read(&file).map_err(|why| format!("{}: {why}", file.display()))
        };
        let mut config = Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None);
        if self.url.starts_with("https://") {
            let roots: Vec<Certificate<'static>> = parse_pem(&read("ca.crt")?)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            let roots = RootCerts::Specific(Arc::new(roots));
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let token = String::from_utf8_lossy(&read("token")?).trim().to_owned();
        Ok((config.build().into(), format!("Bearer {token}")))
    }

    fn read_answer(
        &self,
        verb: &str,
        path: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(u16, String), String> {
        let failed = |why: ureq::Error| format!("{verb} {}{path}: {why}", self.url);
        let mut answer = answer.map_err(failed)?;
        let body = answer.body_mut().read_to_string().map_err(failed)?;
        Ok((answer.status().as_u16(), body))
    }

    fn accept_answer(&self, verb: &str, path: &str, status: u16, body: String) -> Result<Value, String> {
        if !(200..300).contains(&status) {
            // The server says why in an object, whose field is for people.
            let object: Value = serde_json::from_str(&body).unwrap_or_default();
            let words = object["message"].as_str().map_or(body, str::to_owned);
            let words: String = words.chars().take(MAX_QUOTED_CHARS).collect();
            return Err(format!("{verb} {}{path}: status {status}: {words}", self.url));
        }
        serde_json::from_str(&body).map_err(|why| format!("{verb} {}{path}: the answer is no JSON: {why}", self.url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_the_machine_only_encrypted() {
        let at = |url: &str| ApiServer::new(Some(url.to_owned()), "/none".into());
        assert!(at("http://10.0.0.1:8001").unwrap_err().contains("accepted: https"));
        assert!(at("http://127.0.0.1.example.com:80").is_err() && at("ftp://127.0.0.1:1").is_err());
        assert!(at("http://127.0.0.1:8001/").is_ok_and(|server| server.url == "http://127.0.0.1:8001"));
        assert!(at("https://10.0.0.1").is_ok());
    }
}

//! Messages of etcd's JSON gateway: 64-bit numbers are strings, keys and values are base64, fields with default values
//! are left out (protobuf's JSON mapping). <https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/>

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hekate_proto::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The text that a key or value is; keys and values of ours are UTF-8.
///
/// # Errors
/// `Damaged` if it is not.
pub fn decoded(text: &str) -> Result<String> {
    let bytes = STANDARD.decode(text).map_err(|e| Error::Damaged { what: format!("etcd: base64: {e}") })?;
    String::from_utf8(bytes).map_err(|e| Error::Damaged { what: format!("etcd: a key or value is no text: {e}") })
}

/// The first key after all keys with a prefix.
pub fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // No byte of UTF-8 is 255.
    end.iter_mut().last().into_iter().for_each(|last| *last += 1);
    end
}

fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is no number")))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    pub cluster_id: String,
    #[serde(deserialize_with = "number")]
    pub revision: u64,
}

/// What every answer has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Framed {
    pub header: Header,
}

/// The answer in a text, and the id of the etcd cluster that has made it; an empty one if the answer has no header.
///
/// # Errors
/// Why the text is not an answer of etcd. Fields with default values are left out, so an answer of any other server
/// would read as an empty store.
pub fn answer<T: DeserializeOwned>(text: &str, has_header: bool) -> std::result::Result<(String, T), String> {
    let framed: Framed = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let id = framed.header.cluster_id;
    if has_header && id.is_empty() {
        return Err("the answer has no header".into());
    }
    Ok((id, serde_json::from_str(text).map_err(|error| error.to_string())?))
}

/// The answer to a request that has failed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    message: String,
    error: String,
    /// The code of gRPC.
    pub code: u32,
}

impl Failure {
    /// Without a text and a code if the answer is not etcd's.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// What etcd says.
    pub fn text(&self) -> &str {
        if self.message.is_empty() { &self.error } else { &self.message }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pair {
    pub key: String,
    pub value: String,
    #[serde(deserialize_with = "number")]
    pub create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub mod_revision: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Range {
    pub header: Header,
    pub kvs: Vec<Pair>,
    /// Number of all keys in the range, also of those that a limit of revisions leaves out.
    #[serde(deserialize_with = "number")]
    pub count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Response {
    pub response_range: Option<Range>,
    pub response_txn: Option<Transacted>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Transacted {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Response>,
}

impl Transacted {
    /// The value that a range among the responses has found, also of a transaction within this one.
    pub fn found(&self) -> Option<&Pair> {
        self.responses.iter().find_map(|response| {
            let range = response.response_range.as_ref().and_then(|range| range.kvs.first());
            range.or_else(|| response.response_txn.as_ref()?.found())
        })
    }
}

/// One line of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchLine {
    pub result: Option<WatchResult>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchResult {
    pub header: Header,
    pub canceled: bool,
    pub events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub kv: Pair,
}

pub fn key_range(prefix: &str) -> Value {
    json!({ "key": encoded(prefix), "range_end": encoded(end_of(prefix)) })
}

pub fn range_of(key: &str) -> Value {
    json!({ "request_range": { "key": encoded(key) } })
}

pub fn put(key: &str, value: &str) -> Value {
    json!({ "request_put": { "key": encoded(key), "value": encoded(value) } })
}

pub fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encoded(key) } })
}

/// A comparison: the key has this value, or does not exist.
pub fn has(key: &str, value: Option<&str>) -> Value {
    match value {
        Some(value) => {
            json!({ "key": encoded(key), "target": "VALUE", "result": "EQUAL", "value": encoded(value) })
        }
        None => json!({ "key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0" }),
    }
}

/// A comparison: the key was last changed at this revision.
pub fn changed_at(key: &str, revision: u64) -> Value {
    json!({ "key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

//! Decoders of etcd's messages, for the fuzz targets.

use crate::members::{Listed, MemberState};
use crate::messages::{Failure, Range, Transacted, WatchLine, answer, decoded};
use crate::store::outcome_of;
use hekate_cluster::coordinator::Changes;
use hekate_cluster::{Outcome, Revision};
use hekate_proto::Result;

/// What a text says as the answer to each request.
#[derive(Debug, Default)]
pub struct Answers {
    /// Keys and values of a read.
    pub pairs: Vec<Result<(String, String)>>,
    /// The outcome of a transaction.
    pub outcome: Option<Result<Outcome>>,
    /// Bytes of names of members and alarms, of a version, and of the text of a failure.
    pub text_length: usize,
}

pub fn answers(text: &str) -> Answers {
    let mut found = Answers::default();
    if let Ok((_, range)) = answer::<Range>(text, true) {
        let pair = |(key, value): (&str, &str)| Ok((decoded(key)?, decoded(value)?));
        found.pairs = range.kvs.iter().map(|kv| pair((&kv.key, &kv.value))).collect();
    }
    if let Ok((_, done)) = answer::<Transacted>(text, true) {
        found.outcome = Some(outcome_of(Ok(done)));
    }
    if let Ok((_, listed)) = answer::<Listed>(text, false) {
        let names = listed.members.iter().chain([&listed.member]).map(|member| member.name.len());
        found.text_length += names.chain(listed.alarms.iter().map(|alarm| alarm.alarm.len())).sum::<usize>();
    }
    if let Ok((_, state)) = answer::<MemberState>(text, true) {
        found.text_length += state.version.len();
    }
    found.text_length += Failure::parse(text).text().len();
    found
}

/// Takes over the lines of a stream after a revision, up to the first one that ends it.
pub fn stream(after: Revision, bytes: &[u8]) -> Changes {
    let mut changes = Changes::new(after);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(WatchLine { result: Some(result) }) = serde_json::from_slice(line) else { break };
        if result.canceled || !crate::changes::add(&mut changes, &result) {
            break;
        }
    }
    changes
}

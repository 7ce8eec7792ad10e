//! Messages of etcd's JSON gateway. etcd encodes them, so the corpus is what etcd 3.4 answers.

use crate::allocation::bounded;
use hekate_cluster::{Outcome, Revision};

/// Memory that a parser may take besides its input, in bytes: text, positions and messages.
const FIXED_BYTES: usize = 1 << 20;
/// The revision after which the stream begins.
const AFTER: Revision = Revision(5);

const ANSWERS: [&str; 10] = [
    r#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"1","raft_term":"2"}}"#,
    r#"{"header":{"cluster_id":"1","member_id":"2","revision":"2","raft_term":"2"},"count":"1"}"#,
    r#"{"header":{"cluster_id":"1","revision":"3","raft_term":"2"},"kvs":[{"key":"L2E=","create_revision":"2","mod_revision":"3","version":"2","value":"MQ=="},{"key":"L2I=","create_revision":"3","mod_revision":"3","version":"1","value":"Mg=="}],"count":"2"}"#,
    r#"{"header":{"cluster_id":"1","revision":"4","raft_term":"2"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}},{"response_delete_range":{"header":{"revision":"4"},"deleted":"1"}}]}"#,
    r#"{"header":{"cluster_id":"1","revision":"4","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"4"},"kvs":[{"key":"L2Nsb3NlZA==","create_revision":"4","mod_revision":"4","version":"1","value":"eA=="}],"count":"1"}}]}"#,
    r#"{"header":{"cluster_id":"1","revision":"5","raft_term":"2"},"responses":[{"response_txn":{"header":{},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"5"}}}]}}]}"#,
    r#"{"header":{"cluster_id":"1","member_id":"2","raft_term":"2"},"members":[{"ID":"2","name":"m0","peerURLs":["http://127.0.0.1:2380"],"clientURLs":["http://127.0.0.1:2379"]},{"ID":"7","peerURLs":["http://127.0.0.1:2382"],"isLearner":true}]}"#,
    r#"{"header":{"cluster_id":"1","revision":"1","raft_term":"2"},"version":"3.4.23","dbSize":"20480","leader":"2","raftIndex":"4","raftTerm":"2","raftAppliedIndex":"4","dbSizeInUse":"16384"}"#,
    r#"{"alarms":[{"memberID":"2","alarm":"NOSPACE"}]}"#,
    r#"{"error":"etcdserver: mvcc: database space exceeded","message":"etcdserver: mvcc: database space exceeded","code":8}"#,
];

pub fn answer(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let found = bounded(text.len(), FIXED_BYTES, || hekate_etcd::fuzz::answers(text));
    // Each of the messages has read the text once.
    assert!(found.text_length <= 3 * text.len());
    let length: usize = found.pairs.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    assert!(length <= text.len(), "keys and values are shorter than their encoding");
    if let Some(Ok(outcome)) = found.outcome {
        assert!(!matches!(outcome, Outcome::Unknown { .. }), "an answer says what was executed");
    }
}

pub fn answer_seeds() -> Vec<Vec<u8>> {
    ANSWERS.map(|text| text.as_bytes().to_vec()).to_vec()
}

const CREATED: &str = r#"{"result":{"header":{"cluster_id":"1","revision":"6","raft_term":"2"},"created":true}}"#;
const TWO: &str = r#"{"result":{"header":{"cluster_id":"1","revision":"6"},"events":[{"kv":{"key":"L2E=","create_revision":"6","mod_revision":"6","version":"1","value":"MQ=="}},{"kv":{"key":"L2I=","create_revision":"6","mod_revision":"6","version":"1","value":"MQ=="}}]}}"#;
const REMOVED: &str = r#"{"result":{"header":{"cluster_id":"1","revision":"8"},"events":[{"kv":{"key":"L2I=","create_revision":"6","mod_revision":"7","version":"2","value":"Mg=="}},{"type":"DELETE","kv":{"key":"L2E=","mod_revision":"8"}}]}}"#;
const CANCELED: &str =
    r#"{"result":{"header":{"cluster_id":"1","revision":"9"},"created":true,"canceled":true,"compact_revision":"6"}}"#;
const NO_LEADER: &str = r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#;

pub fn stream(bytes: &[u8]) {
    let changes = bounded(bytes.len(), FIXED_BYTES, || hekate_etcd::fuzz::stream(AFTER, bytes));
    let last = changes.last();
    assert!(last >= AFTER, "revisions do not decrease");
    let later = changes.after(last, &[""]);
    assert!(later.is_none_or(|keys| keys.is_empty()), "a key has changed after the last revision");
    if let Some(keys) = changes.after(AFTER, &[""]) {
        assert!(keys.iter().map(String::len).sum::<usize>() <= bytes.len());
    }
}

pub fn stream_seeds() -> Vec<Vec<u8>> {
    let streams: [&[&str]; 5] = [
        &[CREATED],
        &[CREATED, TWO, REMOVED],
        &[CREATED, REMOVED, TWO],
        &[CREATED, TWO, CANCELED],
        &[CREATED, NO_LEADER],
    ];
    let lines = |lines: &[&str]| lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
    streams.map(lines).to_vec()
}

//! The JSON form of requests and replies: what is stable, and what other versions may send.

use super::brick::{BrickReport, BrickState, BrickStatus};
use super::peer::{CoordinatorRequest, Held, PeerReply, PeerRequest, ServerReport};
use super::*;
use serde_json::{Value, json};

/// A value keeps its fields over the types; fields that are absent stay so.
fn keeps<T: Serialize + DeserializeOwned>(value: Value) -> T {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value);
    read
}

#[test]
fn a_request_is_of_people_or_of_a_server() {
    assert!(matches!(Request::parse(r#"{"request":"status"}"#), Ok(Request::Control(ControlRequest::Status(_)))));
    assert!(matches!(Request::parse(r#"{"request":"status","later":1}"#), Ok(Request::Control(_))));
    let held = Request::parse(r#"{"request":"held","ring":1,"looks":[]}"#);
    assert!(matches!(held, Ok(Request::Peer(PeerRequest::Held(Held { .. })))));
    let unknown = Request::parse(r#"{"request":"no-such"}"#).unwrap_err().to_string();
    assert!(unknown.contains("no-such"), "{unknown}");
    assert!(Request::parse(r#"{"ring":1}"#).unwrap_err().to_string().contains("request"));
}

#[test]
fn the_tags_are_those_of_peer_requests() {
    for tag in PeerRequest::TAGS {
        let text = json!({ "request": tag }).to_string();
        let parsed = serde_json::from_str::<PeerRequest>(&text);
        assert!(!parsed.is_err_and(|error| error.to_string().contains("unknown variant")), "{tag}");
    }
    let error = serde_json::from_str::<PeerRequest>(r#"{"request":"x"}"#).unwrap_err().to_string();
    assert_eq!(error.matches('`').count() / 2, PeerRequest::TAGS.len() + 1, "{error}");
}

#[test]
fn the_wire_form_of_requests_is_stable() {
    let text = |request: PeerRequest| serde_json::to_string(&request).unwrap();
    let asked = CoordinatorRequest::Get { key: "/k".into() };
    let coordinator = PeerRequest::Coordinator { cluster: Some("c".into()), asked };
    assert_eq!(text(coordinator), r#"{"request":"coordinator","cluster":"c","ask":"get","key":"/k"}"#);
    let what = peer::EncodedPart::Entry { key: vec![1] };
    let copy = peer::CopyItem { brick: hekate_proto::BrickId(1), what };
    assert_eq!(
        text(copy.into()),
        r#"{"request":"repair","repair":"copy","brick":"00000000000000000000000000000001","what":{"entry":{"key":[1]}}}"#
    );
    assert_eq!(serde_json::to_string(&ControlRequest::from(Status {})).unwrap(), r#"{"request":"status"}"#);
}

#[test]
fn only_requests_that_look_are_open_to_all() {
    let is_open = |text: &str| Request::parse(text).unwrap().is_open_to_all();
    for tag in ["status", "server-status", "identify", "pool-list", "brick-list", "partition-list", "metrics"] {
        assert!(is_open(&json!({ "request": tag }).to_string()), "{tag}");
    }
    for tag in ["stop", "missing", "missing-here", "slow-ops"] {
        assert!(!is_open(&json!({ "request": tag }).to_string()), "{tag}");
    }
    assert!(!is_open(r#"{"request":"coordinator","ask":"get","key":"/cluster"}"#));
}

#[test]
fn a_brick_that_is_not_open_has_no_figures() {
    let id = "00000000000000000000000000000007";
    let closed = json!({ "brick": id, "state": "not opened", "reason": "why" });
    assert_eq!(keeps::<BrickReport>(closed).figures, None);
    let row = json!({ "brick": id, "state": "away", "reason": "why", "directory": "/b", "pool": "p", "server": 2,
        "leads": 0, "replicas": 3 });
    assert_eq!(keeps::<BrickStatus>(row).report.state, BrickState::Away);
    let open = BrickReport { figures: Some(Default::default()), ..BrickReport::default() };
    let again: BrickReport = serde_json::from_value(serde_json::to_value(&open).unwrap()).unwrap();
    assert_eq!(again, open);
}

#[test]
fn a_report_of_another_version_is_read() {
    let said = json!({ "cluster": "c", "server": 3, "pid": 9, "later": [1],
        "bricks": [{ "brick": "07", "state": "resting", "reason": null, "bytes_total": 10, "bytes_free": 5, "incarnation": 1 }] });
    let report: PeerReply<ServerReport> = serde_json::from_value(said).unwrap();
    assert_eq!((report.cluster.as_str(), report.server.0, report.reply.vitals.pid), ("c", 3, 9));
    let brick = &report.reply.bricks[0];
    assert_eq!((brick.state, brick.figures.as_ref().map(|open| open.bytes_free)), (BrickState::Unknown, Some(5)));
}

#[test]
fn places_and_names_have_the_fields_of_their_kind() {
    let replica = json!({ "brick": "00000000000000000000000000000001", "directory": "/b", "leader": true,
        "has": { "change": 1, "mtime": -5, "size": 3 }, "error": null, "sequence": 9 });
    let place = json!({ "partition": 1, "position": "00000000", "epoch": 2, "replicas": [replica], "equal": true });
    let mut found = json!({ "volume": "v", "volume_id": 1, "ring": 1, "path": "/", "inode": "i", "number": 1,
        "kind": "symlink", "size": 3, "place": place });
    keeps::<location::WhereReply>(found.clone());
    let of_file =
        [("beside_the_inode", json!(true)), ("pieces", json!([])), ("shards", json!([])), ("next_offset", json!(null))];
    of_file.into_iter().for_each(|(name, value)| found[name] = value);
    let file = keeps::<location::WhereReply>(found);
    assert!(matches!(file.contents, location::Contents::File { beside_the_inode: true, .. }));
    let row = json!({ "brick": "00000000000000000000000000000001", "volume": "v", "blocks": 1, "bytes": 4096 });
    for (name, value) in [("inode", json!("aa")), ("data", json!("bb"))] {
        let mut row = row.clone();
        row[name] = value;
        if name == "inode" {
            row["path"] = json!(null);
        }
        keeps::<healing::MissingFile>(row);
    }
}

#[test]
fn states_are_words() {
    for word in ["online", "full", "stopped", "failing", "not opened", "not opened yet", "away"] {
        assert_eq!(keeps::<BrickState>(json!(word)).text(), word);
        assert_eq!(keeps::<healing::LackingState>(json!(word)).text(), word);
    }
    for word in ["being healed", "waits to be healed"] {
        assert_eq!(keeps::<healing::LackingState>(json!(word)).text(), word);
    }
    let away = json!({ "server": 1, "name": "server-1", "endpoints": [], "state": "away", "reason": "why" });
    keeps::<status::ServerStatus>(away);
}

#[test]
fn a_reply_is_ok_or_an_error() {
    let ok: ControlReply<status::Stopping> = serde_json::from_str(r#"{"ok":{"pid":7}}"#).unwrap();
    assert_eq!(ok, ControlReply::Ok(status::Stopping { pid: 7 }));
    let error: ControlReply<()> = serde_json::from_str(r#"{"error":{"text":"no","exit":77}}"#).unwrap();
    assert_eq!(error, ControlReply::Error(Refusal { text: "no".into(), exit: 77 }));
}

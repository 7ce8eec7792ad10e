//! A correct recording, and complaints after one word of it is changed.

use super::*;

/// A correct history: two names, bytes and locks of one file, by three processes.
const RIGHT: &str = r#"{"round": 1}
{"who":0,"from":1,"to":2,"op":"mkdir","dir":0,"name":"d","inode":7}
{"who":0,"from":3,"to":4,"op":"create","dir":7,"name":"a","inode":8}
{"who":1,"from":5,"to":9,"op":"rename","dir":7,"name":"a","to_dir":7,"to_name":"b","mode":"noreplace"}
{"who":2,"from":6,"to":8,"op":"stat","dir":7,"name":"a","error":"ENOENT"}
{"who":2,"from":10,"to":11,"op":"stat","dir":7,"name":"b","inode":8,"links":1}
{"who":0,"from":12,"to":13,"op":"link","inode":8,"dir":7,"name":"c"}
{"who":1,"from":14,"to":15,"op":"list","dir":7,"names":[["b",8],["c",8]]}
{"who":1,"from":15,"to":15,"op":"create","dir":7,"name":"f","inode":9}
{"who":1,"from":16,"to":17,"op":"write","inode":9,"offset":0,"data":"0102"}
{"who":2,"from":18,"to":19,"op":"read","inode":9,"offset":0,"length":4,"data":"0102"}
{"who":2,"from":20,"to":21,"op":"size","inode":9,"size":2}
{"who":0,"from":22,"to":23,"op":"lock","inode":8,"style":"flock","kind":"write","start":0,"end":9,"owner":0}
{"who":1,"from":24,"to":25,"op":"lock","inode":8,"style":"flock","kind":"read","start":0,"end":9,"owner":0,"error":"EAGAIN"}
{"who":1,"from":26,"to":27,"op":"unlink","dir":7,"name":"b"}
{"who":0,"from":28,"to":29,"op":"create","dir":7,"name":"log","inode":10}
{"who":0,"from":30,"to":31,"op":"append","inode":10,"data":"aabb","offset":0}
{"who":1,"from":32,"to":33,"op":"append","inode":10,"data":"ccdd","offset":2}
{"who":2,"from":34,"to":35,"op":"read","inode":10,"offset":1,"length":4,"data":"bbccdd"}
"#;

fn complaints(text: &str) -> Vec<String> {
    let rounds = read(text).unwrap();
    rounds.iter().flat_map(check).map(|complaint| complaint.to_string()).collect()
}

/// The complaints after the one place that holds `old` was changed.
fn planted(old: &str, new: &str) -> String {
    assert_eq!(RIGHT.matches(old).count(), 1, "{old} is in one place");
    complaints(&RIGHT.replace(old, new)).join("\n")
}

#[test]
fn a_right_history_has_no_complaints() {
    assert_eq!(complaints(RIGHT), Vec::<String>::new());
    assert_eq!(complaints(&RIGHT.repeat(2)), Vec::<String>::new(), "each round begins anew");
}

#[test]
fn a_name_that_is_seen_too_late_is_noticed() {
    assert!(planted(r#""from":6,"to":8"#, r#""from":3,"to":3"#).is_empty(), "before it was made");
    let complaint = planted(r#""name":"b","inode":8,"links":1"#, r#""name":"a","inode":8,"links":1"#);
    assert!(complaint.starts_with("names: no order of the calls"), "{complaint}");
}

#[test]
fn a_wrong_count_of_links_and_a_wrong_list_are_noticed() {
    assert!(planted(r#""links":1"#, r#""links":2"#).starts_with("names: "));
    assert!(planted(r#"[["b",8],["c",8]]"#, r#"[["c",8]]"#).starts_with("names: "));
}

#[test]
fn bytes_that_are_gone_and_a_wrong_size_are_noticed() {
    assert!(planted(r#""length":4,"data":"0102""#, r#""length":4,"data":"0100""#).starts_with("contents of "));
    assert!(planted(r#""size":2"#, r#""size":0"#).starts_with("contents of "));
}

#[test]
fn a_lock_that_two_hold_is_noticed() {
    let complaint = planted(r#""owner":0,"error":"EAGAIN""#, r#""owner":0"#);
    assert!(complaint.starts_with("flock locks of "), "{complaint}");
}

#[test]
fn an_append_that_is_gone_is_noticed() {
    let complaint = planted(r#""data":"ccdd","offset":2"#, r#""data":"ccdd","offset":null"#);
    assert!(complaint.contains("not in the file"), "{complaint}");
}

#[test]
fn a_change_that_may_have_been_done_is_right_either_way() {
    let write = r#""inode":9,"offset":0,"data":"0102""#;
    for error in ["ENOSPC", "EIO"] {
        assert_eq!(planted(write, &format!(r#"{write},"error":"{error}""#)), "", "a write");
    }
    let link = r#""op":"link","inode":8,"dir":7,"name":"c""#;
    assert_eq!(planted(link, &format!(r#"{link},"error":"ENOSPC""#)), "", "a link");
    let complaint = planted(write, r#""inode":9,"offset":0,"data":"0304","error":"ENOSPC""#);
    assert!(complaint.starts_with("contents of "), "{complaint}");
}

#[test]
fn a_malformed_recording_is_refused_with_its_line() {
    for (text, place) in [
        ("{\"who\":0,\"from\":1,\"to\":2,\"op\":\"unlink\",\"dir\":0,\"name\":\"a\"}", "line 1: no round"),
        ("{\"round\":1}\nnonsense", "line 2: "),
        (
            "{\"round\":1}\n{\"who\":0,\"from\":3,\"to\":2,\"op\":\"unlink\",\"dir\":0,\"name\":\"a\"}",
            "line 2: it returns",
        ),
        (
            "{\"round\":1}\n{\"who\":0,\"from\":1,\"to\":2,\"op\":\"unlink\",\"dir\":0,\"name\":\"a\",\"error\":\"EPERM\"}",
            "line 2: ",
        ),
        (
            "{\"round\":1}\n{\"who\":0,\"from\":1,\"to\":2,\"op\":\"read\",\"inode\":1,\"offset\":0,\"length\":1,\"data\":\"é\"}",
            "line 2: ",
        ),
    ] {
        let why = read(text).err().unwrap();
        assert!(why.starts_with(place), "{why}");
    }
}

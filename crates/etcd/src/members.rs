//! etcd's own members and state.

use crate::credential::Credential;
use crate::gateway::{Answer, Endpoints, Gateway};
use hekate_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// Time for one request: a member that starts reads the log first.
const LIMIT: Duration = Duration::from_secs(5);
const LIST: &str = "/v3/cluster/member/list";

/// etcd's members, as an operator sees them.
pub struct Members(Gateway);

/// A member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    #[serde(rename = "ID")]
    pub id: String,
    /// Empty until it has started for the first time.
    pub name: String,
    #[serde(rename = "peerURLs")]
    pub peers: Vec<String>,
    #[serde(rename = "clientURLs")]
    pub clients: Vec<String>,
    /// It has no vote yet.
    #[serde(rename = "isLearner")]
    pub is_learner: bool,
}

/// What a member says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberState {
    pub version: String,
    /// Bytes of its database file, and those of them in use.
    #[serde(rename = "dbSize")]
    pub size: String,
    #[serde(rename = "dbSizeInUse")]
    pub used: String,
    /// The id of the leader that it knows; empty or 0 if it knows none.
    pub leader: String,
    #[serde(rename = "raftTerm")]
    pub term: String,
    #[serde(rename = "raftAppliedIndex")]
    pub applied: String,
    pub errors: Vec<String>,
}

/// An alarm: writes are refused until it is disarmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Alarm {
    #[serde(rename = "memberID")]
    pub member: String,
    /// `NOSPACE` or `CORRUPT`.
    pub alarm: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Listed {
    pub members: Vec<Member>,
    pub member: Member,
    pub alarms: Vec<Alarm>,
}

impl Members {
    /// # Errors
    /// `Invalid` if the credential cannot be used.
    pub fn new(endpoints: Endpoints, credential: &Credential) -> Result<Self> {
        Gateway::new(endpoints, credential).map(Self)
    }

    /// # Errors
    /// `Unavailable` if no member with a leader answers.
    pub fn list(&self) -> Result<Vec<Member>> {
        Ok(self.0.read::<Listed>(LIST, &json!({}))?.members)
    }

    /// What the member at an endpoint says of itself.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer.
    pub fn state(&self, endpoint: &str) -> Result<MemberState> {
        match self.0.send_to(endpoint, "/v3/maintenance/status", &json!({}), LIMIT) {
            Answer::Arrived(state) => Ok(state),
            Answer::Refused(error) => Err(error),
            Answer::Unreachable(what) | Answer::Lost(what) => Err(Error::Unavailable { what }),
        }
    }

    /// Adds a member that has no vote until it is promoted. Once it is added it can be started.
    ///
    /// # Errors
    /// Those of etcd; `Unavailable` if the outcome is unknown.
    pub fn add_learner(&self, peer: &str) -> Result<Member> {
        let request = json!({ "peerURLs": [peer], "isLearner": true });
        Ok(self.change::<Listed>("/v3/cluster/member/add", &request)?.member)
    }

    /// Gives a member that has caught up its vote.
    ///
    /// # Errors
    /// Those of etcd, for example if the member has not caught up.
    pub fn promote(&self, id: &str) -> Result<()> {
        self.change::<Value>("/v3/cluster/member/promote", &json!({ "ID": id })).map(|_| ())
    }

    /// # Errors
    /// Those of etcd, for example if a majority of the others would not be available.
    pub fn remove(&self, id: &str) -> Result<()> {
        self.change::<Value>("/v3/cluster/member/remove", &json!({ "ID": id })).map(|_| ())
    }

    /// # Errors
    /// `Unavailable` if etcd does not answer.
    pub fn alarms(&self) -> Result<Vec<Alarm>> {
        Ok(self.0.read::<Listed>("/v3/maintenance/alarm", &json!({ "action": "GET" }))?.alarms)
    }

    fn change<T: serde::de::DeserializeOwned>(&self, path: &str, request: &Value) -> Result<T> {
        let unknown = |why| Error::Unavailable { what: format!("etcd does not say whether it was done: {why}") };
        self.0.write(path, request, Some(LIMIT))?.map_err(unknown)
    }
}

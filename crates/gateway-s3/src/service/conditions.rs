//! Conditions of requests: on the object that is read, copied from, replaced or removed.
//!
//! Source: "Conditional requests" of the Amazon S3 user guide, and RFC 9110, section 13.

use crate::refusal::Refusal;
use crate::storage::{Condition, ObjectInfo, Time};
use hyper::HeaderMap;
use s3s::dto::{ETag, ETagCondition, Timestamp};

/// What a request demands of the object that it reads.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadConditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
}

/// Which demand is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmet {
    /// The object is not the one.
    Precondition,
    /// The reader has it already.
    NotModified,
}

impl ReadConditions {
    /// `If-Match` and `If-None-Match` have precedence over the dates.
    pub(super) fn check(&self, info: &ObjectInfo) -> Result<(), Unmet> {
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !is_met(condition, info) => return Err(Unmet::Precondition),
            (None, Some(time)) if seconds(info.modified) > seconds_of(time) => return Err(Unmet::Precondition),
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) if is_met(condition, info) => Err(Unmet::NotModified),
            (None, Some(time)) if seconds(info.modified) <= seconds_of(time) => Err(Unmet::NotModified),
            _ => Ok(()),
        }
    }
}

fn is_met(condition: &ETagCondition, info: &ObjectInfo) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(etag) => etag.value() == info.etag,
    }
}

fn seconds(time: Time) -> i64 {
    time.0.div_euclid(1_000_000_000)
}

fn seconds_of(time: &Timestamp) -> i64 {
    time::OffsetDateTime::from(time.clone()).unix_timestamp()
}

/// A demand that is not met, as an error.
pub(super) fn precondition_failed() -> Refusal {
    Refusal::new("PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
}

/// What a request demands of the object that it replaces.
///
/// # Errors
/// `NotImplemented` for `If-None-Match` with anything but an asterisk, and for both headers together, as S3.
pub(super) fn of_write(headers: &HeaderMap) -> Result<Condition, Refusal> {
    let absent = match headers.get("if-none-match") {
        None => false,
        Some(value) if value == "*" => true,
        Some(_) => return Err(unsupported()),
    };
    match (absent, of_removal(headers)?) {
        (true, Condition::Always) => Ok(Condition::Absent),
        (true, _) => Err(unsupported()),
        (false, condition) => Ok(condition),
    }
}

/// What a request demands of the object that it removes.
///
/// # Errors
/// `InvalidArgument` if `If-Match` is no ETag.
pub(super) fn of_removal(headers: &HeaderMap) -> Result<Condition, Refusal> {
    let Some(value) = headers.get("if-match") else { return Ok(Condition::Always) };
    let condition = ETagCondition::parse_http_header(value.as_bytes());
    match condition.map_err(|_| Refusal::new("InvalidArgument", "If-Match is no ETag"))? {
        ETagCondition::Any => Ok(Condition::Exists),
        ETagCondition::ETag(etag) => Ok(matching(&etag)),
    }
}

/// The object has this ETag.
pub(super) fn matching(etag: &ETag) -> Condition {
    Condition::Matches { etag: etag.value().to_owned().into() }
}

fn unsupported() -> Refusal {
    Refusal::new("NotImplemented", "A header you provided implies functionality that is not implemented")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::headers_for_tests as headers;
    use crate::storage::Metadata;

    fn info() -> ObjectInfo {
        let metadata = Metadata::default();
        ObjectInfo { key: "k".into(), size: 1, modified: Time(10_700_000_000), etag: "abc".into(), metadata }
    }

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(text.as_bytes()).unwrap())
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(time::OffsetDateTime::from_unix_timestamp(seconds).unwrap().into())
    }

    fn check(conditions: ReadConditions) -> Result<(), Unmet> {
        conditions.check(&info())
    }

    #[test]
    fn etags_are_compared_without_quotes() {
        let none = ReadConditions::default();
        check(ReadConditions { if_match: tag("\"abc\""), ..none.clone() }).unwrap();
        check(ReadConditions { if_match: tag("*"), ..none.clone() }).unwrap();
        check(ReadConditions { if_none_match: tag("\"abd\""), ..none.clone() }).unwrap();
        let wrong = check(ReadConditions { if_match: tag("\"abd\""), ..none.clone() });
        assert_eq!(wrong, Err(Unmet::Precondition));
        let known = check(ReadConditions { if_none_match: tag("\"abc\""), ..none });
        assert_eq!(known, Err(Unmet::NotModified));
    }

    #[test]
    fn dates_are_compared_in_seconds() {
        let none = ReadConditions::default();
        for (since, outcome) in [(9, Ok(())), (10, Err(Unmet::NotModified)), (11, Err(Unmet::NotModified))] {
            assert_eq!(check(ReadConditions { if_modified_since: at(since), ..none.clone() }), outcome);
        }
        for (since, outcome) in [(9, Err(Unmet::Precondition)), (10, Ok(())), (11, Ok(()))] {
            assert_eq!(check(ReadConditions { if_unmodified_since: at(since), ..none.clone() }), outcome);
        }
    }

    #[test]
    fn etags_have_precedence_over_dates() {
        let none = ReadConditions::default();
        let both = ReadConditions { if_match: tag("\"abc\""), if_unmodified_since: at(9), ..none.clone() };
        check(both).unwrap();
        let both = ReadConditions { if_none_match: tag("\"x\""), if_modified_since: at(11), ..none };
        check(both).unwrap();
    }

    #[test]
    fn writes_may_demand_absence_or_an_etag() {
        let of = |name: &str, value: &str| of_write(&headers(&[(name, value)]));
        assert_eq!(of("if-none-match", "*").unwrap(), Condition::Absent);
        assert_eq!(of("if-match", "*").unwrap(), Condition::Exists);
        assert_eq!(of("if-match", "\"abc\"").unwrap(), Condition::Matches { etag: "abc".into() });
        assert_eq!(of("x", "y").unwrap(), Condition::Always);
        assert_eq!(of("if-none-match", "\"abc\"").unwrap_err().code, "NotImplemented");
        assert_eq!(of("if-match", "\"abc").unwrap_err().code, "InvalidArgument");
        let both = headers(&[("if-match", "*"), ("if-none-match", "*")]);
        assert_eq!(of_write(&both).unwrap_err().code, "NotImplemented");
    }
}

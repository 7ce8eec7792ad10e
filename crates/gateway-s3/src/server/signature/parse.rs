//! What a request says about its signature, in headers or in the URL.

use super::canonical::Head;
use super::times::{text_of, unix_of};
use super::{ALGORITHM, Claim, EXPIRES_MAX, Place, Scope};
use crate::refusal::Refusal;
use s3s::dto::{Timestamp, TimestampFormat};

pub(super) fn claim(head: &Head<'_>) -> Result<Option<Claim>, Refusal> {
    let in_url = head
        .parameters()
        .any(|(name, _)| [&b"X-Amz-Algorithm"[..], b"X-Amz-Signature", b"X-Amz-Credential"].contains(&name.as_slice()));
    let is_old = head.parameters().any(|(name, _)| name == b"AWSAccessKeyId" || name == b"Signature");
    let headers = head.headers.get_all("authorization").iter().filter(|value| !value.is_empty()).count();
    if headers + usize::from(in_url) + usize::from(is_old) > 1 {
        return Err(Refusal::new(
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
             parameter or the Authorization header should be specified",
        ));
    }
    match (is_old, in_url, headers) {
        (true, ..) => Err(unsupported()),
        (_, true, _) => in_parameters(head).map(Some),
        (.., 1) => in_header(head).map(Some),
        _ => Ok(None),
    }
}

fn unsupported() -> Refusal {
    Refusal::new(
        "InvalidRequest",
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
}

fn in_header(head: &Head<'_>) -> Result<Claim, Refusal> {
    let malformed = |what: &str| {
        let message = format!("The authorization header is malformed; {what}");
        Refusal::new("AuthorizationHeaderMalformed", message)
    };
    let text = head.header("authorization").ok_or_else(|| malformed("it is not text"))?.trim();
    let (algorithm, fields) = text.split_once(' ').unwrap_or((text, ""));
    if algorithm != ALGORITHM {
        // `AWS` is version 2, `AWS4-ECDSA-P256-SHA256` the asymmetric form.
        let is_known = algorithm.starts_with("AWS");
        return Err(if is_known {
            unsupported()
        } else {
            Refusal::new("InvalidArgument", "Unsupported Authorization Type")
        });
    }
    let field = |name: &str| {
        let mut found = fields.split(',').filter_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='));
        found.next().ok_or_else(|| malformed(&format!("the field {name} is missing")))
    };
    let (access_key, scope) = credential(field("Credential")?).map_err(malformed)?;
    let signed_headers = signed_headers(field("SignedHeaders")?).map_err(malformed)?;
    let signature = field("Signature")?.to_owned();
    let (date, time) = date(head)?;
    let payload = head
        .header("x-amz-content-sha256")
        .ok_or(Refusal::new("InvalidRequest", "Missing required header for this request: x-amz-content-sha256"))?;
    refuse_tokens(head.header("x-amz-security-token").is_some())?;
    let payload = payload.to_owned();
    Ok(Claim { access_key, scope, signed_headers, signature, date, time, place: Place::Header, payload })
}

/// The time in `x-amz-date`, or else in `date`.
fn date(head: &Head<'_>) -> Result<(String, i64), Refusal> {
    let missing = || Refusal::new("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header");
    if let Some(text) = head.header("x-amz-date") {
        let time = unix_of(text).ok_or_else(missing)?;
        return Ok((text.to_owned(), time));
    }
    let text = head.header("date").ok_or_else(missing)?;
    if let Some(time) = unix_of(text) {
        return Ok((text.to_owned(), time));
    }
    let time = Timestamp::parse(TimestampFormat::HttpDate, text).map_err(|_| missing())?;
    let unix = time::OffsetDateTime::from(time).unix_timestamp();
    Ok((text_of(unix).ok_or_else(missing)?, unix))
}

fn in_parameters(head: &Head<'_>) -> Result<Claim, Refusal> {
    let wrong = |what: &str| Refusal::new("AuthorizationQueryParametersError", what.to_owned());
    let all = "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, \
               X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.";
    let parameter = |name: &str| head.parameter(name).ok_or_else(|| wrong(all));
    if parameter("X-Amz-Algorithm")? != ALGORITHM {
        return Err(wrong("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""));
    }
    let (access_key, scope) = credential(&parameter("X-Amz-Credential")?).map_err(wrong)?;
    let signed_headers = signed_headers(&parameter("X-Amz-SignedHeaders")?).map_err(wrong)?;
    let (signature, date) = (parameter("X-Amz-Signature")?, parameter("X-Amz-Date")?);
    let time = unix_of(&date)
        .ok_or_else(|| wrong("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""))?;
    let expires: i64 = parameter("X-Amz-Expires")?.parse().map_err(|_| wrong("X-Amz-Expires should be a number"))?;
    if expires < 0 {
        return Err(wrong("X-Amz-Expires must be non-negative"));
    }
    if expires > EXPIRES_MAX {
        return Err(wrong("X-Amz-Expires must be less than a week (in seconds) that is 604800"));
    }
    refuse_tokens(head.parameter("X-Amz-Security-Token").is_some())?;
    let of_header = head.header("x-amz-content-sha256").map(str::to_owned);
    let payload = of_header.or(head.parameter("X-Amz-Content-Sha256")).unwrap_or("UNSIGNED-PAYLOAD".into());
    Ok(Claim { access_key, scope, signed_headers, signature, date, time, place: Place::Url { expires }, payload })
}

/// Keys here are not temporary.
fn refuse_tokens(has_token: bool) -> Result<(), Refusal> {
    match has_token {
        false => Ok(()),
        true => Err(Refusal::new("InvalidToken", "The provided token is malformed or otherwise invalid.")),
    }
}

/// `KEY/20130524/us-east-1/s3/aws4_request`. A key may contain slashes.
fn credential(text: &str) -> Result<(String, Scope), &'static str> {
    let malformed = "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".";
    let mut parts = text.rsplitn(5, '/');
    let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(malformed);
    let (end, service, region, day, access_key) = (next()?, next()?, next()?, next()?, next()?);
    if end != "aws4_request" || day.len() != 8 || !day.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed);
    }
    let scope = Scope { day: day.into(), region: region.into(), service: service.into() };
    Ok((access_key.to_owned(), scope))
}

fn signed_headers(text: &str) -> Result<Vec<String>, &'static str> {
    let names: Vec<String> = text.split(';').map(str::to_owned).collect();
    let is_name = |name: &String| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase())
    };
    if !names.iter().all(is_name) {
        return Err("SignedHeaders has to list names in lower case, separated by semicolons");
    }
    if !names.iter().any(|name| name == "host") {
        return Err("SignedHeaders has to list host");
    }
    Ok(names)
}

//! What happens to a request before the service and after it.
//!
//! In this order: the door's own URLs, a turn, the preflight of web pages, signature and body's protection, the
//! service, the rest of the body, and what each answer has. The service sees a request without its signature: s3s
//! would check it again, and buffer signed chunks whole.

use super::address::Address;
use super::answer::{AnswerBody, Subject, code_of, complete, refused, unquote_etags};
use super::body::{BodyOutcome, RequestBody};
use super::cors::Asked;
use super::counters::{Counting, Tally};
use super::failures::Failures;
use super::methods;
use super::settings::{Limits, Settings};
use super::signature::{ChunkSigner, Claim, Head, Payload};
use super::stalls::Rate;
use super::tls::Certificate;
use crate::access::{Caller, Key, Keys};
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::service::{EXPIRES, Expected, Service, build};
use crate::storage::{CorsRule, Store};
use hekate_client::{Context, Volume};
use hekate_metrics::S3Counters;
use hekate_proto::{ROOT, Result as VolumeResult};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use s3s::dto::{Timestamp, TimestampFormat};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

/// The URL that a load balancer asks whether this door can serve. No bucket's name is a hyphen.
const HEALTH: &str = "/-/health";
/// How long the volume may take to answer for the door to be healthy.
const HEALTH_WAIT: Duration = Duration::from_secs(2);
/// How much of a refused request's body is read, so that the client reads the answer instead of a reset.
const REST_MAX: usize = 4 << 20;
const REST_WAIT: Duration = Duration::from_secs(2);

/// What all connections of a door share.
pub(super) struct Front {
    volume: Arc<Volume>,
    store: Store,
    keys: Arc<dyn Keys>,
    pool: Pool,
    service: s3s::service::S3Service,
    domain: Option<String>,
    region: String,
    limits: Limits,
    counting: Arc<Counting>,
    failures: Failures,
    certificate: Option<Arc<Certificate>>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
}

impl Front {
    /// # Errors
    /// Those of [`Certificate::read`].
    pub(super) fn new(volume: Arc<Volume>, keys: Arc<dyn Keys>, settings: &Settings) -> VolumeResult<Self> {
        let limits = settings.limits.clone();
        let certificate = match &settings.tls {
            Some(files) => Some(Arc::new(Certificate::read(files)?)),
            None => None,
        };
        let tls = match &certificate {
            Some(certificate) => Some(TlsAcceptor::from(Arc::new(certificate.settings()?))),
            None => None,
        };
        let store = Store::new(volume.clone());
        let pool = Pool::new(limits.threads);
        let service = Service::new(store.clone(), pool.clone(), &settings.region, limits.buffer_bytes);
        Ok(Self {
            service: build(service),
            volume,
            store,
            keys,
            pool,
            domain: settings.domain.clone(),
            region: settings.region.clone(),
            counting: Arc::default(),
            failures: Failures::default(),
            certificate,
            tls,
            connections: Arc::new(Semaphore::new(limits.connections)),
            requests: Arc::new(Semaphore::new(limits.requests)),
            limits,
        })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn rate(&self) -> Rate {
        Rate { bytes_min: self.limits.rate_min, grace: self.limits.rate_grace }
    }

    pub(super) fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }

    pub(super) fn tls(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref()
    }

    pub(super) fn counting(&self) -> &Counting {
        &self.counting
    }

    pub(super) fn counters(&self) -> S3Counters {
        self.counting.read()
    }

    /// The right to keep a connection. `None` if there are too many.
    pub(super) fn connection_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.connections.clone().try_acquire_owned().ok()
    }

    /// The right to be answered, within a time.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let turn = tokio::time::timeout(self.limits.request_wait, self.requests.clone().acquire_owned()).await;
        let busy = || Refusal::new("SlowDown", "The server answers as many requests as it can; please try again");
        turn.map_err(|_| busy())?.map_err(|_| busy())
    }

    async fn is_healthy(&self) -> bool {
        let volume = self.volume.clone();
        let looked = self.pool.run(move || volume.getattr(&Context::default(), ROOT).is_ok());
        matches!(tokio::time::timeout(HEALTH_WAIT, looked).await, Ok(Ok(true)))
    }

    async fn cors_rules(&self, bucket: &str) -> Vec<CorsRule> {
        let (store, bucket) = (self.store.clone(), bucket.to_owned());
        // A bucket that cannot be read has no rules for pages either; the request itself says what is wrong.
        self.pool
            .run(move || store.bucket(&bucket).map(|bucket| bucket.settings.cors))
            .await
            .map_or_else(|_| Vec::new(), |rules| rules.unwrap_or_default())
    }
}

/// Answers one request.
pub(super) async fn answer(front: Arc<Front>, request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
    let tally = Arc::new(Tally::new(front.counting.clone()));
    let subject = subject(&front, &request);
    let (mut response, permit) = match subject.resource == HEALTH {
        true => (health(front.is_healthy().await), None),
        false => match front.turn().await {
            Ok(permit) => (respond(&front, request, &tally).await, Some(permit)),
            Err(refusal) => (refused(&refusal), None),
        },
    };
    complete(&mut response, &subject);
    if let Ok(value) = HeaderValue::from_str(&subject.request_id) {
        response.headers_mut().insert("x-amz-request-id", value);
    }
    response.headers_mut().insert(header::SERVER, HeaderValue::from_static("Hekate"));
    let status = response.status();
    tally.answered(status.as_u16());
    // What the door does not have is the client's to notice.
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        front.failures.note(|| {
            let Subject { resource, request_id, .. } = &subject;
            let code = code_of(&response).unwrap_or_default();
            format!("{} of {resource} is answered {} {code}, request {request_id}", tally.operation(), status.as_u16())
        });
    }
    Ok(response.map(|body| AnswerBody::new(body, tally, permit)))
}

fn subject(front: &Front, request: &Request<Incoming>) -> Subject {
    // An address that is none has neither bucket nor key.
    let (bucket, key) = match address(front, request.uri(), request.headers()) {
        Ok(address) => (address.bucket().to_owned(), address.key()),
        Err(_) => Default::default(),
    };
    Subject { resource: request.uri().path().to_owned(), bucket, key, request_id: request_id() }
}

fn health(is_healthy: bool) -> Response<s3s::Body> {
    let (status, text) = match is_healthy {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the volume does not answer\n"),
    };
    let mut response = Response::new(s3s::Body::from(text.to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// 16 hexadecimal digits.
fn request_id() -> String {
    let random = getrandom::u64().unwrap_or_default();
    format!("{random:016X}")
}

async fn respond(front: &Front, request: Request<Incoming>, tally: &Arc<Tally>) -> Response<s3s::Body> {
    let (parts, incoming) = request.into_parts();
    let awaits_continue = parts.headers.contains_key(header::EXPECT);
    // hyper sends `100 Continue` only for a body with bytes. A client that waits for it may take the next answer on this
    // connection for it.
    let waits_in_vain = awaits_continue && http_body::Body::is_end_stream(&incoming);
    let address = match address(front, &parts.uri, &parts.headers) {
        Ok(address) => address,
        Err(refusal) => return refused(&refusal),
    };
    if parts.method == Method::OPTIONS {
        return preflight(front, &parts.headers, address.bucket()).await;
    }
    let asked = Asked::of_request(parts.method.as_str(), &parts.headers);
    let bucket = address.bucket().to_owned();
    let (mut response, rest) = match admit(front, &parts, &address, &incoming).await {
        Err(refusal) => (refused(&refusal), Some(incoming)),
        Ok(admitted) => serve(front, parts, incoming, address, admitted, tally).await,
    };
    if let Some(rest) = rest.filter(|_| !awaits_continue) {
        discard(rest).await;
    }
    if let Some(asked) = asked
        && let Some(allowed) = asked.allowed_by(&front.cors_rules(&bucket).await)
    {
        response.headers_mut().extend(allowed);
    }
    if waits_in_vain {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A request that may pass to the service.
struct Admitted {
    caller: Caller,
    payload: Payload,
    signer: Option<ChunkSigner>,
    /// Of the body after decoding.
    length: Option<u64>,
}

fn address(front: &Front, uri: &Uri, headers: &HeaderMap) -> Result<Address, Refusal> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or(uri.authority().map(|authority| authority.as_str())).unwrap_or("");
    Address::of(host, uri.path(), uri.query().unwrap_or(""), front.domain.as_deref())
}

/// Checks the method, the signature, and how the body is protected and how long it is.
async fn admit(front: &Front, parts: &Parts, address: &Address, incoming: &Incoming) -> Result<Admitted, Refusal> {
    refuse_forms(parts)?;
    methods::check(parts.method.as_str(), address)?;
    let head = Head {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or(""),
        headers: &parts.headers,
    };
    let (caller, payload, signer) = match Claim::of(&head)? {
        None => (Caller::Anonymous, anonymous_payload(&head)?, None),
        Some(claim) => {
            let (caller, signer) = verify(front, &claim, &head).await?;
            (caller, claim.payload()?, Some(signer))
        }
    };
    let length = body_length(parts, address, &payload, incoming)?;
    Ok(Admitted { caller, payload, signer, length })
}

async fn verify(front: &Front, claim: &Claim, head: &Head<'_>) -> Result<(Caller, ChunkSigner), Refusal> {
    claim.check_scope(&front.region)?;
    claim.check_time(now())?;
    let key = key_of(front, claim).await?;
    let signer = claim.verify(head, &key.secret)?;
    Ok((Caller::Signed(key), signer))
}

async fn key_of(front: &Front, claim: &Claim) -> Result<Arc<Key>, Refusal> {
    if let Some(key) = front.keys.known(&claim.access_key) {
        return Ok(key);
    }
    let (keys, id) = (front.keys.clone(), claim.access_key.clone());
    let key = front.pool.run(move || keys.lookup(&id)).await.map_err(|_| failed())?;
    let unknown = || {
        Refusal::new("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
            .with("AWSAccessKeyId", claim.access_key.clone())
    };
    let away = |error| Refusal::new("ServiceUnavailable", format!("The access keys cannot be read: {error}"));
    key.map_err(away)?.ok_or_else(unknown)
}

/// Uploads by HTML forms. s3s would take them, with their own signatures, and buffer the file.
fn refuse_forms(parts: &Parts) -> Result<(), Refusal> {
    let content_type = parts.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let is_form = content_type.to_ascii_lowercase().starts_with(b"multipart/form-data");
    match parts.method == Method::POST && is_form {
        true => Err(Refusal::new("NotImplemented", "Uploads by HTML forms are not supported")),
        false => Ok(()),
    }
}

fn anonymous_payload(head: &Head<'_>) -> Result<Payload, Refusal> {
    match head.headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok()) {
        Some(value) => Payload::parse(value),
        None => Ok(Payload::Unsigned),
    }
}

/// The length of the body after decoding.
///
/// # Errors
/// `MissingContentLength` if a PUT has a body of unknown length, or if an object or a part has none at all, as S3.
fn body_length(
    parts: &Parts,
    address: &Address,
    payload: &Payload,
    incoming: &Incoming,
) -> Result<Option<u64>, Refusal> {
    let number = |name: &str| -> Result<Option<u64>, Refusal> {
        let Some(value) = parts.headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| Refusal::new("InvalidArgument", format!("{name} is not a number")))
    };
    let is_chunked = matches!(payload, Payload::Chunked { .. });
    let length = match is_chunked {
        true => Some(number("x-amz-decoded-content-length")?.ok_or_else(missing_length)?),
        false => number("content-length")?,
    };
    let has_body = !http_body::Body::is_end_stream(incoming);
    let is_upload =
        methods::is_upload(parts.method.as_str(), address) && !parts.headers.contains_key("x-amz-copy-source");
    match length.is_none() && parts.method == Method::PUT && (has_body || is_upload) {
        true => Err(missing_length()),
        false => Ok(length),
    }
}

pub(super) fn missing_length() -> Refusal {
    Refusal::new("MissingContentLength", "You must provide the Content-Length HTTP header.")
}

fn failed() -> Refusal {
    Refusal::new("InternalError", "We encountered an internal error. Please try again.")
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Has the service answer. The second value is what it did not read of the body.
async fn serve(
    front: &Front,
    mut parts: Parts,
    incoming: Incoming,
    address: Address,
    admitted: Admitted,
    tally: &Arc<Tally>,
) -> (Response<s3s::Body>, Option<Incoming>) {
    let Admitted { caller, payload, signer, length } = admitted;
    if let Err(refusal) = strip(&mut parts, &address, &payload, length) {
        return (refused(&refusal), Some(incoming));
    }
    let body = RequestBody::new(incoming, &payload, signer, length, front.rate(), tally.clone());
    let mut body = match body {
        Ok(body) => body,
        Err(refusal) => return (refused(&refusal), None),
    };
    if let Some(is_completion) = xml_kind(&parts.method, &address) {
        match Expected::of_xml(&parts.headers, is_completion) {
            Ok(expected) => body.compare(expected),
            Err(refusal) => return (refused(&refusal), None),
        }
    }
    let outcome = body.outcome();
    let is_head = parts.method == Method::HEAD;
    let has_bare_etags = parts.method == Method::GET && address.has("attributes");
    parts.extensions.insert(caller);
    parts.extensions.insert(Arc::new(address));
    parts.extensions.insert(tally.clone());
    parts.extensions.insert(outcome.clone());
    let request = Request::from_parts(parts, s3s::Body::http_body_unsync(body));
    let mut response = match front.service.call(request).await {
        Ok(response) => with_fault(response, &outcome),
        Err(_) => refused(&failed()),
    };
    // s3s has one status for a HEAD.
    if is_head && response.status() == StatusCode::OK && response.headers().contains_key(header::CONTENT_RANGE) {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if has_bare_etags {
        unquote_etags(&mut response);
    }
    let rest = outcome.take_rest();
    (response, rest)
}

/// Whether the body is XML, and that of a completed upload.
fn xml_kind(method: &Method, address: &Address) -> Option<bool> {
    let is_setting = || ["acl", "cors", "tagging"].into_iter().any(|name| address.has(name));
    match *method {
        Method::POST => Some(address.has("uploadId")),
        Method::PUT if is_setting() => Some(false),
        _ => None,
    }
}

/// An error because the body could not be read says why.
fn with_fault(response: Response<s3s::Body>, outcome: &BodyOutcome) -> Response<s3s::Body> {
    match outcome.fault() {
        Some(fault) if !response.status().is_success() => refused(&fault),
        _ => response,
    }
}

/// Takes away what was checked: s3s sees an unsigned request with a plain body.
fn strip(parts: &mut Parts, address: &Address, payload: &Payload, length: Option<u64>) -> Result<(), Refusal> {
    const CHECKED: [HeaderName; 2] = [header::AUTHORIZATION, header::EXPECT];
    for name in CHECKED {
        parts.headers.remove(name);
    }
    for name in ["x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-date"] {
        parts.headers.remove(name);
    }
    strip_loose(&mut parts.headers);
    if matches!(payload, Payload::Chunked { .. }) {
        strip_encoding(&mut parts.headers);
        if let Some(length) = length {
            parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    let uri = address.target().parse::<Uri>();
    parts.uri = uri.map_err(|_| Refusal::new("InvalidURI", "Couldn't parse the specified URI."))?;
    Ok(())
}

/// Headers that s3s refuses if they are malformed, and S3 does not: a range and a date of a condition are ignored, and
/// `Expires` may be any text.
fn strip_loose(headers: &mut HeaderMap) {
    let is_range = |value: &HeaderValue| value.to_str().is_ok_and(|text| s3s::dto::Range::parse(text).is_ok());
    if headers.get(header::RANGE).is_some_and(|value| !is_range(value)) {
        headers.remove(header::RANGE);
    }
    for name in [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE] {
        if headers.get(&name).is_some_and(|value| !is_date(value)) {
            headers.remove(name);
        }
    }
    headers.remove(EXPIRES);
    if let Some(value) = headers.remove(header::EXPIRES) {
        headers.insert(EXPIRES, value);
    }
}

fn is_date(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok())
}

/// `aws-chunked` is no encoding of the object.
fn strip_encoding(headers: &mut HeaderMap) {
    let values = headers.get_all(header::CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let others: Vec<&str> = values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    match HeaderValue::try_from(others.join(",")) {
        Ok(value) if !value.is_empty() => drop(headers.insert(header::CONTENT_ENCODING, value)),
        _ => drop(headers.remove(header::CONTENT_ENCODING)),
    }
}

/// Reads the rest of a body for a while.
async fn discard(mut rest: Incoming) {
    let reading = async {
        let mut read = 0;
        while read < REST_MAX
            && let Some(Ok(frame)) = next_frame(&mut rest).await
        {
            read += frame.data_ref().map_or(0, bytes::Bytes::len);
        }
    };
    // A client that sends slower than that reads the answer between its own packets, or a reset.
    let _ = tokio::time::timeout(REST_WAIT, reading).await;
}

async fn next_frame(body: &mut Incoming) -> Option<hyper::Result<http_body::Frame<bytes::Bytes>>> {
    std::future::poll_fn(|context| http_body::Body::poll_frame(std::pin::Pin::new(&mut *body), context)).await
}

/// The answer to a browser that asks whether a page may send a request.
async fn preflight(front: &Front, headers: &HeaderMap, bucket: &str) -> Response<s3s::Body> {
    let asked = match Asked::of_preflight(headers) {
        Ok(asked) => asked,
        Err(refusal) => return refused(&refusal),
    };
    match asked.allowed_by(&front.cors_rules(bucket).await) {
        Some(allowed) => {
            let mut response = Response::new(s3s::Body::empty());
            response.headers_mut().extend(allowed);
            response
        }
        None => refused(&Refusal::new(
            "AccessForbidden",
            "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, request \
             method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the \
             resource's CORS spec.",
        )),
    }
}

//! The reason why a request failed, in a text that names the fix.

use super::endpoint::Endpoint;
use rustls::{CertificateError, InvalidMessage};
use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

/// The reason of a client's error before there was an answer.
pub fn of_client(error: ureq::Error, endpoint: &Endpoint) -> String {
    if let Some(found) = of_tls(&error) {
        return certificate(found, endpoint);
    }
    let host = endpoint.host();
    match &error {
        ureq::Error::HostNotFound => unknown(host),
        // The standard library has no kind for this error, only a text.
        ureq::Error::Io(io) if io.to_string().contains("lookup address") => unknown(host),
        ureq::Error::Io(io) => match io.kind() {
            ErrorKind::ConnectionRefused => {
                format!("nothing listens there; start the server, or correct the port in {host}")
            }
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => format!("no route to {host}: {io}"),
            _ => format!("{io}{}", other_scheme(endpoint)),
        },
        ureq::Error::Protocol(_) => format!("the answer is not HTTP ({error}){}", other_scheme(endpoint)),
        ureq::Error::Timeout(_) => {
            format!("{error}; the server does not answer in time; start it, or correct {host} in --endpoint")
        }
        _ => error.to_string(),
    }
}

fn unknown(host: &str) -> String {
    format!("no host of that name is known: {host}; correct --endpoint")
}

fn other_scheme(endpoint: &Endpoint) -> &'static str {
    match endpoint.trust {
        Some(_) => "",
        None => "; if the server speaks TLS, write https:// in --endpoint",
    }
}

/// The TLS error that an error is, or wraps.
fn of_tls(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(found) => Some(found),
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref(),
        _ => None,
    }
}

fn certificate(error: &rustls::Error, endpoint: &Endpoint) -> String {
    let host = endpoint.host();
    let fault = match error {
        rustls::Error::InvalidCertificate(fault) => fault,
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return format!("it does not speak TLS; if that is right, write http://{host}");
        }
        _ => return format!("TLS: {error}"),
    };
    match fault {
        // A bad signature is that of another CA of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => match endpoint.trust.as_ref().and_then(|trust| trust.file.as_ref()) {
            Some(file) => {
                let file = file.display();
                format!("no certificate in {file} signed the server's; name that of its CA, or its own if it signed itself")
            }
            None => "no CA that this system trusts signed its certificate; name your CA's certificate with --ca-file".into(),
        },
        CertificateError::ExpiredContext { not_after, .. } => {
            let when = when(not_after.as_secs());
            format!("its certificate expired at {when}; renew it on the server, or set the clock here")
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let when = when(not_before.as_secs());
            format!("its certificate is not valid before {when}; set the clock here, or on the machine that made it")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            let names = if names.is_empty() { "no name at all".into() } else { names.join(", ") };
            format!("its certificate is for {names}, not for {host}; write its name in --endpoint, or make one with this name (subjectAltName)")
        }
        // webpki's text; rustls passes its error on without a type of its own.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is one of a CA, as `openssl req -x509` makes it; sign another one with it, or make it with \
             -addext basicConstraints=critical,CA:FALSE"
                .into()
        }
        other => format!("its certificate is refused: {other}"),
    }
}

fn when(seconds: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(1 << 37)))
}

/// The name in `DnsName("a")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inside.trim_matches('"')
}

/// The server's status, the code in its answer, and the fix.
pub fn of_answer(status: ureq::http::StatusCode, answer: &[u8]) -> String {
    let said = String::from_utf8_lossy(answer);
    let code = said.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
    let fix = match (code, status.as_u16()) {
        ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" | "ExpiredToken", _) | ("", 401 | 403) => {
            "; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) to keys that are valid here"
        }
        ("AccessDenied", _) => "; let this key put, get and delete objects in the bucket, or use another one",
        ("NoSuchBucket", _) => "; make the bucket, or name another one",
        ("AuthorizationHeaderMalformed" | "PermanentRedirect", _) | ("", 301 | 307 | 308) => {
            "; name the bucket's region with --region, and its address with --endpoint"
        }
        ("RequestTimeTooSkewed", _) => "; set the clock here",
        ("", 400) if said.contains("HTTPS") => "; it speaks TLS: write https:// in --endpoint",
        _ => "",
    };
    let code = if code.is_empty() { String::new() } else { format!(", {code}") };
    format!("{status}{code}{fix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::StatusCode;

    #[test]
    fn answers_name_the_fix() {
        let of = |status: u16, answer: &str| of_answer(StatusCode::from_u16(status).unwrap(), answer.as_bytes());
        let xml = |code: &str| format!("<?xml?><Error><Code>{code}</Code><Message>m</Message></Error>");
        for (status, answer, words) in [
            (403, xml("SignatureDoesNotMatch"), "SignatureDoesNotMatch; set AWS_ACCESS_KEY_ID"),
            (403, String::new(), "403 Forbidden; set AWS_ACCESS_KEY_ID"),
            (403, xml("AccessDenied"), "let this key"),
            (404, xml("NoSuchBucket"), "make the bucket"),
            (400, xml("AuthorizationHeaderMalformed"), "--region"),
            (400, "Client sent an HTTP request to an HTTPS server.".into(), "write https://"),
            (503, xml("SlowDown"), "503 Service Unavailable, SlowDown"),
        ] {
            assert!(of(status, &answer).contains(words), "{}", of(status, &answer));
        }
        assert!(of(500, "<Code>cut").starts_with("500"));
    }
}

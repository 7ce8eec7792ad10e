//! Requests from web pages of other origins, by the rules of a bucket. Pure.
//!
//! Source: "Using cross-origin resource sharing (CORS)" of the Amazon S3 user guide.

use crate::refusal::Refusal;
use crate::storage::CorsRule;
use hyper::HeaderMap;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, HeaderValue, ORIGIN, VARY,
};

/// What a browser says of a page's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    origin: String,
    method: String,
    headers: Vec<String>,
}

impl Asked {
    /// Of a preflight request.
    ///
    /// # Errors
    /// `InvalidRequest` if origin or method is missing.
    pub(super) fn of_preflight(headers: &HeaderMap) -> Result<Self, Refusal> {
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        let missing = |name: &str| {
            Refusal::new("InvalidRequest", format!("Insufficient information. {name} request header needed."))
        };
        let origin = text(ORIGIN).ok_or_else(|| missing("Origin"))?;
        let method = text(ACCESS_CONTROL_REQUEST_METHOD).ok_or_else(|| missing("Access-Control-Request-Method"))?;
        let headers = text(ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or("").split(',');
        let headers = headers.map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect();
        Ok(Self { origin: origin.into(), method: method.into(), headers })
    }

    /// Of the request itself. `None` if it is not from a page of another origin. A request that names the method of a
    /// preflight is answered for that one.
    pub(super) fn of_request(method: &str, headers: &HeaderMap) -> Option<Self> {
        let origin = headers.get(ORIGIN)?.to_str().ok()?.to_owned();
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD).and_then(|method| method.to_str().ok());
        let method = asked.unwrap_or(method);
        Some(Self { origin, method: method.into(), headers: Vec::new() })
    }

    /// The headers of the answer if one of the rules allows the request.
    pub(super) fn allowed_by(&self, rules: &[CorsRule]) -> Option<HeaderMap> {
        rules.iter().find(|rule| self.matches(rule)).map(|rule| self.answer(rule))
    }

    fn matches(&self, rule: &CorsRule) -> bool {
        let origin = rule.allowed_origins.iter().any(|pattern| is_like(&self.origin, pattern));
        let method = rule.allowed_methods.contains(&self.method);
        let header =
            |name: &String| rule.allowed_headers.iter().any(|pattern| is_like(name, &pattern.to_ascii_lowercase()));
        origin && method && self.headers.iter().all(header)
    }

    fn answer(&self, rule: &CorsRule) -> HeaderMap {
        let mut answer = HeaderMap::new();
        let mut set = |name: HeaderName, text: String| {
            // A rule's text that is no header was refused when the rule was set.
            if let Ok(value) = HeaderValue::try_from(text) {
                answer.append(name, value);
            }
        };
        let is_any = rule.allowed_origins.iter().any(|origin| origin == "*");
        set(ACCESS_CONTROL_ALLOW_ORIGIN, if is_any { "*".into() } else { self.origin.clone() });
        if !is_any {
            set(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true".into());
        }
        set(ACCESS_CONTROL_ALLOW_METHODS, rule.allowed_methods.join(", "));
        if !self.headers.is_empty() {
            set(ACCESS_CONTROL_ALLOW_HEADERS, self.headers.join(", "));
        }
        if !rule.expose_headers.is_empty() {
            set(ACCESS_CONTROL_EXPOSE_HEADERS, rule.expose_headers.join(", "));
        }
        if let Some(seconds) = rule.max_age_seconds {
            set(ACCESS_CONTROL_MAX_AGE, seconds.to_string());
        }
        set(VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method".into());
        answer
    }
}

/// Equal, or equal around the pattern's one asterisk.
fn is_like(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((before, after)) => {
            text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::signature::tests::headers;

    fn rule() -> CorsRule {
        CorsRule {
            allowed_origins: vec!["https://*.example.com".into(), "http://localhost".into()],
            allowed_methods: vec!["GET".into(), "PUT".into()],
            allowed_headers: vec!["X-Amz-*".into(), "content-type".into()],
            expose_headers: vec!["ETag".into()],
            max_age_seconds: Some(600),
            ..CorsRule::default()
        }
    }

    fn preflight(origin: &str, method: &str, asked: &str) -> Option<HeaderMap> {
        let headers = headers(&[
            ("origin", origin),
            ("access-control-request-method", method),
            ("access-control-request-headers", asked),
        ]);
        Asked::of_preflight(&headers).unwrap().allowed_by(&[rule()])
    }

    #[test]
    fn a_rule_allows_what_it_names() {
        let answer = preflight("https://a.example.com", "PUT", "X-Amz-Date, Content-Type").unwrap();
        assert_eq!(answer["access-control-allow-origin"], "https://a.example.com");
        assert_eq!(answer["access-control-allow-methods"], "GET, PUT");
        assert_eq!(answer["access-control-allow-headers"], "x-amz-date, content-type");
        assert_eq!(answer["access-control-max-age"], "600");
        assert_eq!(answer["access-control-allow-credentials"], "true");
        assert!(preflight("http://localhost", "GET", "").is_some());
    }

    #[test]
    fn a_rule_allows_nothing_else() {
        assert!(preflight("https://example.com", "PUT", "").is_none());
        assert!(preflight("https://a.example.com.evil.org", "PUT", "").is_none());
        assert!(preflight("https://a.example.com", "DELETE", "").is_none());
        assert!(preflight("https://a.example.com", "PUT", "authorization").is_none());
    }

    #[test]
    fn any_origin_is_answered_without_credentials() {
        let any = CorsRule { allowed_origins: vec!["*".into()], ..rule() };
        let asked = Asked::of_request("GET", &headers(&[("origin", "http://x")])).unwrap();
        let answer = asked.allowed_by(&[any]).unwrap();
        assert_eq!(answer["access-control-allow-origin"], "*");
        assert!(!answer.contains_key("access-control-allow-credentials"));
        assert_eq!(Asked::of_request("GET", &headers(&[])), None);
    }

    #[test]
    fn a_preflight_names_origin_and_method() {
        assert_eq!(Asked::of_preflight(&headers(&[("origin", "x")])).unwrap_err().code, "InvalidRequest");
    }
}

//! Which requests S3 has at all, by method and address. Pure.

use super::address::Address;
use crate::refusal::Refusal;

/// Parameters that name an operation of a POST: s3s knows which of them.
const OF_POST: [&str; 6] = ["delete", "uploads", "uploadId", "restore", "select", "metadataTable"];
/// Parameters of a PUT that carries bytes of an object.
const OF_UPLOADS: [&str; 3] = ["partNumber", "uploadId", "x-id"];

/// # Errors
/// `MethodNotAllowed` if no operation has this method at such an address.
pub(super) fn check(method: &str, address: &Address) -> Result<(), Refusal> {
    let has_bucket = !address.bucket().is_empty();
    let is_known = match method {
        "GET" => true,
        "HEAD" | "PUT" | "DELETE" => has_bucket,
        "POST" => has_bucket && address.names().any(|name| OF_POST.contains(&name)),
        _ => false,
    };
    match is_known {
        true => Ok(()),
        false => {
            let message = "The specified method is not allowed against this resource.";
            Err(Refusal::new("MethodNotAllowed", message).with("Method", method))
        }
    }
}

/// True for a request whose body becomes an object or a part, if it copies none.
pub(super) fn is_upload(method: &str, address: &Address) -> bool {
    method == "PUT" && address.has_key() && address.names().all(|name| OF_UPLOADS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, query: &str) -> Address {
        Address::of("h", path, query, None).unwrap()
    }

    #[test]
    fn a_method_needs_an_address_that_has_it() {
        for (method, path, query) in [
            ("GET", "/", ""),
            ("PUT", "/b", ""),
            ("POST", "/b", "delete"),
            ("POST", "/b/k", "uploads="),
            ("POST", "/b/k", "%75ploadId=x"),
            ("HEAD", "/b/k", ""),
        ] {
            check(method, &at(path, query)).unwrap();
        }
        for (method, path, query) in [
            ("PUT", "/", ""),
            ("POST", "/", "delete"),
            ("POST", "/b/k", ""),
            ("POST", "/b", "x-id=y"),
            ("PATCH", "/b/k", ""),
        ] {
            assert_eq!(
                check(method, &at(path, query)).unwrap_err().code,
                "MethodNotAllowed",
                "{method} {path}?{query}"
            );
        }
    }

    #[test]
    fn uploads_are_objects_and_parts() {
        assert!(is_upload("PUT", &at("/b/k", "")) && is_upload("PUT", &at("/b/k", "partNumber=1&%75ploadId=x")));
        for (method, path, query) in [
            ("PUT", "/b", ""),
            ("PUT", "/b/", ""),
            ("PUT", "/b/k", "acl"),
            ("PUT", "/b/k", "tagging="),
            ("PUT", "/b/k", "%61cl"),
            ("GET", "/b/k", ""),
        ] {
            assert!(!is_upload(method, &at(path, query)), "{method} {path}?{query}");
        }
    }
}

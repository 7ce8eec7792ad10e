//! Buckets, and their CORS rules.

use super::{Answer, Service, acl, actor, caller, owner, timestamp};
use crate::access::Right;
use crate::refusal::Refusal;
use crate::storage::{BucketEntry, BucketSettings, CorsRule};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::HeaderValue;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// Most buckets of a page.
const PAGE_MAX: usize = 10_000;
/// Most CORS rules of a bucket.
const RULES_MAX: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

pub(super) async fn create(service: &Service, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
    let actor = actor(&request.extensions)?;
    let CreateBucketInput { acl, bucket, create_bucket_configuration, object_lock_enabled_for_bucket, .. } =
        request.input;
    if is_reserved(&bucket) {
        let message = "A bucket's name does not begin or end with what Amazon S3 reserves, such as -s3alias";
        return Err(Refusal::new("InvalidBucketName", message).into());
    }
    if object_lock_enabled_for_bucket == Some(true) {
        return Err(Refusal::new("NotImplemented", "Object lock is not implemented").into());
    }
    let location = create_bucket_configuration.and_then(|configuration| configuration.location_constraint);
    if location.is_some_and(|location| !location.as_str().is_empty() && location.as_str() != &*service.region) {
        let message = "The specified location-constraint is not valid";
        return Err(Refusal::new("InvalidLocationConstraint", message).into());
    }
    let acl = acl::of(acl.as_ref().map(|acl| acl.as_str()))?.unwrap_or_default();
    let location = Some(format!("/{bucket}"));
    let settings = BucketSettings { acl, ..BucketSettings::default() };
    service.call(move |store| Ok(store.create_bucket(&bucket, &actor, &settings)?)).await?;
    Ok(S3Response::new(CreateBucketOutput { location }))
}

/// True for names that S3 keeps for itself. Only S3 refuses to make them: a directory may have one, and is a bucket.
///
/// Source: "General purpose bucket naming rules" of the Amazon S3 user guide.
fn is_reserved(name: &str) -> bool {
    const BEGINS: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
    const ENDS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    BEGINS.iter().any(|begin| name.starts_with(begin)) || ENDS.iter().any(|end| name.ends_with(end))
}

pub(super) async fn head(service: &Service, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
    let bucket = request.input.bucket;
    service.call(move |store| Ok(store.bucket(&bucket)?)).await?;
    let bucket_region = Some(service.region.to_string());
    Ok(S3Response::new(HeadBucketOutput { bucket_region, ..Default::default() }))
}

pub(super) async fn delete(service: &Service, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
    let bucket = request.input.bucket;
    service.call(move |store| Ok(store.delete_bucket(&bucket)?)).await?;
    Ok(S3Response::new(DeleteBucketOutput::default()))
}

pub(super) async fn location(
    service: &Service,
    request: S3Request<GetBucketLocationInput>,
) -> Answer<GetBucketLocationOutput> {
    let bucket = request.input.bucket;
    service.call(move |store| Ok(store.bucket(&bucket)?)).await?;
    // S3 says nothing for its first region.
    let region = service.region.to_string();
    let location_constraint = (region != "us-east-1").then(|| BucketLocationConstraint::from(region));
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}

/// A bucket never had versions, which S3 says by an empty configuration.
pub(super) async fn versioning(
    service: &Service,
    request: S3Request<GetBucketVersioningInput>,
) -> Answer<GetBucketVersioningOutput> {
    let bucket = request.input.bucket;
    service.call(move |store| Ok(store.bucket(&bucket)?)).await?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

/// The buckets that the key may read.
pub(super) async fn list(service: &Service, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
    let user = actor(&request.extensions)?;
    let caller = caller(&request.extensions)?;
    let ListBucketsInput { continuation_token, max_buckets, prefix, .. } = request.input;
    let max = match max_buckets {
        None => PAGE_MAX,
        Some(asked) => usize::try_from(asked).ok().filter(|asked| (1..=PAGE_MAX).contains(asked)).ok_or_else(|| {
            Refusal::new("InvalidArgument", "Argument max-buckets must be an integer between 1 and 10000")
                .with("ArgumentName", "max-buckets")
        })?,
    };
    let after = continuation_token.map(|token| URL_SAFE_NO_PAD.decode(token).unwrap_or_default());
    let begins = prefix.clone().unwrap_or_default();
    let is_listed = |entry: &BucketEntry| {
        caller.key().is_some_and(|key| key.allows(Right::Read, &entry.name))
            && entry.name.starts_with(&begins)
            && after.as_ref().is_none_or(|after| entry.name.as_bytes() > after.as_slice())
    };
    let mut entries: Vec<BucketEntry> =
        service.call(|store| Ok(store.buckets()?)).await?.into_iter().filter(is_listed).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let is_truncated = entries.len() > max;
    entries.truncate(max);
    let next = entries.last().filter(|_| is_truncated).map(|entry| URL_SAFE_NO_PAD.encode(&entry.name));
    let bucket = |entry: BucketEntry| Bucket {
        name: Some(entry.name),
        creation_date: Some(timestamp(entry.created)),
        ..Default::default()
    };
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(entries.into_iter().map(bucket).collect()),
        owner: Some(owner(user)),
        continuation_token: next,
        prefix,
    }))
}

pub(super) async fn get_cors(service: &Service, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
    let bucket = request.input.bucket;
    let rules = service.call(move |store| Ok(store.bucket(&bucket)?.settings.cors)).await?;
    if rules.is_empty() {
        return Err(Refusal::new("NoSuchCORSConfiguration", "The CORS configuration does not exist").into());
    }
    let rule = |rule: CorsRule| CORSRule {
        allowed_headers: (!rule.allowed_headers.is_empty()).then_some(rule.allowed_headers),
        allowed_methods: rule.allowed_methods,
        allowed_origins: rule.allowed_origins,
        expose_headers: (!rule.expose_headers.is_empty()).then_some(rule.expose_headers),
        id: rule.id,
        max_age_seconds: rule.max_age_seconds.map(|seconds| seconds as i32),
    };
    Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(rules.into_iter().map(rule).collect()) }))
}

pub(super) async fn put_cors(service: &Service, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
    let PutBucketCorsInput { bucket, cors_configuration, .. } = request.input;
    let rules = rules_of(cors_configuration.cors_rules)?;
    set_cors(service, bucket, rules).await?;
    Ok(S3Response::new(PutBucketCorsOutput::default()))
}

pub(super) async fn delete_cors(
    service: &Service,
    request: S3Request<DeleteBucketCorsInput>,
) -> Answer<DeleteBucketCorsOutput> {
    set_cors(service, request.input.bucket, Vec::new()).await?;
    Ok(S3Response::new(DeleteBucketCorsOutput::default()))
}

async fn set_cors(service: &Service, bucket: String, rules: Vec<CorsRule>) -> Result<(), Refusal> {
    let work = move |store: &crate::storage::Store| {
        let mut settings = store.bucket(&bucket)?.settings;
        settings.cors = rules;
        Ok(store.set_settings(&bucket, &settings)?)
    };
    service.call(work).await
}

/// # Errors
/// `MalformedXML` if there is no rule or there are too many; `InvalidRequest` if one cannot be kept.
fn rules_of(rules: Vec<CORSRule>) -> Result<Vec<CorsRule>, Refusal> {
    if rules.is_empty() || rules.len() > RULES_MAX {
        let message = "The XML you provided was not well-formed or did not validate against our published schema";
        return Err(Refusal::new("MalformedXML", message));
    }
    rules.into_iter().map(rule_of).collect()
}

fn rule_of(rule: CORSRule) -> Result<CorsRule, Refusal> {
    let invalid = |message: String| Refusal::new("InvalidRequest", message);
    if rule.allowed_origins.is_empty() || rule.allowed_methods.is_empty() {
        return Err(Refusal::new("MalformedXML", "A CORS rule needs an AllowedOrigin and an AllowedMethod"));
    }
    if let Some(method) = rule.allowed_methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
        let message = format!("Found unsupported HTTP method in CORS config. Unsupported method is {method}");
        return Err(invalid(message));
    }
    let (headers, exposed) = (rule.allowed_headers.unwrap_or_default(), rule.expose_headers.unwrap_or_default());
    let patterns = rule.allowed_origins.iter().chain(&headers);
    if let Some(pattern) = patterns.clone().find(|pattern| pattern.matches('*').count() > 1) {
        return Err(invalid(format!("\"{pattern}\" can not have more than one wildcard.")));
    }
    if let Some(text) = patterns.chain(&exposed).find(|text| HeaderValue::from_str(text).is_err()) {
        return Err(invalid(format!("\"{text}\" cannot be sent in a header.")));
    }
    Ok(CorsRule {
        id: rule.id,
        allowed_origins: rule.allowed_origins,
        allowed_methods: rule.allowed_methods,
        allowed_headers: headers,
        expose_headers: exposed,
        max_age_seconds: rule.max_age_seconds.and_then(|seconds| u32::try_from(seconds).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origins: &[&str], methods: &[&str]) -> CORSRule {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        CORSRule {
            allowed_origins: texts(origins),
            allowed_methods: texts(methods),
            allowed_headers: None,
            expose_headers: None,
            id: None,
            max_age_seconds: Some(5),
        }
    }

    #[test]
    fn cors_rules_are_checked_before_they_are_kept() {
        let kept = rules_of(vec![rule(&["https://*.example.com"], &["GET", "PUT"])]).unwrap();
        assert_eq!((kept[0].allowed_methods.len(), kept[0].max_age_seconds), (2, Some(5)));
        let cases = [
            (vec![], "MalformedXML"),
            (vec![rule(&["*"], &["GET"]); RULES_MAX + 1], "MalformedXML"),
            (vec![rule(&[], &["GET"])], "MalformedXML"),
            (vec![rule(&["*"], &["PATCH"])], "InvalidRequest"),
            (vec![rule(&["*.*"], &["GET"])], "InvalidRequest"),
            (vec![rule(&["a\nb"], &["GET"])], "InvalidRequest"),
        ];
        for (rules, code) in cases {
            assert_eq!(rules_of(rules).unwrap_err().code, code);
        }
    }
}

//! DeleteObject and DeleteObjects.

use super::{Answer, Service, conditions, objects};
use crate::refusal::Refusal;
use crate::storage::Condition;
use futures_util::StreamExt;
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// Most keys of one request.
const KEYS_MAX: usize = 1000;
/// Keys of one request that are removed side by side.
const SIDE_BY_SIDE: usize = 16;

pub(super) async fn delete(service: &Service, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
    let DeleteObjectInput { bucket, key, if_match_last_modified_time, if_match_size, .. } = request.input;
    if if_match_last_modified_time.is_some() || if_match_size.is_some() {
        let message = "A header you provided implies functionality that is not implemented";
        return Err(Refusal::new("NotImplemented", message).into());
    }
    let condition = conditions::of_removal(&request.headers)?;
    let names = (bucket.clone(), key.clone());
    match service.call(move |store| Ok(store.delete(&bucket, &key, condition)?)).await {
        Ok(()) => Ok(S3Response::new(DeleteObjectOutput::default())),
        Err(refusal) if refusal.code == "PreconditionFailed" => {
            Err(objects::or_missing(service, names, refusal).await.into())
        }
        Err(refusal) => Err(refusal.into()),
    }
}

pub(super) async fn delete_many(
    service: &Service,
    request: S3Request<DeleteObjectsInput>,
) -> Answer<DeleteObjectsOutput> {
    let DeleteObjectsInput { bucket, delete, .. } = request.input;
    if delete.objects.is_empty() || delete.objects.len() > KEYS_MAX {
        let message = "The XML you provided was not well-formed or did not validate against our published schema";
        return Err(Refusal::new("MalformedXML", message).into());
    }
    let looked = bucket.clone();
    service.call(move |store| Ok(store.bucket(&looked)?)).await?;
    let is_quiet = delete.quiet.unwrap_or(false);
    let removals = delete.objects.into_iter().map(|object| remove_one(service, bucket.clone(), object));
    let outcomes: Vec<(String, Option<Refusal>)> =
        futures_util::stream::iter(removals).buffered(SIDE_BY_SIDE).collect().await;
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (key, outcome) in outcomes {
        match outcome {
            Some(refusal) => errors.push(Error {
                code: Some(refusal.code.into()),
                key: Some(key),
                message: Some(refusal.message.into_owned()),
                version_id: None,
            }),
            None if is_quiet => {}
            None => deleted.push(DeletedObject { key: Some(key), ..Default::default() }),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), request_charged: None }))
}

/// The key, and why it was not removed.
async fn remove_one(service: &Service, bucket: String, object: ObjectIdentifier) -> (String, Option<Refusal>) {
    let key = object.key.clone();
    let condition = object.e_tag.as_ref().map_or(Condition::Always, conditions::matching);
    if object.version_id.as_deref().is_some_and(|version| version != "null") {
        let message = "The bucket has no versions: the only one is null";
        return (key, Some(Refusal::new("NoSuchVersion", message)));
    }
    let outcome = service.call(move |store| Ok(store.delete(&bucket, &object.key, condition)?)).await;
    (key, outcome.err())
}

//! ACLs: `private` and `public-read`, by name or by their grants in XML.

use super::{Answer, Service, owner};
use crate::refusal::Refusal;
use crate::storage::{Actor, CannedAcl};
use s3s::dto::*;
use s3s::{S3Request, S3Response};

/// The group that stands for requests without a key.
const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
/// The groups that S3 has.
const GROUPS: [&str; 3] = [
    ALL_USERS,
    "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
    "http://acs.amazonaws.com/groups/s3/LogDelivery",
];

/// The value of `x-amz-acl`. The owner of a bucket owns its objects, so those that give rights to it are `private`.
///
/// # Errors
/// `NotImplemented` for the canned ACLs that give other rights, `InvalidArgument` for anything else.
pub(super) fn of(text: Option<&str>) -> Result<Option<CannedAcl>, Refusal> {
    match text {
        None => Ok(None),
        Some("private" | "bucket-owner-full-control" | "bucket-owner-read") => Ok(Some(CannedAcl::Private)),
        Some("public-read") => Ok(Some(CannedAcl::PublicRead)),
        Some("public-read-write" | "authenticated-read" | "aws-exec-read" | "log-delivery-write") => {
            Err(Refusal::new("NotImplemented", "Of the canned ACLs only private and public-read are implemented"))
        }
        Some(_) => Err(Refusal::new("InvalidArgument", "x-amz-acl is no canned ACL")),
    }
}

/// The ACL of a request that sets one, by name or in XML.
#[derive(Debug)]
enum Given {
    Canned(CannedAcl),
    Policy(AccessControlPolicy),
}

impl Given {
    /// # Errors
    /// Those of [`of`]; `UnexpectedContent` if the request has both, `MissingSecurityHeader` if it has neither.
    fn of(canned: Option<&str>, policy: Option<AccessControlPolicy>) -> Result<Self, Refusal> {
        match (of(canned)?, policy) {
            (Some(acl), None) => Ok(Given::Canned(acl)),
            (None, Some(policy)) => Ok(Given::Policy(policy)),
            (Some(_), Some(_)) => Err(Refusal::new("UnexpectedContent", "This request does not support content")),
            (None, None) => {
                let message = "Your request was missing a required header: x-amz-acl";
                Err(Refusal::new("MissingSecurityHeader", message))
            }
        }
    }

    /// The canned ACL that gives the same rights. `owner`: of the bucket.
    ///
    /// # Errors
    /// See [`of_policy`].
    fn acl(self, owner: Actor) -> Result<CannedAcl, Refusal> {
        match self {
            Given::Canned(acl) => Ok(acl),
            Given::Policy(policy) => of_policy(policy, owner),
        }
    }
}

/// A grant, as far as it can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granted {
    /// Everything, to the owner.
    Owner,
    /// Reading, to everyone.
    Everyone,
}

/// The canned ACL with the grants of an ACL in XML.
///
/// # Errors
/// `MalformedACLError` if it is not one; `AccessDenied` if it names another owner; `NotImplemented` unless its grants are
/// those of a canned ACL; `InvalidArgument` and `UnresolvableGrantByEmailAddress` for a grantee that does not exist.
fn of_policy(policy: AccessControlPolicy, owner: Actor) -> Result<CannedAcl, Refusal> {
    let named = policy.owner.and_then(|owner| owner.id).ok_or_else(malformed)?;
    if named != owner.uid.to_string() {
        return Err(super::operations::denied());
    }
    let grants = policy.grants.unwrap_or_default().into_iter();
    let granted = grants.map(|grant| granted(grant, &named)).collect::<Result<Vec<_>, _>>()?;
    match (granted.contains(&Granted::Owner), granted.contains(&Granted::Everyone)) {
        (true, false) => Ok(CannedAcl::Private),
        (true, true) => Ok(CannedAcl::PublicRead),
        (false, _) => {
            Err(Refusal::new("NotImplemented", "An ACL without FULL_CONTROL of the owner is not implemented"))
        }
    }
}

/// `owner`: its id.
fn granted(grant: Grant, owner: &str) -> Result<Granted, Refusal> {
    const PERMISSIONS: [&str; 5] =
        [Permission::FULL_CONTROL, Permission::READ, Permission::READ_ACP, Permission::WRITE, Permission::WRITE_ACP];
    let (Some(grantee), Some(permission)) = (grant.grantee, grant.permission) else { return Err(malformed()) };
    if !PERMISSIONS.contains(&permission.as_str()) {
        return Err(malformed());
    }
    let other =
        || Err(Refusal::new("NotImplemented", "Of grants only those of private and public-read are implemented"));
    match (grantee.id.as_deref(), grantee.uri.as_deref(), grantee.email_address.as_deref()) {
        (Some(id), ..) if id == owner && permission.as_str() == Permission::FULL_CONTROL => Ok(Granted::Owner),
        // Owners are named by their uid.
        (Some(id), ..) if id.parse::<u32>().is_ok() => other(),
        (Some(_), ..) => Err(Refusal::new("InvalidArgument", "Invalid id")),
        (None, Some(ALL_USERS), _) if permission.as_str() == Permission::READ => Ok(Granted::Everyone),
        (None, Some(uri), _) if GROUPS.contains(&uri) => other(),
        (None, Some(_), _) => Err(Refusal::new("InvalidArgument", "Invalid group uri")),
        (None, None, Some(_)) => Err(Refusal::new(
            "UnresolvableGrantByEmailAddress",
            "The email address you provided does not match any account on record.",
        )),
        (None, None, None) => Err(malformed()),
    }
}

fn malformed() -> Refusal {
    let message = "The XML you provided was not well-formed or did not validate against our published schema";
    Refusal::new("MalformedACLError", message)
}

fn grants(acl: CannedAcl, user: Actor) -> Vec<Grant> {
    let to = |grantee: Grantee, permission: &'static str| Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(permission)),
    };
    let Owner { display_name, id } = owner(user);
    let owner =
        Grantee { display_name, id, email_address: None, uri: None, type_: Type::from_static(Type::CANONICAL_USER) };
    let everyone = Grantee {
        display_name: None,
        id: None,
        email_address: None,
        uri: Some(ALL_USERS.into()),
        type_: Type::from_static(Type::GROUP),
    };
    let mut grants = vec![to(owner, Permission::FULL_CONTROL)];
    if acl == CannedAcl::PublicRead {
        grants.push(to(everyone, Permission::READ));
    }
    grants
}

pub(super) async fn get_of_bucket(
    service: &Service,
    request: S3Request<GetBucketAclInput>,
) -> Answer<GetBucketAclOutput> {
    let name = request.input.bucket;
    let bucket = service.call(move |store| Ok(store.bucket(&name)?)).await?;
    let grants = Some(grants(bucket.settings.acl, bucket.owner));
    Ok(S3Response::new(GetBucketAclOutput { grants, owner: Some(owner(bucket.owner)) }))
}

pub(super) async fn put_of_bucket(
    service: &Service,
    request: S3Request<PutBucketAclInput>,
) -> Answer<PutBucketAclOutput> {
    let PutBucketAclInput { acl, access_control_policy, bucket, .. } = request.input;
    let given = Given::of(acl.as_ref().map(|acl| acl.as_str()), access_control_policy)?;
    let work = move |store: &crate::storage::Store| {
        let crate::storage::Bucket { mut settings, owner, .. } = store.bucket(&bucket)?;
        settings.acl = given.acl(owner)?;
        Ok(store.set_settings(&bucket, &settings)?)
    };
    service.call(work).await?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

pub(super) async fn get_of_object(
    service: &Service,
    request: S3Request<GetObjectAclInput>,
) -> Answer<GetObjectAclOutput> {
    let GetObjectAclInput { bucket, key, .. } = request.input;
    let work = move |store: &crate::storage::Store| Ok((store.bucket(&bucket)?, store.head(&bucket, &key)?));
    let (bucket, info) = service.call(work).await?;
    let grants = Some(grants(info.metadata.acl.unwrap_or(bucket.settings.acl), bucket.owner));
    Ok(S3Response::new(GetObjectAclOutput { grants, owner: Some(owner(bucket.owner)), request_charged: None }))
}

pub(super) async fn put_of_object(
    service: &Service,
    request: S3Request<PutObjectAclInput>,
) -> Answer<PutObjectAclOutput> {
    let PutObjectAclInput { acl, access_control_policy, bucket, key, .. } = request.input;
    let given = Given::of(acl.as_ref().map(|acl| acl.as_str()), access_control_policy)?;
    let work = move |store: &crate::storage::Store| {
        let acl = given.acl(store.bucket(&bucket)?.owner)?;
        Ok(store.set_acl(&bucket, &key, acl)?)
    };
    service.call(work).await?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canned_acls_that_are_kept_are_taken() {
        assert_eq!(of(Some("public-read")).unwrap(), Some(CannedAcl::PublicRead));
        assert_eq!(of(Some("bucket-owner-full-control")).unwrap(), Some(CannedAcl::Private));
        assert_eq!(of(Some("authenticated-read")).unwrap_err().code, "NotImplemented");
        assert_eq!(of(Some("mine")).unwrap_err().code, "InvalidArgument");
        let policy = || Some(AccessControlPolicy::default());
        assert_eq!(Given::of(Some("private"), policy()).unwrap_err().code, "UnexpectedContent");
        assert_eq!(Given::of(None, None).unwrap_err().code, "MissingSecurityHeader");
    }

    #[test]
    fn the_grants_that_are_answered_are_taken() {
        let user = Actor { uid: 7, gid: 7 };
        let policy = |grants| AccessControlPolicy { grants: Some(grants), owner: Some(owner(user)) };
        for acl in [CannedAcl::Private, CannedAcl::PublicRead] {
            assert_eq!(of_policy(policy(grants(acl, user)), user).unwrap(), acl);
        }
        let mut none = grants(CannedAcl::PublicRead, user);
        none.remove(0);
        assert_eq!(of_policy(policy(none), user).unwrap_err().code, "NotImplemented");
        let other = Actor { uid: 8, gid: 8 };
        assert_eq!(of_policy(policy(grants(CannedAcl::Private, user)), other).unwrap_err().code, "AccessDenied");
        assert_eq!(of_policy(AccessControlPolicy::default(), user).unwrap_err().code, "MalformedACLError");
    }

    #[test]
    fn public_read_grants_read_to_everyone() {
        let user = Actor { uid: 7, gid: 7 };
        assert_eq!(grants(CannedAcl::Private, user).len(), 1);
        let public = grants(CannedAcl::PublicRead, user);
        let everyone = public[1].grantee.as_ref().and_then(|grantee| grantee.uri.as_deref());
        assert_eq!(everyone, Some(ALL_USERS));
    }
}

//! `hekate s3 bucket`.

use crate::cli::{BucketOwner, Cli, S3Bucket, S3BucketSet};
use crate::commands::way::Way;
use crate::failure::Failure;
use crate::output;
use hekate_gateway_s3::storage::{Actor, BucketSettings, CannedAcl, Error, Store};

pub fn bucket(cli: &Cli, command: &S3Bucket) -> Result<(), Failure> {
    let (S3Bucket::Show { volume, bucket } | S3Bucket::Set(S3BucketSet { volume, bucket, .. })) = command;
    let opened = Way::of(cli)?.open(cli, volume)?;
    let store = Store::new(opened.clone());
    let settings = settings(&store, command);
    opened.end();
    let settings = settings.map_err(|error| match error {
        Error::NoSuchBucket => Failure::usage(format!("volume {volume} has no bucket {bucket}")),
        Error::Volume(error) => error.into(),
        other => Failure::new(74, other.to_string()),
    })?;
    show(cli, bucket, &settings);
    Ok(())
}

/// Changes the settings if the command says so. Returns them.
fn settings(store: &Store, command: &S3Bucket) -> Result<BucketSettings, Error> {
    let (S3Bucket::Show { bucket, .. } | S3Bucket::Set(S3BucketSet { bucket, .. })) = command;
    let mut settings = store.bucket(bucket)?.settings;
    let S3Bucket::Set(S3BucketSet { owner, file_mode, directory_mode, .. }) = command else { return Ok(settings) };
    match owner {
        Some(BucketOwner::Key) => settings.owner = None,
        Some(BucketOwner::User { uid, gid }) => settings.owner = Some(Actor { uid: *uid, gid: *gid }),
        None => {}
    }
    settings.file_mode = file_mode.or(settings.file_mode);
    settings.directory_mode = directory_mode.or(settings.directory_mode);
    store.set_settings(bucket, &settings)?;
    Ok(settings)
}

fn show(cli: &Cli, bucket: &str, settings: &BucketSettings) {
    let mode = |mode: Option<u16>, usual: u16| format!("{:04o}", mode.unwrap_or(usual));
    let (files, directories) = (mode(settings.file_mode, 0o644), mode(settings.directory_mode, 0o755));
    let acl = if settings.acl == CannedAcl::PublicRead { "public-read" } else { "private" };
    if cli.json {
        let owner = settings.owner.map(|owner| serde_json::json!({ "uid": owner.uid, "gid": owner.gid }));
        output::json(&serde_json::json!({
            "bucket": bucket, "owner": owner, "file_mode": files, "directory_mode": directories, "acl": acl,
            "cors_rules": settings.cors.len(),
        }));
        return;
    }
    let owner = settings.owner.map_or("the user of the key".into(), |owner| format!("{}:{}", owner.uid, owner.gid));
    println!("bucket {bucket}: what S3 makes belongs to {owner}, files {files}, directories {directories}");
    println!("  ACL {acl}, {} rules for web pages of other origins", settings.cors.len());
}

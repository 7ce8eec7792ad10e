//! Options of the S3 door's commands.

use clap::{ArgGroup, Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The S3 door: buckets and objects of a volume over HTTP.
#[derive(Subcommand, Debug)]
pub enum S3 {
    /// Open the S3 door of a volume at each server, or change how it is open.
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable(S3Enable),
    /// Close the S3 door of a volume. Its buckets and keys stay.
    #[command(after_help = "Example: hekate s3 disable photos")]
    Disable {
        /// The volume.
        volume: String,
    },
    /// The volumes whose S3 door is open.
    #[command(after_help = "Example: hekate s3 list")]
    List,
    /// Access keys.
    #[command(subcommand)]
    Key(S3Key),
    /// Settings of buckets.
    #[command(subcommand)]
    Bucket(S3Bucket),
    /// Answer S3 requests for a volume in a process of its own. On another machine than a server's it needs the credential
    /// of a client with the right of an administrator, which may read access keys.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(S3Serve),
    /// Remove what interrupted uploads have left, and directories that no key needs any more.
    #[command(after_help = "Example: hekate s3 gc photos --older-than 7d")]
    Gc(S3Gc),
}

const ENABLE_EXAMPLES: &str = "\
Examples:
  hekate s3 enable photos --listen 0.0.0.0:9000                 HTTPS, with a certificate of the cluster's authority
  hekate s3 enable photos --listen 0.0.0.0:443 --certificate /etc/ssl/s3.crt --key /etc/ssl/s3.key
  hekate s3 enable photos --listen 127.0.0.1:9000 --http        plain HTTP, behind a proxy or for a test";

const SERVE_EXAMPLES: &str = "\
Examples:
  hekate s3 serve photos --listen 127.0.0.1:9000 --http
  hekate --credential gateway.hekate s3 serve photos --listen 0.0.0.0:443 --certificate s3.crt --key s3.key";

/// Where a door listens, and what it shows.
#[derive(Args, Debug, Clone)]
pub struct S3Listen {
    /// An address to listen at; may be given again.
    #[arg(long, value_name = "ADDRESS:PORT", required = true)]
    pub listen: Vec<SocketAddr>,
    /// Plain HTTP: whoever can read the network can read objects.
    #[arg(long)]
    pub http: bool,
    /// The certificate, and those between it and its root: a PEM file on each server. It is read again when it changes.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The certificate's key: a PEM file on each server.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// The domain whose subdomains are buckets, for clients that use virtual-host style.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// The region that clients sign for.
    #[arg(long, value_name = "REGION", default_value = "us-east-1")]
    pub region: String,
}

#[derive(Args, Debug)]
pub struct S3Enable {
    /// The volume.
    pub volume: String,
    #[command(flatten)]
    pub listen: S3Listen,
    /// A further name or address for the certificate of the cluster's authority; may be given again.
    #[arg(long = "name", value_name = "NAME", conflicts_with_all = ["http", "certificate"])]
    pub names: Vec<String>,
}

#[derive(Args, Debug)]
pub struct S3Serve {
    /// The volume.
    pub volume: String,
    #[command(flatten)]
    pub listen: S3Listen,
}

#[derive(Args, Debug)]
pub struct S3Gc {
    /// The volume.
    pub volume: String,
    /// Uploads that were begun longer ago are aborted.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = humantime::parse_duration)]
    pub older_than: Duration,
}

/// Settings of a volume's buckets.
#[derive(Subcommand, Debug)]
pub enum S3Bucket {
    /// Owner and permissions of what S3 makes in a bucket, its canned ACL, and its rules for web pages.
    #[command(after_help = "Example: hekate s3 bucket show photos album")]
    Show {
        /// The volume.
        volume: String,
        /// The bucket.
        bucket: String,
    },
    /// Set owner and permissions of the files and directories that S3 makes in a bucket from now on.
    #[command(after_help = BUCKET_EXAMPLES)]
    Set(S3BucketSet),
}

const BUCKET_EXAMPLES: &str = "\
Examples:
  hekate s3 bucket set photos album --owner 1000:100 --file-mode 0640 --directory-mode 0750
  hekate s3 bucket set photos album --owner key                  the user of the key that makes them, as at first";

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("settings").required(true).multiple(true).args(["owner", "file_mode", "directory_mode"])))]
pub struct S3BucketSet {
    /// The volume.
    pub volume: String,
    /// The bucket.
    pub bucket: String,
    /// The owner of what S3 makes: UID:GID, or `key` for the user of the key.
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub owner: Option<BucketOwner>,
    /// Permissions of files, in octal.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub file_mode: Option<u16>,
    /// Permissions of directories, in octal.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub directory_mode: Option<u16>,
}

/// The owner of what S3 makes in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketOwner {
    /// The user of the key.
    Key,
    User {
        uid: u32,
        gid: u32,
    },
}

fn owner(text: &str) -> Result<BucketOwner, String> {
    if text == "key" {
        return Ok(BucketOwner::Key);
    }
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let (uid, gid) = ids.ok_or("say UID:GID, as 1000:100, or key")?;
    Ok(BucketOwner::User { uid, gid })
}

fn mode(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "say permissions in octal, as 0640".into())
}

/// Access keys of users of a volume.
#[derive(Subcommand, Debug)]
pub enum S3Key {
    /// Make an access key, and print it with its secret, which is shown only now.
    #[command(after_help = KEY_EXAMPLES)]
    Create(S3KeyCreate),
    /// All access keys, without their secrets.
    #[command(after_help = "Example: hekate s3 key list --volume photos")]
    List {
        /// Only those of this volume.
        #[arg(long, value_name = "NAME")]
        volume: Option<String>,
    },
    /// Refuse an access key, within 2 s at each server.
    #[command(after_help = "Example: hekate s3 key disable HKABCD…")]
    Disable {
        /// The access key id.
        id: String,
    },
    /// Accept an access key again.
    #[command(after_help = "Example: hekate s3 key enable HKABCD…")]
    Enable {
        /// The access key id.
        id: String,
    },
    /// Remove an access key for good.
    #[command(after_help = "Example: hekate s3 key delete HKABCD…")]
    Delete {
        /// The access key id.
        id: String,
    },
}

const KEY_EXAMPLES: &str = "\
Examples:
  hekate s3 key create photos                                   the user who calls, all buckets
  hekate s3 key create photos --user backup --uid 900 --gid 900 --bucket nightly:write --bucket media:read
  hekate s3 key create photos --read-only";

#[derive(Args, Debug)]
pub struct S3KeyCreate {
    /// The volume.
    pub volume: String,
    /// The user that the key belongs to [default: the user who calls].
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Owner of the files that are made with the key [default: the user who calls].
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Group of these files [default: that of the user who calls].
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,
    /// The key may change nothing.
    #[arg(long)]
    pub read_only: bool,
    /// A bucket that it may use, and how: BUCKET:read or BUCKET:write; may be given again. [default: all buckets]
    #[arg(long = "bucket", value_name = "BUCKET:HOW", value_parser = grant)]
    pub buckets: Vec<(String, bool)>,
    /// An access key id that is in use elsewhere; needs --secret-file.
    #[arg(long, value_name = "ID", requires = "secret_file")]
    pub id: Option<String>,
    /// A file with the secret that belongs to --id.
    #[arg(long, value_name = "FILE", requires = "id")]
    pub secret_file: Option<PathBuf>,
}

fn grant(text: &str) -> Result<(String, bool), String> {
    match text.rsplit_once(':') {
        Some((bucket, "read")) => Ok((bucket.into(), false)),
        Some((bucket, "write")) => Ok((bucket.into(), true)),
        _ => Err("say BUCKET:read or BUCKET:write".into()),
    }
}

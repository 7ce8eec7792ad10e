//! `hekate s3 serve`: a door in a process of its own.

use super::keys::RecordedKeys;
use crate::cli::{Cli, S3Serve};
use crate::commands::control::ask_at;
use crate::commands::doors::alone::{Alone, Opened};
use crate::failure::Failure;
use crate::notify;
use hekate_control::s3::{S3Secret, S3Secrets};
use hekate_gateway_s3::{Door, Limits, Settings, TlsFiles};
use hekate_proto::Error;
use hekate_transport::Endpoint;
use std::sync::Arc;
use std::time::Duration;

/// Limit for the reply of a server with the access keys.
const ASK_LIMIT: Duration = Duration::from_secs(5);

pub fn serve(cli: &Cli, options: &S3Serve) -> Result<(), Failure> {
    notify::outcome(run(cli, options))
}

fn run(cli: &Cli, options: &S3Serve) -> Result<(), Failure> {
    let settings = settings_of(options)?;
    let alone =
        Alone { process: c"hekate-s3", door: "S3 door", stopping: "finishing requests", volume: &options.volume };
    let mut may_read = false;
    alone.serve(cli, |way, volume| {
        // A door without the right to read keys would refuse everybody. Later the servers may be away for a moment.
        if !may_read {
            read_keys(&way.endpoints, &options.volume)?;
            may_read = true;
        }
        let (from, name) = (way.endpoints.clone(), options.volume.clone());
        let keys = RecordedKeys::new(move || read_keys(&from, &name));
        let door = Door::start(volume, Arc::new(keys), settings.clone())?;
        let addresses = door.addresses().iter().map(ToString::to_string).collect();
        Ok(Opened { addresses, stop: Box::new(|| door.stop()) })
    })
}

fn settings_of(options: &S3Serve) -> Result<Settings, Failure> {
    let listen = &options.listen;
    let tls = match (&listen.certificate, &listen.key) {
        (Some(certificate), Some(key)) if !listen.http => {
            Some(TlsFiles { certificate: certificate.clone(), key: key.clone() })
        }
        (None, None) if listen.http => None,
        (Some(_), _) | (_, Some(_)) => {
            return Err(Failure::usage("--http needs no certificate; leave one of both away"));
        }
        (None, None) => return Err(Failure::usage("name --certificate and --key, or say --http for plain HTTP")),
    };
    let (domain, region) = (listen.domain.clone(), listen.region.clone());
    Ok(Settings { listen: listen.listen.clone(), tls, domain, region, limits: Limits::default() })
}

/// Asks the servers for the access keys.
fn read_keys(endpoints: &[Endpoint], volume: &str) -> Result<Vec<S3Secret>, Error> {
    let mut away = Error::Unavailable { what: "there is no server to ask".into() };
    for endpoint in endpoints {
        match ask_at(endpoint, S3Secrets { volume: volume.into() }, Some(ASK_LIMIT)) {
            Ok(Ok(secrets)) => return Ok(secrets),
            Ok(Err(refusal)) => return Err(Error::Denied { what: refusal.text }),
            Err(error) => away = error,
        }
    }
    Err(away)
}

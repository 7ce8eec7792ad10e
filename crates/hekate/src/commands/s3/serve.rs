//! `hekate s3 serve`: a door in a process of its own.

use super::keys::RecordedKeys;
use crate::cli::{Cli, S3Serve};
use crate::commands::control::ask_at;
use crate::commands::way::Way;
use crate::commands::{graph, renewal};
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::paths::Paths;
use hekate_control::s3::{S3Secret, S3Secrets};
use hekate_gateway_s3::{Door, Limits, Settings, TlsFiles};
use hekate_proto::Error;
use hekate_transport::Endpoint;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Limit for the reply of a server with the access keys.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Exit status for servers that do not answer, and the time between two attempts to reach them.
const UNAVAILABLE: u8 = 69;
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
const STOP_PAUSE: Duration = Duration::from_millis(50);

pub fn serve(cli: &Cli, options: &S3Serve) -> Result<(), Failure> {
    notify::outcome(run(cli, options))
}

fn run(cli: &Cli, options: &S3Serve) -> Result<(), Failure> {
    let settings = settings_of(options)?;
    daemon::name_process(c"hekate-s3");
    daemon::raise_file_limits();
    log_lines::begin("hekate-s3");
    let stop = daemon::stop_signals()?;
    let way = Way::of(cli)?;
    let mut volume = way.open(cli, &options.volume)?;
    let endpoints = &way.endpoints;
    renewal::start(&Paths::of(cli)?, endpoints.clone(), way.elsewhere.clone());
    // A door without the right to read keys would refuse everybody.
    read_keys(endpoints, &options.volume)?;
    let paths = Paths::of(cli)?;
    loop {
        graph::let_see(&volume, "S3 door".into(), &paths);
        let (from, name) = (endpoints.clone(), options.volume.clone());
        let keys = RecordedKeys::new(move || read_keys(&from, &name));
        let door = Door::start(volume.clone(), Arc::new(keys), settings.clone())?;
        let addresses: Vec<String> = door.addresses().iter().map(ToString::to_string).collect();
        let serving = format!("the S3 door of {} is open at {}", options.volume, addresses.join(" "));
        log::info!("{serving}");
        notify::ready(&serving);
        while !stop.load(Ordering::Relaxed) && !volume.has_ended() {
            std::thread::sleep(STOP_PAUSE);
        }
        if stop.load(Ordering::Relaxed) {
            notify::stopping("finishing requests");
        }
        door.stop();
        volume.end();
        volume = loop {
            if stop.load(Ordering::Relaxed) {
                graph::remove_socket(&paths);
                return Ok(());
            }
            log::warn!("the session has ended; the door is opened again");
            match way.open(cli, &options.volume) {
                Err(away) if away.exit == UNAVAILABLE => std::thread::sleep(AGAIN_PAUSE),
                opened => break opened?,
            }
        };
    }
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

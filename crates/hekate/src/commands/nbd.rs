//! `hekate nbd serve`: the block door of a volume in a process of its own.

use crate::cli::{Cli, NbdServe};
use crate::commands::vdisk::own_name;
use crate::commands::way::Way;
use crate::commands::{graph, renewal};
use crate::daemon;
use crate::failure::Failure;
use crate::log_lines;
use crate::notify;
use crate::paths::Paths;
use hekate_gateway_nbd::{Door, Exports, Listen, Settings, TlsFiles};
use hekate_vdisk::{Catalogue, VolumeStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Exit status for servers that do not answer, and the time between two attempts to reach them.
const UNAVAILABLE: u8 = 69;
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
const STOP_PAUSE: Duration = Duration::from_millis(50);

pub fn serve(cli: &Cli, options: &NbdServe) -> Result<(), Failure> {
    notify::outcome(run(cli, options))
}

fn run(cli: &Cli, options: &NbdServe) -> Result<(), Failure> {
    let settings = settings_of(options)?;
    daemon::name_process(c"hekate-nbd");
    daemon::raise_file_limits();
    log_lines::begin("hekate-nbd");
    let stop = daemon::stop_signals()?;
    let way = Way::of(cli)?;
    let paths = Paths::of(cli)?;
    let mut volume = way.open(cli, &options.volume)?;
    renewal::start(&paths, way.endpoints.clone(), way.elsewhere.clone());
    loop {
        graph::let_see(&volume, "block door".into(), &paths);
        let catalogue = Catalogue::open(Arc::new(VolumeStore::open(volume.clone())?))?;
        let exports = Exports::new(catalogue, own_name(), hekate_vdisk::Settings::default());
        let door = Door::start(exports, settings.clone())?;
        let serving = format!("the block door of {} is open at {}", options.volume, door.addresses().join(" "));
        log::info!("{serving}");
        notify::ready(&serving);
        while !stop.load(Ordering::Relaxed) && !volume.has_ended() {
            std::thread::sleep(STOP_PAUSE);
        }
        if stop.load(Ordering::Relaxed) {
            notify::stopping("closing vDisks");
        }
        door.stop();
        volume.end();
        volume = loop {
            if stop.load(Ordering::Relaxed) {
                graph::remove_socket(&paths);
                return Ok(());
            }
            log::warn!("the session has ended; the door is opened again, and clients have to connect again");
            match way.open(cli, &options.volume) {
                Err(away) if away.exit == UNAVAILABLE => std::thread::sleep(AGAIN_PAUSE),
                opened => break opened?,
            }
        };
    }
}

fn settings_of(options: &NbdServe) -> Result<Settings, Failure> {
    let tls = match (&options.certificate, &options.key, &options.client_ca) {
        (Some(certificate), Some(key), Some(authority)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authority: Some(authority.clone()),
        }),
        _ if options.listen.is_empty() || options.plain => None,
        _ => {
            return Err(Failure::usage(
                "over TCP clients show a certificate: name --certificate, --key and --client-ca, or say --plain for an \
                 address that only trusted programs reach",
            ));
        }
    };
    let sockets = options.sockets.iter().map(|path| Listen::Unix(path.clone()));
    let listen = sockets.chain(options.listen.iter().map(|address| Listen::Tcp(*address))).collect();
    Ok(Settings { listen, tls, ..Settings::default() })
}
